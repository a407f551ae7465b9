"""A data set on the host: its splits, checked, cut and described."""

import dataclasses
import functools
import zlib
from typing import Any

import numpy as np

from jaxreg.train.errors import RunError
from jaxreg.train.images import Decoding, Images


def is_tokens(dtype: Any) -> bool:
  """Whether inputs of that type are tokens, which reach the model as they are; bytes are pixels."""
  return np.issubdtype(dtype, np.integer) and np.dtype(dtype) != np.uint8


@dataclasses.dataclass(frozen=True)
class Split:
  """Examples: `inputs` `[n, ...]`, uint8 or floating, and integer `labels` `[n]`.

  Of sequences, the inputs are tokens, of another integer type, and the labels may be `[n, length]`, where -1
  is padding. Inputs may also be `Images`, of which only those of a batch are decoded.
  """

  inputs: Any
  labels: np.ndarray

  def __len__(self) -> int:
    return len(self.labels)

  def take(self, index: Any) -> "Split":
    return Split(self.inputs[index], self.labels[index])

  def joined(self, other: "Split") -> "Split":
    labels = np.concatenate([self.labels, other.labels])
    if isinstance(self.inputs, Images):
      return Split(self.inputs.joined(other.inputs), labels)
    return Split(np.concatenate([self.inputs, other.inputs]), labels)

  def check(self, where: str) -> None:
    """Checks that these are examples; `where` names them in the error.

    Raises:
      RunError: if they are not.
    """
    allowed = (1, 2) if is_tokens(self.inputs.dtype) else (1,)
    if self.labels.ndim not in allowed or not np.issubdtype(self.labels.dtype, np.integer):
      raise RunError(f"{where}: labels must be integers [n], got {self.labels.dtype} {self.labels.shape}")
    if self.inputs.ndim < 2:
      raise RunError(f"{where}: inputs must be [n, ...], got {self.inputs.shape}")
    if len(self.inputs) != len(self.labels):
      raise RunError(f"{where}: {len(self.inputs)} inputs but {len(self.labels)} labels")
    if not len(self):
      raise RunError(f"{where}: it has no examples")
    if np.issubdtype(self.inputs.dtype, np.floating) and not np.isfinite(self.inputs).all():
      raise RunError(f"{where}: inputs have NaN or infinite values")


