"""The states that a run begins with: of its seeds, of a checkpoint, or with pretrained parts."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from safetensors import SafetensorError
from safetensors.numpy import load_file

from jaxreg.models import resnet_from_torch
from jaxreg.paths import leaf_names
from jaxreg.train.assemble.saved import restore_run
from jaxreg.train.data.batches import place
from jaxreg.train.devices.replicas import Loop, Vmap, stacked
from jaxreg.train.errors import ArgumentError, RunError, field_error, one_line
from jaxreg.train.run.checkpoint import abstract, restore
from jaxreg.train.run.loop import Run
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import States, TrainState, Variables
from jaxreg.train.user_paths import local_path
from jaxreg.typing import PyTree


def restored_states(run: Run, workdir: Path, step: int) -> States:
  """The states of all replicas from the checkpoint of this step."""
  like = abstract(stacked(run.program.abstract, len(run.seeds)), run.replicas.stacked_layout)
  return run.replicas.unpack(restore(workdir, step, like))


def initial_states(run: Run, pretrained: Variables | None) -> States:
  """The states of all replicas from their seeds, each with a copy of the `pretrained` parts, if any."""
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


def load_pretrained(program: Program, *, workdir: str, file: str, checkpoint: str) -> Variables:
  """The backbone of the run in `workdir`, or that of `file` with its head if it fits, for `program`."""
  ours = _variables(program.abstract)
  try:
    if file:
      field, advice = "file", "give model.name=ResNet with stem=imagenet and the depth of the file"
      theirs = _read_torch(local_path(file, "file"))
    else:
      field, advice = "workdir", "give the same model and inputs"
      theirs = _variables(restore_run(local_path(workdir, "workdir"), checkpoint, 0)[1])
  except ArgumentError as error:
    raise field_error("pretrained", error) from error
  found, wanted = _shapes(theirs, "backbone"), _shapes(ours, "backbone")
  for name in sorted({*found, *wanted}):
    if found.get(name) != wanted.get(name):
      raise RunError(
        f"pretrained.{field}: the backbone of {file or workdir} is different: its {name} is "
        f"{found.get(name, 'missing')}, here {wanted.get(name, 'missing')}; {advice}"
      )
  head = ("head",) if file and _shapes(theirs, "head") == _shapes(ours, "head") else ()
  like, parts = _parts(ours, "backbone", *head), _parts(theirs, "backbone", *head)
  return jax.tree.map(lambda x, old: np.asarray(x, old.dtype), parts, like)


def with_pretrained(
  program: Program, state: TrainState, pretrained: Variables, mesh: jax.sharding.Mesh
) -> TrainState:
  """The stacked state of all replicas, where each replica has a copy of the `pretrained` parts."""
  old = _parts(_variables(state), *pretrained["params"])
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


def _read_torch(file: Path) -> Variables:
  """The variables of a ResNet in PyTorch's layout, from a file of safetensors."""
  try:
    variables = resnet_from_torch(load_file(file))
  except SafetensorError as error:
    problem = f"{file} is not safetensors ({one_line(error)}); write it by safetensors.torch.save_file"
    raise ArgumentError("file", problem) from error
  except (OSError, ValueError) as error:
    raise ArgumentError("file", f"{file} cannot be read ({one_line(error)})") from error
  model_state = {part: {"batch_stats": tree} for part, tree in variables["batch_stats"].items()}
  return {"params": variables["params"], "model_state": model_state}


def _variables(state: TrainState) -> Variables:
  return {"params": state.params, "model_state": state.model_state}


def _parts(variables: Variables, *names: str) -> Variables:
  """The parts of these names of `params` and of `model_state`."""
  return {
    collection: {name: part for name, part in tree.items() if name in names}
    for collection, tree in variables.items()
  }


def _shapes(variables: Variables, name: str) -> dict[str, tuple[int, ...]]:
  tree = _parts(variables, name)
  return {name: x.shape for name, x in zip(leaf_names(tree), jax.tree.leaves(tree))}
