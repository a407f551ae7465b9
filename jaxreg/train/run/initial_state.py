"""The states that a run begins with: from its seeds, from a checkpoint, or with pretrained parts."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from etils.epath import Path
from jax.sharding import NamedSharding, PartitionSpec

from jaxreg.train.data.batches import place
from jaxreg.train.devices.replicas import Loop, Vmap, stacked
from jaxreg.train.run.checkpoint import abstract, restore
from jaxreg.train.run.loop import Run
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import States, TrainState, Variables
from jaxreg.typing import PyTree


def restored_states(run: Run, workdir: Path, step: int) -> States:
  """Restores the states of all replicas from the checkpoint of this step."""
  like = abstract(stacked(run.program.abstract, len(run.seeds)), run.replicas.stacked_layout)
  return run.replicas.unpack(restore(workdir, step, like))


def initial_states(run: Run, pretrained: Variables | None) -> States:
  """Initialises all replicas from their seeds, each with a copy of the `pretrained` parts, if any."""
  state = compile_init(run.program, run.replicas)(np.array(run.seeds, np.uint32))
  if pretrained is not None:
    state = with_pretrained(run.program, state, pretrained, run.replicas.mesh)
  return run.replicas.unpack(state)


def compile_init(program: Program, replicas: Vmap | Loop) -> Callable[[PyTree], PyTree]:
  """Compiles `init(seeds) -> states`, stacked.

  The seeds are initialised one after another, because a batch of LAPACK calls, as for orthogonal kernels, can
  hang: jaxlib spreads the batch over the CPU's threads and waits in one of them. If every thread waits so, as
  with two simulated devices on two cores, no thread is left for the work, and no signal is handled.
  """
  # LLVM's full optimization of ResNet-20's random numbers took half a minute, and gives the same numbers.
  options = {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else None
  return jax.jit(
    lambda seeds: jax.lax.map(program.init, seeds),
    out_shardings=replicas.stacked_layout,
    compiler_options=options,
  )


def with_pretrained(
  program: Program, state: TrainState, pretrained: Variables, mesh: jax.sharding.Mesh
) -> TrainState:
  """Replaces parts of the stacked states: each replica gets a copy of the `pretrained` parts."""
  old = parts_of(state.variables, *pretrained["params"])
  copies = jax.tree.map(lambda new, old: np.broadcast_to(new, old.shape), pretrained, old)
  placed = place(mesh, copies, PartitionSpec())
  params = {**state.params, **placed["params"]}
  model_state = {**state.model_state, **placed["model_state"]}
  init = jax.jit(jax.vmap(program.extras.init), out_shardings=NamedSharding(mesh, PartitionSpec()))
  extras = init({"params": params, "model_state": model_state})
  if "reference" in extras:
    # Only pretrained parts have a reference; the penalty pulls new parameters toward zero.
    extras["reference"] = {
      name: part if name in placed["params"] else jax.tree.map(jnp.zeros_like, part)
      for name, part in extras["reference"].items()
    }
  return state.replace(params=params, model_state=model_state, extras=extras)


def parts_of(variables: Variables, *names: str) -> Variables:
  """Selects the parts with these names from `params` and from `model_state`."""
  return {
    collection: {name: part for name, part in tree.items() if name in names}
    for collection, tree in variables.items()
  }
