"""Getting a trained model back."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxreg.train.build.program import Program
from jaxreg.train.build.setup import build
from jaxreg.train.config.fields import base_config
from jaxreg.train.devices.replicas import stacked
from jaxreg.train.errors import RunError
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.checkpoint import abstract, restore
from jaxreg.train.run.files import local_path
from jaxreg.train.run.manifest import good_steps
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Key

TRIES = 5  # of a training run that deletes each checkpoint as it is read


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Predictor:
  """A trained model: `predict(inputs, *, key=None) -> log-probabilities`.

  Attributes:
    input_shape: of one example.
    input_dtype: as the data source stores inputs.
    scale: what the stored inputs are divided by; floats are taken as divided already where inputs are stored
      as integers.
    num_classes: of the log-probabilities.
    step: of the checkpoint.
  """

  input_shape: tuple[int, ...]
  input_dtype: str
  scale: float
  num_classes: int
  step: int
  _program: Program
  _state: TrainState

  @functools.cached_property
  def _run(self) -> Callable[..., Array]:
    return jax.jit(self._program.predict_fn)

  def __call__(self, inputs: Any, *, key: Key | None = None) -> Array:
    key = jax.random.clone(self._state.key) if key is None else key
    data = {"input_shape": self.input_shape, "input_dtype": self.input_dtype, "scale": self.scale}
    return self._run(self._state, _checked(inputs, data), key)

  def __repr__(self) -> str:
    shape = ", ".join(map(str, ("batch", *self.input_shape)))
    kind = self.input_dtype
    if _is_integer(kind) and self.scale != 1:
      kind += f" in [0, {self.scale:g}], or floating in [0, 1]"
    return (
      f"Predictor(inputs [{shape}] {kind} -> log-probabilities of {self.num_classes} classes, "
      f"step {self.step})"
    )


def load(workdir: str | Path, *, checkpoint: str | int = "latest", replica: int = 0) -> Predictor:
  """Gives the trained model of a work directory back, as a compiled function.

  Args:
    workdir: where `run.py` trained.
    checkpoint: `latest`, `best` on the validation split, or a step.
    replica: which of the replicas, if several were trained; of an ensemble that is one member, and
      `jaxreg.ensembles.arithmetic` joins them.

  Returns:
    `predict(inputs, *, key=None) -> log-probabilities [batch, classes]`, of sequences
    `[batch, length, classes]`. Its `repr` says which inputs it takes: those that the data source stores (for
    MNIST uint8 `[batch, 28, 28, 1]`), to which the scale of training is applied, or the same as floats that
    are scaled already. The key is for predictions that sample masks, as `evaluate.mc_samples` does too; by
    default it is that of the run.

  Raises:
    RunError: if nothing usable is there.

  Example:
    predict = jaxreg.train.load("runs/dropmax_digits")
    labels = predict(images).argmax(-1)
  """
  program, state, data = restore_run(local_path(workdir, "workdir"), checkpoint, replica)
  return Predictor(
    input_shape=tuple(data["input_shape"]),
    input_dtype=data["input_dtype"],
    scale=data["scale"],
    num_classes=data["num_classes"],
    step=int(state.step),
    _program=program,
    _state=state,
  )


def load_outputs(
  workdir: str | Path, *, checkpoint: str | int = "latest", replica: int = 0
) -> Callable[[Any], dict[str, Array]]:
  """As `load`, but what the head returns, such as `logits` and `retain_logits`, each `[batch, classes]`.

  Args:
    workdir, checkpoint, replica: as in `load`.

  Returns:
    `outputs(inputs)`.

  Raises:
    RunError: if nothing usable is there.
  """
  program, state, data = restore_run(local_path(workdir, "workdir"), checkpoint, replica)

  @jax.jit
  def run(params: Any, model_state: Any, inputs: Array) -> dict[str, Array]:
    return program.apply_fn(params, model_state, inputs, key=None, train=False)[0]

  return lambda inputs: run(state.params, state.model_state, _checked(inputs, data))


def restore_run(
  workdir: Path, checkpoint: str | int, replica: int
) -> tuple[Program, TrainState, dict[str, Any]]:
  """The functions of a run, one replica's state and what the run's data looked like.

  Raises:
    RunError: if nothing usable is there.
  """
  config = workdirs.restore_config(base_config(), workdir)
  data = workdirs.read_data(workdir)
  program = build(config, data)
  if not 0 <= replica < config.replicas:
    raise RunError(f"replica: must be at least 0 and below {config.replicas}, got {replica}")
  _, state = pick_and_restore(
    workdir,
    lambda: pick_step(workdir, checkpoint, config.checkpoint.best),
    lambda step: restore_state(program, workdir, step, replica, config.replicas),
  )
  return program, state, data


def pick_and_restore(
  workdir: Path,
  pick: Callable[[], int],
  restored: Callable[[int], Any],
  *,
  agree: Callable[[Callable[[], Any]], Any] = lambda call: call(),
) -> tuple[int, Any]:
  """The step that `pick` gives, and what `restored` makes of it.

  A training run beside deletes old checkpoints, perhaps one that was just picked: then the next is.
  `agree` calls what all processes have to be of one mind about.

  Raises:
    RunError: if there is none, or one that is whole does not fit.
  """
  for _ in range(TRIES - 1):
    step = agree(pick)
    try:
      return step, restored(step)
    except RunError:
      if agree(lambda step=step: step in good_steps(workdir)):
        raise
  step = agree(pick)
  return step, restored(step)


def restore_state(program: Program, workdir: Path, step: int, replica: int, replicas: int) -> TrainState:
  """The state of one of so many replicas at a good step, with the parameters to predict with."""
  here = SingleDeviceSharding(jax.local_devices()[0])
  states = restore(workdir, step, abstract(stacked(program.abstract, replicas), here))
  return program.predicting(jax.tree.map(lambda x: x[replica], states))


def _is_integer(dtype: str) -> bool:
  return np.issubdtype(np.dtype(dtype), np.integer)


def _checked(inputs: Any, data: Mapping[str, Any]) -> Array:
  """The inputs as the data source stores them."""
  inputs = np.asarray(inputs)
  if inputs.shape[1:] != tuple(data["input_shape"]):
    shape = ", ".join(map(str, ("batch", *data["input_shape"])))
    raise ValueError(f"inputs must have shape [{shape}], got {inputs.shape}")
  stored = data["input_dtype"]
  if not _is_integer(stored) or inputs.dtype == stored:
    return jnp.asarray(inputs)
  scale = data["scale"]
  if scale == 1 or not np.issubdtype(inputs.dtype, np.floating):
    floats = "" if scale == 1 else f", or floating and divided by {scale:g}"
    raise ValueError(f"inputs must be {stored}, as the data source stores them{floats}, got {inputs.dtype}")
  if inputs.size and not (inputs.min() >= 0 and inputs.max() <= 1):
    raise ValueError(
      f"inputs that are floating must lie in [0, 1], divided by {scale:g}; those as stored are {stored}, "
      f"got values from {inputs.min():g} to {inputs.max():g}"
    )
  return jnp.asarray(inputs * scale, jnp.float32)


def pick_step(workdir: Path, checkpoint: str | int, metric: str) -> int:
  """The step of the `latest` good checkpoint, or of the `best` by a validation metric (the later of equals).

  A number is that step.

  Raises:
    RunError: if there is none.
  """
  steps = good_steps(workdir)
  if isinstance(checkpoint, int):
    if checkpoint not in steps:
      kept = ", ".join(map(str, sorted(steps))) or "none"
      raise RunError(f"checkpoint: {workdir} has no good one of step {checkpoint}; there is {kept}")
    return checkpoint
  if checkpoint == "best":
    measured = {step: metrics[metric] for step, metrics in steps.items() if metrics}
    if measured:
      return min(measured, key=lambda step: (measured[step], -step))
    if steps:
      raise RunError(f"checkpoint: {workdir} has none yet that was measured on the val split; give 'latest'")
  elif checkpoint != "latest":
    raise RunError(f"checkpoint: must be 'latest', 'best' or a step, got {checkpoint!r}")
  if not steps:
    raise RunError(f"workdir: {workdir} has no good checkpoint; train first, or give another")
  return max(steps)
