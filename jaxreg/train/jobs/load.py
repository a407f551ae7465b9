"""`load`: the predictions of a trained run, for a program of your own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jaxreg.train.build.saved import restore_run
from jaxreg.train.files import local_path
from jaxreg.train.run.predictor import Predictor, as_stored
from jaxreg.typing import Array


def load(workdir: str | Path, *, checkpoint: str | int = "latest", replica: int = 0) -> Predictor:
  """Returns the trained model of a work directory, as a compiled function.

  Args:
    workdir: the folder where `run.py` trained.
    checkpoint: `latest`, `best` on the validation split, or a step.
    replica: the replica, if several were trained. A replica of an ensemble is one member;
      `jaxreg.ensembles.arithmetic` joins the members' predictions.

  Returns:
    `predict(inputs, *, key=None) -> log-probabilities [batch, classes]`; for sequences
    `[batch, length, classes]`. Its `repr` says which inputs it takes. It takes inputs as the data source
    stores them (for MNIST uint8 `[batch, 28, 28, 1]`) and scales them as in training, or it takes floats that
    are scaled already. The key is for predictions that sample masks, and for `evaluate.mc_samples`; by
    default it is the run's key.

  Raises:
    RunError: if the work directory holds nothing usable.

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
  """As `load`, but for the outputs of the head, such as `logits` and `retain_logits`, `[batch, classes]`.

  Args:
    workdir, checkpoint, replica: as in `load`.

  Returns:
    `outputs(inputs)`, a function to a dict of arrays.

  Raises:
    RunError: if the work directory holds nothing usable.
  """
  program, state, data = restore_run(local_path(workdir, "workdir"), checkpoint, replica)

  @jax.jit
  def run(params: Any, model_state: Any, inputs: Array) -> dict[str, Array]:
    return program.apply_fn(params, model_state, inputs, key=None, train=False)[0]

  return lambda inputs: run(state.params, state.model_state, as_stored(inputs, data))