@dataclasses.dataclass(frozen=True)
class Dataset:
  """Training, validation and test splits; stored inputs, unless tokens, are divided by `scale` on the device.

  `model` is what the backbone must know of the data, as keyword arguments; `rest` what the source has left of
  the training examples, `unlabelled` those that a run uses without their labels.
  """

  train: Split
  val: Split
  test: Split
  num_classes: int
  scale: float = 1.0
  model: dict[str, int] = dataclasses.field(default_factory=dict)
  rest: Split | None = None
  unlabelled: Split | None = None

  def splits(self) -> dict[str, Split]:
    return {"train": self.train, "val": self.val, "test": self.test}

  def streams(self) -> bool:
    """Whether images are decoded batch by batch."""
    return isinstance(self.train.inputs, Images)

  def decoded_by(self, **options: Any) -> "Dataset":
    """With the options of `Decoding`, which concern images that are decoded batch by batch."""
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

  def subset(self, *, num_classes: int = 0, per_class: int = 0, seed: int = 0) -> "Dataset":
    """Some of the classes, and of each so many training examples; 0 for all.

    Both are drawn by `seed`, so that of two subsets the smaller lies in the larger. The classes keep their
    order and are numbered anew; validation and test have all examples of theirs.

    Raises:
      RunError: if there are not so many.
    """
    if not num_classes and not per_class:
      return self
    if self.train.labels.ndim != 1:
      raise RunError(
        f"data.subset: needs a label an example, these have {self.train.labels.shape[1]}; leave it at 0"
      )
    if num_classes and not 2 <= num_classes <= self.num_classes:
      raise RunError(f"data.subset.num_classes: must be 0 or from 2 to {self.num_classes}, got {num_classes}")
    generator = np.random.default_rng(seed)
    classes = np.sort(generator.permutation(self.num_classes)[: num_classes or self.num_classes])
    number = np.full(self.num_classes, -1)
    number[classes] = np.arange(len(classes))

    def of_classes(split: Split) -> Split:
      kept = split.take(number[split.labels] >= 0)
      return Split(kept.inputs, number[kept.labels])

    train, rest = self.train, self.rest
    if per_class:
      # Drawn for every class, whether it is kept or not, so that fewer classes have the same examples.
      members = [generator.permutation(np.flatnonzero(train.labels == k)) for k in range(self.num_classes)]
      smallest = min(len(members[k]) for k in classes)
      if per_class > smallest:
        raise RunError(f"data.subset.per_class: must be 0 or at most {smallest}, got {per_class}")
      left = train.take(np.sort(np.concatenate([each[per_class:] for each in members])))
      rest = left if rest is None else rest.joined(left)
      train = train.take(np.sort(np.concatenate([each[:per_class] for each in members])))
    splits = {name: of_classes(split) for name, split in (self.splits() | {"train": train}).items()}
    for name, split in splits.items():
      if not len(split):
        raise RunError(
          f"data.subset.num_classes: the {name} split has no example of the {len(classes)} classes that "
          f"data.subset.seed={seed} draws; give another"
        )
    if rest is not None:
      splits["rest"] = of_classes(rest)
    return dataclasses.replace(self, **splits, num_classes=len(classes))

  def with_flipped_labels(self, *, rate: float = 0.0, seed: int = 0) -> "Dataset":
    """With that share of the training labels, rounded, replaced by another class; both are drawn by `seed`.

    Raises:
      RunError: if `rate` is outside [0, 1], or labels are not one an example.
    """
    if not 0 <= rate <= 1:
      raise RunError(f"data.flipped_labels.rate: must lie in [0, 1], got {rate}")
    if not rate:
      return self
    labels = self.train.labels
    if labels.ndim != 1:
      raise RunError(
        f"data.flipped_labels: needs a label an example, these have {labels.shape[1]}; leave the rate at 0"
      )
    generator = np.random.default_rng(seed)
    chosen = generator.permutation(len(labels))[: round(rate * len(labels))]
    shifts = generator.integers(1, self.num_classes, len(chosen))
    flipped = labels.copy()
    flipped[chosen] = (labels[chosen] + shifts) % self.num_classes
    return dataclasses.replace(self, train=Split(self.train.inputs, flipped))

  def with_unlabelled(self) -> "Dataset":
    """With the rest of the training examples, their labels taken away.

    Raises:
      RunError: if nothing is left.
    """
    if self.rest is None or not len(self.rest):
      raise RunError(
        "data.unlabelled.batch_size: no training examples are left over; give 0, or fewer with labels by "
        "data.subset.per_class"
      )
    hidden = Split(self.rest.inputs, np.full(len(self.rest), -1))
    return dataclasses.replace(self, unlabelled=hidden, rest=None)

  def without_rest(self) -> "Dataset":
    """Without what is left over, which nothing needs."""
    return dataclasses.replace(self, rest=None)

  def training(self) -> Split:
    """What batches are made of: the training examples, then the unlabelled ones."""
    return self.train if self.unlabelled is None else self.train.joined(self.unlabelled)

  @property
  def nbytes(self) -> int:
    """What the inputs of all splits take as they are stored."""
    more = 0 if self.unlabelled is None else self.unlabelled.inputs.nbytes
    return more + sum(split.inputs.nbytes for split in self.splits().values())

  def describe(self) -> dict[str, Any]:
    """What a work directory remembers of its data: enough to predict, and to notice other data."""
    # What goes without saying is not said: earlier versions did not know of it.
    label_shape = list(self.train.labels.shape[1:])
    more = {"label_shape": label_shape, "model": self.model} if label_shape or self.model else {}
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
    """Returns the data set if every split can be trained on.

    Raises:
      RunError: naming the split, what it holds and what is allowed.
    """
    for name, split in self.splits().items():
      where = f"{source}, split {name}"
      split.check(where)
      if (
        split.inputs.shape[1:] != self.train.inputs.shape[1:] or split.inputs.dtype != self.train.inputs.dtype
      ):
        raise RunError(
          f"{where}: inputs are {split.inputs.dtype} {split.inputs.shape[1:]}, "
          f"those of train {self.train.inputs.dtype} {self.train.inputs.shape[1:]}"
        )
      if split.labels.shape[1:] != self.train.labels.shape[1:]:
        raise RunError(
          f"{where}: labels are {split.labels.shape[1:]}, those of train {self.train.labels.shape[1:]}"
        )
      lowest = -1 if split.labels.ndim > 1 else 0  # the padding of a sequence
      wrong = (split.labels < lowest) | (split.labels >= self.num_classes)
      if wrong.any():
        at = tuple(np.argwhere(wrong)[0].tolist())
        raise RunError(
          f"{where}: label {split.labels[at]} at position {', '.join(map(str, at))} is out of range; "
          f"the classes are 0 to {self.num_classes - 1}"
        )
    return self


def _crc32(*arrays: np.ndarray) -> int:
  return functools.reduce(lambda crc, x: zlib.crc32(np.ascontiguousarray(x).data, crc), arrays, 0)


def _identity(inputs: Any) -> tuple[np.ndarray, ...]:
  """Arrays that differ where the inputs do."""
  return inputs.fingerprint() if isinstance(inputs, Images) else (inputs,)


def hold_out(examples: Split, fraction: float, where: str) -> tuple[Split, Split]:
  """The examples without a part for validation, and that part: stratified, always the same.

  Raises:
    RunError: naming `where` the fraction was given, if it cannot be.
  """
  from sklearn.model_selection import train_test_split

  try:
    kept, held = train_test_split(
      np.arange(len(examples)), test_size=fraction, random_state=0, stratify=examples.labels
    )
  except ValueError as error:
    raise RunError(f"{where}: got {fraction}: {error}") from error
  return examples.take(np.sort(kept)), examples.take(np.sort(held))
