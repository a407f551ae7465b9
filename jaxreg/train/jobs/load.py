"""`load`: the predictions of a trained run, in a program of one's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jaxreg.train.build.saved import restore_run
from jaxreg.train.files import local_path
from jaxreg.train.run.predictor import Predictor, as_stored
from jaxreg.typing import Array


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

  return lambda inputs: run(state.params, state.model_state, as_stored(inputs, data))
