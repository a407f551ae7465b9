"""A data set on the host: checks, cuts and describes its splits."""

import dataclasses
import functools
import zlib
from typing import Any

import numpy as np

from jaxreg.train.data.images import Decoding, Images
from jaxreg.train.errors import RunError


def is_tokens(dtype: Any) -> bool:
  """Whether inputs of this dtype are tokens, which reach the model unscaled; bytes are pixels."""
  return np.issubdtype(dtype, np.integer) and np.dtype(dtype) != np.uint8


@dataclasses.dataclass(frozen=True)
class Split:
  """Examples: `inputs` `[n, ...]`, uint8 or floating, and integer `labels` `[n]`.

  In a split of sequences, the inputs are tokens of another integer type, and the labels may be `[n, length]`,
  where -1 is padding. Inputs may also be `Images`; then only the images of a batch are decoded.
  """

  inputs: Any
  labels: np.ndarray

  def __len__(self) -> int:
    return len(self.labels)

  def take(self, index: Any) -> "Split":
    """The examples at `index`: a slice or an array of indices."""
    return Split(self.inputs[index], self.labels[index])

  def joined(self, other: "Split") -> "Split":
    """These examples, then those of `other`."""
    labels = np.concatenate([self.labels, other.labels])
    if isinstance(self.inputs, Images):
      return Split(self.inputs.joined(other.inputs), labels)
    return Split(np.concatenate([self.inputs, other.inputs]), labels)

  def check(self, where: str) -> None:
    """Checks that the split holds valid examples; `where` names the split in the error.

    Raises:
      RunError: if it does not.
    """
    allowed = (1, 2) if is_tokens(self.inputs.dtype) else (1,)
    if self.labels.ndim not in allowed or not np.issubdtype(self.labels.dtype, np.integer):
      raise RunError(
        f"{where}: labels must be integers [n], got {self.labels.dtype} {self.labels.shape}"
        f"{remedy(self.labels)}"
      )
    if self.inputs.ndim < 2 or 0 in self.inputs.shape[1:]:
      raise RunError(f"{where}: inputs must be [n, ...] with values in each, got {self.inputs.shape}")
    if len(self.inputs) != len(self.labels):
      raise RunError(f"{where}: {len(self.inputs)} inputs but {len(self.labels)} labels")
    if not len(self):
      raise RunError(f"{where}: it has no examples")
    if np.issubdtype(self.inputs.dtype, np.floating) and not np.isfinite(self.inputs).all():
      raise RunError(f"{where}: inputs have NaN or infinite values")


