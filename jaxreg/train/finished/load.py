"""`load`: the predictions, functions, data and states of a trained run, for a program of your own."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.choices import Config, base_config, flatten
from jaxreg.train.data.dataset import Dataset, DataSpec
from jaxreg.train.data.huggingface import read_parquet_rows
from jaxreg.train.data.images import Decoding
from jaxreg.train.data.tables import CSV_FORM, inputs_of_rows, read_csv_rows
from jaxreg.train.errors import ArgumentError
from jaxreg.train.finished.inputs import as_stored, check_finite, in_model_units, is_integer
from jaxreg.train.finished.loss import make_loss_fn, whole_batch
from jaxreg.train.finished.restore import decoding_of, restore_config, restore_run
from jaxreg.train.run.checkpoint import restore_state
from jaxreg.train.run.folder_name import EVALUATES
from jaxreg.train.run.manifest import good_steps, pick_step
from jaxreg.train.run.workdir import check_same
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState
from jaxreg.train.step.targets import Numbers
from jaxreg.train.user_paths import local_path, user_path
from jaxreg.typing import Array, Key, LossFn, ModelState


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Predictor:
  """A trained model: `predict(inputs, *, key=None) -> log-probabilities`, or numbers if it learned these.

  Attributes:
    input_shape: the shape of one example.
    input_dtype: the dtype in which the data source stores inputs.
    scale: the divisor of the stored inputs. If inputs are stored as integers, floats are taken as divided
      already.
    num_classes: the number of classes of the log-probabilities; 0 if labels are numbers.
    step: the step of the checkpoint.
    class_names: the names of the classes, in the order of the log-probabilities; () if the data had none.
    input_names: the names of the inputs of a run on a table, in order; otherwise ().
    decoding: for a run on images of any size, how its evaluation scales and crops them; None for other runs.
    workdir: the folder of the run.
    config: the configuration that the run was trained with.
    data: what the run knows of its data.
    program: the pure functions of the run.
    state: the state of the checkpoint, with the parameters for predictions.
  """

  input_shape: tuple[int, ...]
  input_dtype: str
  scale: float
  num_classes: int
  step: int
  class_names: tuple[str, ...]
  input_names: tuple[str, ...]
  decoding: Decoding | None
  workdir: epath.Path
  config: Config
  data: DataSpec
  program: Program
  state: TrainState
  _replica: int

  @functools.cached_property
  def _predict(self) -> Callable[..., Array]:
    predict = self.program.predict_fn
    return jax.jit(lambda state, inputs, key: predict(state, self._scaled(inputs), key))

  @functools.cached_property
  def _outputs(self) -> Callable[..., tuple[dict[str, Array], ModelState]]:
    apply = functools.partial(self.program.apply_fn, key=None, train=False)
    return jax.jit(lambda params, model_state, inputs: apply(params, model_state, self._scaled(inputs)))

  def __call__(self, inputs: object, *, key: Key | None = None) -> Array | np.ndarray:
    predictions, target = self.predictions(self.stored(inputs), key), self.program.target
    if not isinstance(target, Numbers):
      return predictions
    return target.standard.original(target.point(np.asarray(predictions)))

  def interval(self, inputs: object, *, key: Key | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of each number's interval: outer quantiles, or a Gaussian's for `evaluate.alpha`."""
    target = self.program.target
    if not isinstance(target, Numbers):
      raise ValueError("interval needs a model of numbers, got one of classes")
    low, high = target.interval(np.asarray(self.predictions(self.stored(inputs), key)))
    return target.standard.original(low), target.standard.original(high)

  def predictions(self, stored: Array, key: Key | None = None) -> Array:
    """Computes what `program.target` takes, such as log-probabilities, or moments of standardised numbers.

    The inputs are as `stored` returns them, or as a split of the `stored_dataset` has them.
    """
    key = jax.random.clone(self.state.key) if key is None else key
    return self._predict(self.state, stored, key)

  def outputs(self, inputs: object) -> dict[str, Array]:
    """Computes the outputs of the head by name, such as `logits` and `retain_logits`, `[batch, classes]`."""
    return self._outputs(self.state.params, self.state.model_state, self.stored(inputs))[0]

  @property
  def backbone(self) -> Any:
    """The trained backbone, which takes inputs in the model's units: scaled and standardised.

    It is an NNX or Equinox module, ready for predictions; an Equinox module with a state comes as
    `(module, state)`. A Linen module is bound to its variables. Plain functions have their parameters here,
    or `(params, model_state)`.
    """
    params, model_state = self.state.params["backbone"], self.state.model_state.get("backbone", {})
    return self.program.network.backbone.bind(params, model_state)

  @functools.cached_property
  def loss_fn(self) -> LossFn:
    """The method's loss, `(params, batch, *, key) -> scalar`, as `jaxreg.flatness` takes it.

    A batch has stored `inputs` and `labels`, as from `whole_batch`, where numbers are standardised. With
    `key=None` nothing is dropped, and BatchNorm uses its running averages.
    """
    return make_loss_fn(self.program, self.state.model_state)

  @functools.cached_property
  def dataset(self) -> Dataset:
    """The data of the run, whose splits have inputs for a call, `run(run.dataset.val.inputs)`.

    They are read again; other data are refused. Features of a table are in the units of the table.
    """
    return self.stored_dataset.in_units_of_data()

  @functools.cached_property
  def stored_dataset(self) -> Dataset:
    """The data of the run as `loss_fn` and `predictions` take them: features of a table are standardised."""
    dataset = load_data(self.config)
    check_same(self.workdir, flatten(self.config), dataset.describe(), EVALUATES)
    return dataset

  def whole_batch(self, examples: int | None = None) -> dict[str, np.ndarray]:
    """Returns the first training examples, by default all, as one batch with equal weights of labels."""
    return whole_batch(self.stored_dataset.train.take(slice(examples)), self.program.target.standard)

  @property
  def checkpoints(self) -> tuple[int, ...]:
    """The steps of the good checkpoints, in order."""
    return tuple(sorted(good_steps(self.workdir)))

  def at(self, step: int) -> "Predictor":
    """Returns the same run at another of its `checkpoints`; the pure functions are shared."""
    step = pick_step(self.workdir, step, self.config.checkpoint.best)  # verifies the files
    state = restore_state(self.program, self.workdir, step, self._replica, self.config.replicas)
    return dataclasses.replace(self, step=step, state=state)

  def stored(self, inputs: Any, *, rows: Sequence[object] | None = None) -> Array:
    """Converts inputs to those that the data source stores; features are standardised.

    `rows` has the numbers of the examples in errors, which otherwise count from 0.
    """
    if np.ma.is_masked(inputs):
      raise ArgumentError("inputs", "must have no masked value; fill the masked values first")
    if self.data.columns and isinstance(inputs, str | os.PathLike):
      inputs = self.read_table(local_path(inputs, "inputs"))
      rows = inputs.index
    if self.data.columns and not isinstance(inputs, np.ndarray | jax.Array):
      inputs = self._table_inputs(inputs)
    standard = self.data.standardized(inputs)
    stored = as_stored(standard, self.input_shape, self.input_dtype, self.scale, self.decoding)
    check_finite(stored, inputs, self.input_names, rows)
    return stored

  def read_table(self, file: Path) -> Any:
    """Reads the columns of the inputs from a Parquet file, or from a CSV file of the training file's form.

    The index numbers the rows: from 0, or as lines of the CSV file, where the names are row 1.
    """
    if not file.is_file():
      raise ArgumentError("inputs", f"{file} is not a file; give a CSV or Parquet file")
    if file.suffix.lower() in (".parquet", ".pq"):
      return read_parquet_rows(self.data.columns, file)
    return read_csv_rows(self.data.columns, file, **self._csv_form)

  @property
  def _csv_form(self) -> dict[str, Any]:
    options = self.config.data.csv if self.config.data.name == "csv" else {}
    return {name: options.get(name, default) for name, default in CSV_FORM.items()}

  def _table_inputs(self, rows: Any) -> np.ndarray:
    """Computes the inputs of rows."""
    if isinstance(rows, list | tuple) and not any(isinstance(row, Mapping) for row in rows):
      return np.asarray(rows)  # numbers in the order of `input_names`
    form = self._csv_form
    # Only files of texts need words for a missing value; elsewhere, such as in Parquet, they are values.
    missing = form["missing"] if self.config.data.name == "csv" else ()
    return inputs_of_rows(self.data.columns, rows, missing, form["decimal"])

  def _scaled(self, inputs: Array) -> Array:
    return in_model_units(inputs, self.input_dtype, self.scale)

  def classify(self, inputs: object, *, key: Key | None = None) -> list[str]:
    """Returns the name of each input's most probable class, or its number if the classes have no names."""
    if not self.num_classes:
      raise ValueError("classify needs a model of classes, got one of numbers")
    best = np.asarray(self(inputs, key=key).argmax(axis=-1))
    if best.ndim != 1:
      raise ValueError(f"classify needs one class for each input, got predictions of shape {best.shape}")
    names = self.class_names or [str(number) for number in range(self.num_classes)]
    return [names[number] for number in best]

  def __repr__(self) -> str:
    shape = ", ".join(map(str, ("batch", *self.input_shape)))
    kind = self.input_dtype
    if is_integer(kind) and self.scale != 1:
      kind += f" in [0, {self.scale:g}], or floating in [0, 1]"
    if self.data.columns:
      kind += ", or rows of a table"
    if self.decoding is not None:
      kind += ", or uint8 images of any size"
    outputs = f"log-probabilities of {self.num_classes} classes" if self.num_classes else "numbers"
    return f"Predictor(inputs [{shape}] {kind} -> {outputs}, step {self.step})"


