"""Uses a finished run in another: as the teacher of its distillation, or as the beginning of its network."""

from pathlib import Path

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from jaxreg._atomic_files import check_no_pipe
from jaxreg.models import resnet_from_torch
from jaxreg.paths import leaf_names
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.errors import ArgumentError, RunError, field_error, one_line
from jaxreg.train.finished.restore import restore_run
from jaxreg.train.run.initial_state import parts_of
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import Variables
from jaxreg.train.step.terms import TeacherFn
from jaxreg.train.user_paths import local_path, user_path
from jaxreg.typing import Array, Key


def make_teacher(data: DataSpec, workdir: str) -> TeacherFn:
  """Loads the best checkpoint of a run as `(key, inputs) -> log-probabilities`, without gradient.

  The inputs are scaled as in `Examples`. The parameters are constants of the compiled caller.
  """
  try:
    program, state, theirs = restore_run(user_path(workdir, "workdir"), "best", 0)
  except RunError as error:
    raise _in_section("teacher", error) from error
  for name in ("input_shape", "input_dtype", "num_classes", "scale"):
    there, here = getattr(theirs, name), getattr(data, name)
    if there != here:
      raise RunError(f"teacher.workdir: {workdir} was trained with {name} {there}, and here it is {here}")
  # On the host, so that the constants belong to no device. Without extras, SWAG predicts with its mean.
  state = jax.device_get(state.replace(key=None, opt_state=(), extras={}))

  same = (data.input_mean, data.input_std) == (theirs.input_mean, theirs.input_std)
  factor, shift = data.in_units_of(theirs)

  def teacher(key: Key, inputs: Array) -> Array:
    inputs = inputs if same else inputs * factor + shift  # its training examples had other moments
    return jax.lax.stop_gradient(program.predict_fn(state, inputs, key))

  return teacher


def load_pretrained(program: Program, *, workdir: str, file: str, checkpoint: str) -> Variables:
  """Loads the backbone of the run in `workdir`, or of `file` with its head if that fits, for `program`."""
  ours = program.abstract.variables
  try:
    if file:
      field, advice = "file", "give model.name=ResNet with stem=imagenet and the depth of the file"
      theirs = _read_torch(local_path(file, "file"))
    else:
      field, advice = "workdir", "give the same model and inputs"
      theirs = restore_run(user_path(workdir, "workdir"), checkpoint, 0)[1].variables
  except RunError as error:
    raise _in_section("pretrained", error) from error
  loaded, wanted = _shapes(theirs, "backbone"), _shapes(ours, "backbone")
  for name in sorted({*loaded, *wanted}):
    if loaded.get(name) != wanted.get(name):
      raise RunError(
        f"pretrained.{field}: the backbone of {file or workdir} is different: its {name} is "
        f"{loaded.get(name, 'missing')}, here {wanted.get(name, 'missing')}; {advice}"
      )
  head = ("head",) if file and _shapes(theirs, "head") == _shapes(ours, "head") else ()
  like, parts = parts_of(ours, "backbone", *head), parts_of(theirs, "backbone", *head)
  return jax.tree.map(lambda x, old: np.asarray(x, old.dtype), parts, like)


def _in_section(section: str, error: RunError) -> RunError:
  """Names the field of the section in an error of `restore_run`: `teacher.workdir` for `workdir`."""
  if isinstance(error, ArgumentError):
    return field_error(section, error)
  return RunError(f"{section}.workdir: {error}")


def _read_torch(file: Path) -> Variables:
  """Reads the variables of a ResNet in PyTorch's layout from a file of safetensors."""
  try:
    check_no_pipe(file)
    variables = resnet_from_torch(load_file(file))
  except SafetensorError as error:
    problem = f"{file} is not safetensors ({one_line(error)}); write it by safetensors.torch.save_file"
    raise ArgumentError("file", problem) from error
  except (KeyError, AttributeError) as error:  # a type that NumPy lacks
    problem = f"{file} has tensors of a type that cannot be read ({one_line(error)}); save them as float32"
    raise ArgumentError("file", problem) from error
  except (OSError, ValueError, TypeError) as error:
    raise ArgumentError("file", f"{file} cannot be read ({one_line(error)})") from error
  model_state = {part: {"batch_stats": tree} for part, tree in variables["batch_stats"].items()}
  return {"params": variables["params"], "model_state": model_state}


def _shapes(variables: Variables, name: str) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of a part's leaves by their paths."""
  tree = parts_of(variables, name)
  return {name: x.shape for name, x in zip(leaf_names(tree), jax.tree.leaves(tree))}