@dataclasses.dataclass(frozen=True)
class Dataset:
  """Training, validation and test splits; stored inputs, unless tokens, are divided by `scale` on the device.

  `model` holds the keyword arguments that the data give the backbone. `rest` holds training examples that the
  source or a subset left over. `unlabelled` holds the examples that a run uses without their labels.
  `mean` and `std`, a number for each channel, standardise the scaled inputs on the device; () does not.
  `class_names` has the name of each class, if the source knows them. `remarks` are lines for people, such as
  which files were left out.
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
  class_names: tuple[str, ...] = ()
  remarks: tuple[str, ...] = ()

  def splits(self) -> dict[str, Split]:
    """The splits by name."""
    return {"train": self.train, "val": self.val, "test": self.test}

  def class_name(self, label: int) -> str:
    """The name of a class for people, or its number."""
    return repr(self.class_names[label]) if self.class_names else str(label)

  def streams(self) -> bool:
    """Whether images are decoded batch by batch."""
    return isinstance(self.train.inputs, Images)

  def decoded_by(self, **options: Any) -> "Dataset":
    """The data set with these options of `Decoding`, if its images are decoded batch by batch."""
    if not self.streams():
      return self
    decoding = Decoding(**options)
    splits = {
      name: dataclasses.replace(split, inputs=dataclasses.replace(split.inputs, decoding=decoding))
      for name, split in {**self.splits(), "rest": self.rest}.items()
      if split is not None
    }
    return dataclasses.replace(self, **splits)

  def limited(self, limit: int) -> "Dataset":
    """The first `limit` examples of each split, for a smoke run; 0 for all."""
    if not limit:
      return self
    first = {name: split.take(slice(limit)) for name, split in self.splits().items()}
    if self.rest is not None:
      first["rest"] = self.rest.take(slice(limit))
    return dataclasses.replace(self, **first)

  def without_rest(self) -> "Dataset":
    """The data set without `rest`, for runs that do not need it."""
    return dataclasses.replace(self, rest=None)

  def training(self) -> Split:
    """The examples that make batches: the training examples, then the unlabelled ones."""
    return self.train if self.unlabelled is None else self.train.joined(self.unlabelled)

  @property
  def nbytes(self) -> int:
    """The bytes of the stored inputs of all splits."""
    more = 0 if self.unlabelled is None else self.unlabelled.inputs.nbytes
    return more + sum(split.inputs.nbytes for split in self.splits().values())

  def describe(self) -> dict[str, Any]:
    """The description of the data in a work directory: enough to predict, and to notice other data."""
    # Fields with their usual values are left out, because earlier versions did not have them.
    label_shape = list(self.train.labels.shape[1:])
    more = {"label_shape": label_shape, "model": self.model} if label_shape or self.model else {}
    if self.mean:
      more |= {"mean": list(self.mean), "std": list(self.std)}
    if self.class_names:
      more["class_names"] = list(self.class_names)
    splits = self.splits() | ({} if self.unlabelled is None else {"unlabelled": self.unlabelled})
    return {
      **more,
      "num_classes": self.num_classes,
      "input_shape": list(self.train.inputs.shape[1:]),
      "input_dtype": str(self.train.inputs.dtype),
      "scale": self.scale,
      "sizes": {name: len(split) for name, split in splits.items()},
      "crc32": {name: _crc32(*_identity(split.inputs), split.labels) for name, split in splits.items()},
    }

  def checked(self, source: str) -> "Dataset":
    """Returns the data set if every split can be trained on."""
    for name, split in self.splits().items():
      where = f"{source}, split {name}"
      split.check(where)
      if split is self.train and (split.labels == split.labels.flat[0]).all():
        raise RunError(f"{where}: labels must be of at least 2 classes, all {len(split)} are of one")
      if (
        split.inputs.shape[1:] != self.train.inputs.shape[1:] or split.inputs.dtype != self.train.inputs.dtype
      ):
        raise RunError(
          f"{where}: inputs are {split.inputs.dtype} {split.inputs.shape[1:]}, "
          f"in the train split {self.train.inputs.dtype} {self.train.inputs.shape[1:]}"
        )
      if split.labels.shape[1:] != self.train.labels.shape[1:]:
        raise RunError(
          f"{where}: labels are {split.labels.shape[1:]}, in the train split {self.train.labels.shape[1:]}"
        )
      lowest = -1 if split.labels.ndim > 1 else 0  # the padding of a sequence
      wrong = (split.labels < lowest) | (split.labels >= self.num_classes)
      if wrong.any():
        at = tuple(np.argwhere(wrong)[0].tolist())
        raise RunError(
          f"{where}: label {split.labels[at]} at position {', '.join(map(str, at))} is out of range; "
          f"the classes are 0 to {self.num_classes - 1}, those of the train split; leave such examples out, "
          "or put some into train"
        )
    if len(self.class_names) not in (0, self.num_classes):
      raise RunError(
        f"{source}: class_names must have a name for each of {self.num_classes} classes, "
        f"got {len(self.class_names)}"
      )
    check_apart(source, self.train, val=self.val, test=self.test)
    return self


def remedy(labels: np.ndarray) -> str:
  """What makes integers `[n]` from 0 of these labels, as the end of an error; empty if they need nothing."""
  if labels.ndim == 2 and labels.shape[1] == 1:
    return "; give labels[:, 0]"
  if labels.ndim == 2 and labels.dtype.kind in "biuf" and _is_one_hot(labels):
    return "; these are one-hot: give labels.argmax(1)"
  if labels.ndim != 1:
    return "; give one label an example"
  if labels.dtype.kind in "USO":
    return (
      "; give numbers and save the names beside them: class_names, labels = np.unique(labels, "
      "return_inverse=True), once for the labels of all splits together"
    )
  if labels.dtype.kind == "f" and not (np.isfinite(labels) & (labels == np.round(labels))).all():
    return "; these are not classes, and only classes can be learned"
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


def _is_one_hot(labels: np.ndarray) -> bool:
  return bool(((labels == 0) | (labels == 1)).all() and (labels.sum(1) == 1).all())


def check_apart(source: str, train: Split, **others: Split) -> None:
  """Checks that no other split repeats the training split; sources of encoded images compare their files."""
  for name, split in others.items():
    if isinstance(split.inputs, Images) or not np.array_equal(split.labels, train.labels):
      continue
    if np.array_equal(split.inputs, train.inputs):
      raise RunError(f"{source}, split {name}: it has the examples of the train split; give others")


def _crc32(*arrays: np.ndarray) -> int:
  return functools.reduce(lambda crc, x: zlib.crc32(np.ascontiguousarray(x).data, crc), arrays, 0)


def _identity(inputs: Any) -> tuple[np.ndarray, ...]:
  """Arrays that differ if the inputs differ."""
  return inputs.fingerprint() if isinstance(inputs, Images) else (inputs,)