def load(workdir: str | os.PathLike[str], *, checkpoint: str | int = "latest", replica: int = 0) -> Predictor:
  """Returns the trained model of a work directory, as a compiled function.

  Args:
    workdir: the folder where `run.py` trained, also in a bucket.
    checkpoint: `latest`, `best` on the validation split, or a step.
    replica: the replica, if several were trained. A replica of an ensemble is one member;
      `jaxreg.ensembles.arithmetic` joins the members' predictions.

  Returns:
    `predict(inputs, *, key=None) -> log-probabilities [batch, classes]`; for sequences
    `[batch, length, classes]`. For labels that are numbers it returns float64 numbers, `[batch]` or
    `[batch, targets]`, in the units of the data. Then `predict.interval(inputs)` returns the ends of their
    intervals. Its `repr` says which inputs it takes. It scales inputs as in training, as the data source
    stores them (for MNIST uint8 `[batch, 28, 28, 1]`). Floats count as scaled already. After a training on a
    table, it also takes a data frame, dicts of rows or of columns, or the path of a CSV or Parquet file: a
    missing number becomes the training mean, and a new category is reported. After a training on image files,
    it also takes a list of files, of opened Pillow images, or of uint8 arrays of any size. It scales and
    crops them as the run's evaluation does. One array `[batch, *input_shape]` has finished crops, which it
    takes as they are; `predict(list(images))` scales and crops images of that size. The key is for
    predictions that sample masks, and for `evaluate.mc_samples`; by default it is the run's key.
    `predict.classify(inputs)` returns classes' names, `predict.outputs(inputs)` the outputs of the head by
    name; `predict.backbone` is the trained module.
    `predict.loss_fn` and `predict.whole_batch()` are what `jaxreg.flatness` takes. `predict.dataset.val` and
    the other splits have `inputs` and `labels`. `predict.at(step)` is the run at another of its
    `checkpoints`.

  Raises:
    RunError: if the work directory holds nothing usable.

  Example:
    >>> predict = jaxreg.train.load("runs/dropmax_digits")
    >>> labels = predict(images).argmax(-1)
  """
  folder = user_path(workdir, "workdir")
  return restore_predictor(folder, restore_config(base_config(), folder), checkpoint, replica)


def restore_predictor(folder: epath.Path, config: Config, checkpoint: str | int, replica: int) -> Predictor:
  """Returns the trained model of a work directory, which predicts as `config` says."""
  program, state, data = restore_run(folder, checkpoint, replica, config)
  names = ("input_shape", "input_dtype", "scale", "num_classes", "class_names", "input_names")
  described = {name: getattr(data, name) for name in names}
  return Predictor(
    **described,
    step=int(state.step),
    decoding=decoding_of(config),
    workdir=folder,
    config=config,
    data=data,
    program=program,
    state=state,
    _replica=replica,
  )
