"""A data set on the host: checks, cuts and describes its splits."""

import dataclasses
import functools
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from jaxreg.train.data.images import Decoding, Images
from jaxreg.train.errors import ArgumentError

AnyArray = TypeVar("AnyArray", bound=Any)

LARGEST, SMALLEST = 10.0, 0.1  # of the root mean squares of features that need no remark
PIXELS = 32  # columns of whole numbers in 0 to 255, from which they count as pixels


def moments(values: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """Computes mean and standard deviation over all axes but the last, without NaN; 1 for a constant.

  Sums add one row after another in float64, so that every machine gets the same. They add differences from
  a value, so that a large mean costs no digits.
  """
  flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
  known = ~np.isnan(flat)
  first = flat[known.argmax(axis=0), np.arange(flat.shape[1])]
  count = np.maximum(known.sum(axis=0), 1)

  def mean_of(x: np.ndarray) -> np.ndarray:
    return np.cumsum(np.where(known, x, 0), axis=0)[-1] / count

  shift = mean_of(flat - first)
  distances = flat - first - shift
  # A power of two scales without rounding, so that no square overflows or underflows.
  exponent = np.frexp(np.where(known, np.abs(distances), 0).max(axis=0))[1]
  std = np.ldexp(np.sqrt(mean_of(np.square(np.ldexp(distances, -exponent)))), exponent)
  return tuple((first + shift).tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def standardize(values: Any, mean: ArrayLike, std: ArrayLike) -> np.ndarray:
  """Computes `(values - mean) / std` in float64; returns float32, infinite where that is too large."""
  with np.errstate(over="ignore"):
    return ((np.asarray(values, np.float64) - np.asarray(mean)) / np.asarray(std)).astype(np.float32)


class Standard(NamedTuple):
  """The mean and the standard deviation of the target, or of each of several targets.

  The functions compute in float64 on NumPy arrays `[batch]` or `[batch, targets]`, in any unit of the data.
  """

  means: tuple[float, ...]
  stds: tuple[float, ...]

  def learned(self, labels: np.ndarray) -> np.ndarray:
    """Returns targets in the units of the data as a network learns them, in float32."""
    return standardize(labels, _along_last(self.means, labels), _along_last(self.stds, labels))

  def original(self, outputs: AnyArray) -> AnyArray:
    """Returns the inverse of `learned`."""
    return self.distance(outputs) + _along_last(self.means, outputs)

  def distance(self, outputs: AnyArray) -> AnyArray:
    """Returns differences of learned targets in the units of the data."""
    return outputs * _along_last(self.stds, outputs)


def _along_last(values: tuple[float, ...], like: Any) -> np.ndarray:
  """Returns numbers along the last axis, with as many axes as `like`; one number suits any axis."""
  return np.asarray(values, np.float64).reshape((1,) * (like.ndim - 1) + (-1,))


def is_tokens(dtype: np.dtype | str) -> bool:
  """Tells whether inputs of this dtype are tokens, which reach the model unscaled; bytes are pixels."""
  return np.issubdtype(dtype, np.integer) and np.dtype(dtype) != np.uint8


@dataclasses.dataclass(frozen=True)
class DataSpec:
  """What a run knows of its data without the examples: enough to predict, and to notice other data.

  Fields that `Dataset` has too describe the data.
  """

  input_shape: tuple[int, ...]  # of one example
  input_dtype: str  # of the stored inputs
  num_classes: int
  sizes: Mapping[str, int]  # the number of examples of each split
  scale: float = 1.0
  label_shape: tuple[int, ...] = ()  # `[length]` for sequences, `[labels]` or `[targets]` for several labels
  label_mean: tuple[float, ...] = ()  # of each number, over the training examples; () for classes
  label_std: tuple[float, ...] = ()
  mean: tuple[float, ...] = ()
  std: tuple[float, ...] = ()
  input_mean: tuple[float, ...] = ()
  input_std: tuple[float, ...] = ()
  columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  model: Mapping[str, int] = dataclasses.field(default_factory=dict)
  class_names: tuple[str, ...] = ()
  input_names: tuple[str, ...] = ()
  class_counts: tuple[int, ...] = ()  # training examples of each class; () for several labels an example
  crc32: Mapping[str, int] = dataclasses.field(default_factory=dict)  # a checksum of each split

  @property
  def has_tokens(self) -> bool:
    """Whether the inputs are tokens."""
    return is_tokens(self.input_dtype)

  @property
  def has_numbers(self) -> bool:
    """Whether the labels are numbers, and not classes."""
    return self.num_classes == 0

  @property
  def labels_in_words(self) -> str:
    """The kind of the labels, for a message."""
    if self.has_numbers:
      return "numbers"
    if self.has_tokens or not self.label_shape:
      return f"{self.num_classes} classes"
    return f"{self.label_shape[0]} yes-or-no labels an example"

  def standardized(self, inputs: Any) -> Any:
    """Features in the units of the data as a network takes them; other inputs are returned as they are."""
    if not self.input_mean or np.shape(inputs)[1:] != self.input_shape:
      return inputs
    return standardize(inputs, self.input_mean, self.input_std)

  def in_units_of(self, other: "DataSpec") -> tuple[np.ndarray, np.ndarray]:
    """Returns the factor and shift from inputs standardised for these data to inputs for `other`."""
    mean, std = np.array(self.input_mean or (0.0,)), np.array(self.input_std or (1.0,))
    their_mean, their_std = np.array(other.input_mean or (0.0,)), np.array(other.input_std or (1.0,))
    return (std / their_std).astype(np.float32), ((mean - their_mean) / their_std).astype(np.float32)

  def table(self) -> dict[str, object]:
    """Returns the description as JSON takes it."""
    values = dataclasses.asdict(self).items()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values}

  @classmethod
  def from_table(cls, table: Mapping[str, object]) -> Self:
    """Builds the description from its `table()`."""
    fields = {field.name: table[field.name] for field in dataclasses.fields(cls)}
    values: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return cls(**values)


@dataclasses.dataclass(frozen=True)
class Split:
  """Examples: `inputs` `[n, ...]`, uint8 or floating, and `labels` `[n]`, integer classes or floating.

  Floating labels are numbers, `[n]` or `[n, targets]`, where NaN is a number that is not known. In a split of
  sequences, the inputs are tokens of another integer type, and the labels may be `[n, length]`, where -1 is
  padding. Other examples may have several labels, `[n, labels]`, each 0 or 1 for no or yes, or -1 if it is
  not known. `weights` `[n]` weigh training examples; None weighs all alike. Inputs may also be
  `Images`; then only the images of a batch are decoded.
  """

  inputs: Any
  labels: np.ndarray
  weights: np.ndarray | None = None

  def __len__(self) -> int:
    return len(self.labels)

  @property
  def has_numbers(self) -> bool:
    """Whether the labels are numbers `[n]` or `[n, targets]`, and not classes."""
    return self.labels.dtype.kind == "f" and self.labels.ndim in (1, 2) and not _is_one_hot(self.labels)

  @property
  def labels_in_words(self) -> str:
    """The kind of the labels, for a message."""
    if self.has_numbers:
      return "numbers"
    return "one class" if self.labels.ndim == 1 else f"{self.labels.shape[1]} labels"

  def take(self, index: slice | np.ndarray) -> "Split":
    """Returns the examples at `index`."""
    weights = None if self.weights is None else self.weights[index]
    return Split(self.inputs[index], self.labels[index], weights)

  def counting(self) -> "Split":
    """Returns the examples that have a known label and a weight other than 0: the others teach nothing.

    A single class per example must be known: a check refuses -1.
    """
    rows = self.labels.reshape(len(self), -1)
    counts = known(rows).any(axis=1) | (self.labels.ndim == 1)
    counts &= self.weights is None or self.weights > 0
    return self if counts.all() else self.take(counts)

  def joined(self, other: "Split") -> "Split":
    """Concatenates these examples and the examples of `other`."""
    labels = np.concatenate([self.labels, other.labels])
    both, weights = (self, other), None
    if any(split.weights is not None for split in both):
      weights = np.concatenate([np.ones(len(x)) if x.weights is None else x.weights for x in both])
    if isinstance(self.inputs, Images):
      return Split(self.inputs.joined(other.inputs), labels, weights)
    return Split(np.concatenate([self.inputs, other.inputs]), labels, weights)

  def _problem(self) -> str:
    """Describes what is wrong with the examples; "" if nothing."""
    inputs, labels = self.inputs, self.labels
    if self.has_numbers:
      wrong = ~np.isfinite(labels) if labels.ndim == 1 else np.isinf(labels)
      if wrong.any():
        return f"labels must be finite, got {labels[wrong][0]} at position {np.argwhere(wrong)[0][0]}"
    else:
      several = labels.ndim == 2 and not is_tokens(inputs.dtype)
      integers = labels.ndim in (1, 2) and labels.dtype.kind in "iu"
      if not integers or (several and not _is_several(labels)):
        return f"labels must be integers [n], got {labels.dtype} {labels.shape}{remedy(labels)}"
      if labels.ndim > 1 and len(labels) and not known(labels).any():
        return "no label is known, all are -1"
    if inputs.ndim < 2 or 0 in inputs.shape[1:]:
      return f"inputs must be [n, ...] with values in each, got {inputs.shape}"
    if len(inputs) != len(labels):
      return f"{len(inputs)} inputs but {len(labels)} labels"
    if not len(self):
      return "it has no examples"
    if np.issubdtype(inputs.dtype, np.floating) and not np.isfinite(inputs).all():
      return "inputs have NaN or infinite values"
    if self.weights is not None and (wrong := _wrong_weights(self.weights, len(self))):
      return f"weights must be numbers [{len(self)}] of at least 0, {wrong}"
    return ""

  def check(self, name: str) -> None:
    """Checks that the split of this name holds valid examples."""
    if problem := self._problem():
      raise ArgumentError("", f"split {name}: {problem}")


@dataclasses.dataclass(frozen=True)
class Dataset:
  """Training, validation and test splits; stored inputs, unless tokens, are divided by `scale` on the device.

  `num_classes` is 0 if the labels are numbers.
  `model` holds the keyword arguments that the data give the backbone. `rest` holds training examples that the
  source or a subset left over. `unlabelled` holds the examples that a run uses without their labels.
  `mean` and `std`, a number for each channel, standardise the scaled inputs on the device; () does not.
  `input_mean` and `input_std`, a number for each feature, have standardised the stored inputs already.
  `class_names` has the name of each class, or of each of several labels, if the source knows them;
  `input_names` that of each input, if the data are a table, and `columns` what was learnt for its columns, as
  JSON has it. `remarks` are lines for people, such as which
  files were left out.
  """

  train: Split
  val: Split
  test: Split
  num_classes: int
  scale: float = 1.0
  model: dict[str, int] = dataclasses.field(default_factory=dict)
  rest: Split | None = None
  unlabelled: Split | None = None
  mean: tuple[float, ...] = ()
  std: tuple[float, ...] = ()
  input_mean: tuple[float, ...] = ()
  input_std: tuple[float, ...] = ()
  class_names: tuple[str, ...] = ()
  input_names: tuple[str, ...] = ()
  columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  remarks: tuple[str, ...] = ()

  def splits(self, *others: str) -> dict[str, Split]:
    """Returns the splits by name, and with `others` also `rest` and `unlabelled` where they exist."""
    each = {name: getattr(self, name) for name in ("train", "val", "test", *others)}
    return {name: split for name, split in each.items() if split is not None}

  def class_name(self, label: int) -> str:
    """Returns the name of a class for people, or its number."""
    return repr(self.class_names[label]) if self.class_names else str(label)

  def streams(self) -> bool:
    """Tells whether images are decoded batch by batch."""
    return isinstance(self.train.inputs, Images)

  def decoded_by(self, *, hint: str = "", **options: Any) -> "Dataset":
    """Sets the options of `Decoding` and the `hint` of `Images`, if the inputs are images."""
    if not self.streams():
      return self
    change = {"decoding": Decoding(**options), "hint": hint}
    splits = {
      name: dataclasses.replace(split, inputs=dataclasses.replace(split.inputs, **change))
      for name, split in self.splits("rest").items()
    }
    return dataclasses.replace(self, **splits)

  def standardized(self) -> "Dataset":
    """Standardizes features `[n, features]` by the training examples; returns float32.

    That happens in float64 on the host, so that a feature may have any unit and any offset. The features are
    divided by no scale any more.
    """
    mean, std = moments(self.train.inputs)
    splits = {
      name: dataclasses.replace(split, inputs=standardize(split.inputs, mean, std))
      for name, split in self.splits("rest").items()
    }
    return dataclasses.replace(self, **splits, scale=1.0, input_mean=mean, input_std=std)

  def in_units_of_data(self) -> "Dataset":
    """Undoes `standardized`; returns features in float64, so that standardizing them again changes no bit."""
    if not self.input_mean:
      return self
    mean, std = np.asarray(self.input_mean), np.asarray(self.input_std)
    splits = {
      name: dataclasses.replace(split, inputs=np.asarray(split.inputs, np.float64) * std + mean)
      for name, split in self.splits("rest", "unlabelled").items()
    }
    return dataclasses.replace(self, **splits, input_mean=(), input_std=())

  def limited(self, limit: int) -> "Dataset":
    """Keeps the first `limit` examples of each split, for a smoke run; 0 keeps all."""
    if not limit:
      return self
    first = {name: split.take(slice(limit)) for name, split in self.splits("rest").items()}
    return dataclasses.replace(self, **first)

  def training(self) -> Split:
    """Returns the examples that make batches: the training examples, then the unlabelled ones."""
    return self.train if self.unlabelled is None else self.train.joined(self.unlabelled)

  @property
  def nbytes(self) -> int:
    """The bytes of the stored inputs of all splits."""
    return sum(split.inputs.nbytes for split in self.splits("unlabelled").values())

  def describe(self) -> DataSpec:
    """Returns what a work directory keeps of the data."""
    inputs, labels = self.train.inputs, self.train.labels
    splits = self.splits("unlabelled")
    one_class = self.num_classes and labels.ndim == 1
    label_mean, label_std = ((), ()) if self.num_classes else moments(labels.reshape(len(labels), -1))
    return DataSpec(
      input_shape=inputs.shape[1:],
      input_dtype=str(inputs.dtype),
      num_classes=self.num_classes,
      sizes={name: len(split) for name, split in splits.items()},
      scale=self.scale,
      label_shape=labels.shape[1:],
      label_mean=label_mean,
      label_std=label_std,
      mean=self.mean,
      std=self.std,
      input_mean=self.input_mean,
      input_std=self.input_std,
      columns=self.columns,
      model=self.model,
      class_names=self.class_names,
      input_names=self.input_names,
      class_counts=tuple(np.bincount(labels, minlength=self.num_classes).tolist()) if one_class else (),
      crc32={name: _crc32(split) for name, split in splits.items()},
    )

  def checked(self) -> "Dataset":
    """Returns the training examples that count, and the other splits, if every split can be trained on."""
    for name, split in self.splits().items():
      split.check(name)
    self = dataclasses.replace(self, train=self.train.counting())
    several = () if is_tokens(self.train.inputs.dtype) else self.train.labels.shape[1:]
    named, what = (several[0], "labels") if several else (self.num_classes or 1, "classes")
    if len(self.class_names) not in (0, named):
      raise ArgumentError(
        "", f"class_names must have a name for each of {named} {what}, got {len(self.class_names)}"
      )
    for name, split in self.splits().items():
      if problem := self._problem(split):
        raise ArgumentError("", f"split {name}: {problem}")
    check_apart(self.train, val=self.val, test=self.test)
    return self

  def _problem(self, split: Split) -> str:
    """Says why a valid split does not go together with the training split; "" if it does."""
    train = self.train
    if split is train and (split.labels == split.labels.flat[0]).all():
      what = "classes" if self.num_classes else "values"
      return f"labels must be of at least 2 {what}, all {len(split)} are of one"
    if split.has_numbers == bool(self.num_classes):
      return f"labels must be {'integers' if self.num_classes else 'floating'}, got {split.labels.dtype}"
    if split.inputs.shape[1:] != train.inputs.shape[1:] or split.inputs.dtype != train.inputs.dtype:
      return (
        f"inputs are {split.inputs.dtype} {split.inputs.shape[1:]}, "
        f"in the train split {train.inputs.dtype} {train.inputs.shape[1:]}"
      )
    if split.labels.shape[1:] != train.labels.shape[1:]:
      return f"labels are {split.labels.shape[1:]}, in the train split {train.labels.shape[1:]}"
    if split.labels.ndim > 1 and not is_tokens(split.inputs.dtype):
      unknown = ~known(split.labels).any(axis=0)
      if unknown.any():
        label = self.class_name(int(unknown.argmax()))
        return (
          f"label {label} is known in none of {len(split)} examples; give some, or leave the label out of "
          "all splits"
        )
    if not self.num_classes:
      return ""
    lowest = -1 if split.labels.ndim > 1 else 0  # the padding of a sequence, or a label that is not known
    wrong = (split.labels < lowest) | (split.labels >= self.num_classes)
    if not wrong.any():
      return ""
    at = tuple(np.argwhere(wrong)[0].tolist())
    return (
      f"label {split.labels[at]} at position {', '.join(map(str, at))} is out of range; the classes are 0 to "
      f"{self.num_classes - 1}, as in the train split; leave such examples out, or put some into train"
    )


def unread_line(where: str, others: Iterable[str], fields: Mapping[str, str]) -> str:
  """Returns a line that names splits that nothing reads, or ""; `fields` are those that name the splits."""
  names = ", ".join([*others][:5])
  got = ", ".join(f"{field}={name!r}" for field, name in fields.items())
  return f"{where} has {names} too, not read with {got}" if names else ""


def known(labels: np.ndarray) -> np.ndarray:
  """Tells which labels are known: a class that is not -1, a number that is not NaN."""
  return np.isfinite(labels) if labels.dtype.kind == "f" else labels >= 0


def remedy(labels: np.ndarray) -> str:
  """Returns the end of an error: how to turn these labels into integers `[n]` from 0; "" if they are."""
  if labels.ndim == 2 and labels.shape[1] == 1:
    return "; give labels[:, 0]"
  if labels.ndim == 2 and labels.dtype.kind in "biuf" and _is_one_hot(labels):
    return "; these are one-hot: give labels.argmax(1)"
  if labels.ndim != 1:
    return "; give one label an example"
  if labels.dtype.kind in "USO":
    return (
      "; give numbers and save the names with them: class_names, labels = np.unique(labels, "
      "return_inverse=True), once for the labels of all splits together"
    )
  if labels.dtype.kind not in "iu":
    return "; give labels.astype(int)"
  classes = np.unique(labels)
  if classes.tolist() == [-1, 1]:
    return "; give (labels + 1) // 2"
  if classes.size and classes[0] and classes[-1] - classes[0] == len(classes) - 1:
    return f"; give labels {'+' if classes[0] < 0 else '-'} {abs(int(classes[0]))}"
  if classes.size and (classes[0] or classes[-1] != len(classes) - 1):
    return "; give np.searchsorted(classes, labels) with classes = np.unique of the training labels"
  return ""


def _wrong_weights(weights: np.ndarray, number: int) -> str:
  """Describes what is wrong with the weights of examples; "" if nothing."""
  if weights.shape != (number,) or weights.dtype.kind not in "iuf":
    return f"got {weights.dtype} {weights.shape}"
  odd = ~(np.isfinite(weights) & (weights >= 0))
  if odd.any():
    return f"got {weights[odd.argmax()]} at position {odd.argmax()}"
  if not weights.any():
    return "and not all 0"
  most = weights.max()
  return "" if 1e-30 <= most <= 1e30 else f"the largest from 1e-30 to 1e30, got {most:g}"


def _is_several(labels: np.ndarray) -> bool:
  """Tells whether integers `[n, labels]` are several labels per example, not one class in another form."""
  return labels.shape[1] > 1 and bool(np.isin(labels, (-1, 0, 1)).all()) and not _is_one_hot(labels)


def _is_one_hot(labels: np.ndarray) -> bool:
  return bool(labels.ndim == 2 and np.isin(labels, (0, 1)).all() and (labels.sum(1) == 1).all())


def check_apart(train: Split, **others: Split) -> None:
  """Checks that no other split repeats the training split; of encoded images, it compares some."""
  for name, split in others.items():
    if not np.array_equal(split.labels, train.labels):
      continue
    one, other = train.inputs, split.inputs
    if other.repeats(one) if isinstance(other, Images) else np.array_equal(other, one):
      raise ArgumentError("", f"split {name}: it has the examples of the train split; give others")


def _crc32(split: Split) -> int:
  """Computes a checksum of the examples; encoded images are told apart by their fingerprint."""
  inputs = split.inputs
  arrays = inputs.fingerprint() if isinstance(inputs, Images) else (inputs,)
  arrays = arrays if split.weights is None else (*arrays, split.weights)
  return functools.reduce(
    lambda crc, x: zlib.crc32(np.ascontiguousarray(x).data, crc), (*arrays, split.labels), 0
  )


def scale_remark(
  data: Dataset,
  *,
  scale: str = "its Dataset the scale",
  standardize: str = "its Dataset the mean and the std",
) -> str:
  """Returns a line on the scale of the training inputs if a network learns badly from it, else "".

  `scale` and `standardize` name what divides the inputs, and what standardises the features.
  """
  inputs = data.train.inputs
  if data.scale != 1 or data.mean or isinstance(inputs, Images) or is_tokens(inputs.dtype):
    return ""
  top = float(inputs.max())
  if top > 1 and _are_pixels(inputs):
    divisor = 255 if top > 100 else round(top)
    return f"the inputs are pixels up to {top:g}, and nothing divides them; give {scale}={divisor}"
  if inputs.ndim != 2 or inputs.dtype == np.uint8:
    return ""
  sizes = np.sqrt(np.square(inputs, dtype=np.float64).mean(0))
  if SMALLEST <= sizes.max() <= LARGEST:
    return ""
  return (
    f"the features are not standardised, their root mean squares are {sizes.min():.2g} to {sizes.max():.2g}; "
    f"give {standardize}"
  )


def _are_pixels(inputs: np.ndarray) -> bool:
  """Tells whether the inputs are bytes or look like pixels: images, or whole numbers in many columns."""
  if inputs.dtype == np.uint8:
    return True
  if inputs.min() < 0 or inputs.max() > 255:
    return False
  return inputs.ndim > 2 or (inputs.shape[1] >= PIXELS and bool((inputs == np.round(inputs)).all()))
