"""The states that a run begins with: of its seeds, of a checkpoint, or with the backbone of another run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxreg.paths import leaf_names
from jaxreg.train.assemble.saved import of_section, restore_run
from jaxreg.train.data.placement import place
from jaxreg.train.devices.replicas import Loop, Vmap, stacked
from jaxreg.train.errors import RunError
from jaxreg.train.files import local_path
from jaxreg.train.run.checkpoint import abstract, restore
from jaxreg.train.run.loop import Run
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import States, TrainState


def restored_states(run: Run, workdir: Path, step: int) -> States:
  """The states of all replicas from the checkpoint of this step."""
  like = abstract(stacked(run.program.abstract, len(run.seeds)), run.replicas.stacked_layout)
  return run.replicas.unpack(restore(workdir, step, like))


def initial_states(run: Run, backbone: dict[str, Any] | None) -> States:
  """The states of all replicas from their seeds, each with a copy of `backbone`, if there is one."""
  state = compile_init(run.program, run.replicas)(np.array(run.seeds, np.uint32))
  if backbone is not None:
    state = with_backbone(run.program, state, backbone, run.replicas.mesh)
  return run.replicas.unpack(state)


def compile_init(program: Program, replicas: Vmap | Loop) -> Callable[[Any], Any]:
  """Compiles `init(seeds) -> states`, stacked.

  The seeds are initialised one after another, because a batch of LAPACK calls, as for orthogonal kernels, can
  hang: jaxlib spreads the batch over the CPU's threads and waits in one of them. If every thread waits so, as
  with two simulated devices on two cores, no thread is left for the work, and no signal is handled.
  """
  return jax.jit(lambda seeds: jax.lax.map(program.init, seeds), out_shardings=replicas.stacked_layout)


def load_backbone(program: Program, workdir: str, *, checkpoint: str, replica: int) -> dict[str, Any]:
  """The backbone of the run in `workdir`, on the host: its `params`, and its part of the `model_state`.

  `program` belongs to the run that starts from this backbone.
  """
  try:
    _, state, _ = restore_run(local_path(workdir, "workdir"), checkpoint, replica)
  except RunError as error:
    raise of_section("pretrained", error) from error
  found, wanted = _backbone(state), _backbone(program.abstract)
  theirs, ours = (
    {name: x.shape for name, x in zip(leaf_names(t), jax.tree.leaves(t))} for t in (found, wanted)
  )
  for name in sorted({*theirs, *ours}):
    if theirs.get(name) != ours.get(name):
      raise RunError(
        f"pretrained.workdir: the backbone of {workdir} is different: its {name} is "
        f"{theirs.get(name, 'missing')}, here {ours.get(name, 'missing')}; give the same model and inputs"
      )
  return jax.tree.map(np.asarray, found)


def with_backbone(
  program: Program, state: TrainState, backbone: dict[str, Any], mesh: jax.sharding.Mesh
) -> TrainState:
  """The stacked state of all replicas, where each replica has a copy of `backbone`."""
  copies = lambda new, old: np.broadcast_to(new, old.shape)
  placed = place(mesh, jax.tree.map(copies, backbone, _backbone(state)), PartitionSpec())
  params = {**state.params, **placed["params"]}
  model_state = {
    name: {**old, **placed["model_state"].get(name, {})} for name, old in state.model_state.items()
  }
  init = jax.jit(jax.vmap(program.extras.init), out_shardings=NamedSharding(mesh, PartitionSpec()))
  extras = init({"params": params, "model_state": model_state})
  if "reference" in extras:
    # Only the backbone has a reference; the penalty pulls new parameters toward zero.
    extras["reference"] = {
      name: part if name == "backbone" else jax.tree.map(jnp.zeros_like, part)
      for name, part in extras["reference"].items()
    }
  return state.replace(params=params, model_state=model_state, extras=extras)


def _backbone(state: TrainState) -> dict[str, Any]:
  of = lambda tree: {name: part for name, part in tree.items() if name == "backbone"}
  return {
    "params": of(state.params),
    "model_state": {name: of(collection) for name, collection in state.model_state.items()},
  }
