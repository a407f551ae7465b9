"""`load`: the predictions of a trained run, for a program of your own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jaxreg.train.assemble.saved import decoding_of, restore_run
from jaxreg.train.files import local_path
from jaxreg.train.run.predictor import Predictor, as_stored, in_model_units
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
    are scaled already. After a training on image files, it also takes a list of files, or of uint8 images of
    any size, which it scales and crops as the run's evaluation does. The key is for predictions that sample
    masks, and for `evaluate.mc_samples`; by default it is the run's key.
    `predict.classify(inputs)` returns the names of the classes, which `predict.class_names` has in order.

  Raises:
    RunError: if the work directory holds nothing usable.

  Example:
    >>> predict = jaxreg.train.load("runs/dropmax_digits")
    >>> labels = predict(images).argmax(-1)
  """
  folder = local_path(workdir, "workdir")
  program, state, data = restore_run(folder, checkpoint, replica)
  return Predictor(
    input_shape=data.input_shape,
    input_dtype=data.input_dtype,
    scale=data.scale,
    num_classes=data.num_classes,
    step=int(state.step),
    class_names=data.class_names,
    decoding=decoding_of(folder),
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
  folder = local_path(workdir, "workdir")
  program, state, data = restore_run(folder, checkpoint, replica)
  decoding = decoding_of(folder)

  @jax.jit
  def run(params: Any, model_state: Any, inputs: Array) -> dict[str, Array]:
    inputs = in_model_units(inputs, data.input_dtype, data.scale)
    return program.apply_fn(params, model_state, inputs, key=None, train=False)[0]

  return lambda inputs: run(state.params, state.model_state, as_stored(inputs, data, decoding))
