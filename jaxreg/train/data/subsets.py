"""Selects the examples of a data set that a run uses, and changes or hides their labels."""

import dataclasses
import math

import numpy as np

from jaxreg.train.data.dataset import Dataset, Split, known
from jaxreg.train.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Subset:
  """The examples of a data set that a run uses, as the fields of `data.subset`; 0 is for all."""

  num_train: int = 0
  num_classes: int = 0
  per_class: int = 0
  drawn: bool = True
  limit: int = 0
  seed: int = 0


ALL = Subset()


def subset(data: Dataset, of: Subset) -> Dataset:
  """Takes the subset of a data set; `rest` gets the training examples that are left over.

  It keeps the first `num_train` training examples, then `num_classes` of their classes with `per_class`
  examples each. Last, it keeps the first `limit` examples of each split. `seed` draws classes and examples,
  so that the smaller of two subsets lies in the larger; unless `drawn`, the first examples of a class are
  kept. The classes keep their order and get new numbers. Validation and test keep all of their examples.
  """
  if of.num_train > len(data.train):
    raise ArgumentError("num_train", f"must be 0 or at most {len(data.train)}, got {of.num_train}")
  if 0 < of.num_train < len(data.train):
    left = data.train.take(slice(of.num_train, None))
    rest = left if data.rest is None else data.rest.joined(left)
    data = dataclasses.replace(data, train=data.train.take(slice(of.num_train)), rest=rest)
  data = _keep_classes(data, of).limited(of.limit)
  for name, split in data.splits().items():
    if len(split) and not known(split.labels).any():
      raise ArgumentError("", f"split {name}: no label is known in the {len(split)} examples that are kept")
  return data


def _keep_classes(data: Dataset, of: Subset) -> Dataset:
  num_classes, per_class, seed = of.num_classes, of.per_class, of.seed
  if not num_classes and not per_class:
    return data
  if not data.num_classes or data.train.labels.ndim != 1:
    raise ArgumentError("", f"needs one class per example, got {data.train.labels_in_words}; leave it at 0")
  if num_classes and not 2 <= num_classes <= data.num_classes:
    raise ArgumentError("num_classes", f"must be 0 or from 2 to {data.num_classes}, got {num_classes}")
  generator = np.random.default_rng(seed)
  classes = np.sort(generator.permutation(data.num_classes)[: num_classes or data.num_classes])
  number = np.full(data.num_classes, -1)
  number[classes] = np.arange(len(classes))

  def keep(split: Split) -> Split:
    kept = split.take(number[split.labels] >= 0)
    return dataclasses.replace(kept, labels=number[kept.labels])

  train, rest = data.train, data.rest
  if per_class:
    # Drawn for every class, whether kept or not, so that a class has the same examples in every subset.
    members = [np.flatnonzero(train.labels == k) for k in range(data.num_classes)]
    members = [generator.permutation(each) for each in members] if of.drawn else members
    smallest = min(len(members[k]) for k in classes)
    if per_class > smallest:
      raise ArgumentError("per_class", f"must be 0 or at most {smallest}, got {per_class}")
    left = train.take(np.sort(np.concatenate([each[per_class:] for each in members])))
    rest = left if rest is None else rest.joined(left)
    train = train.take(np.sort(np.concatenate([each[:per_class] for each in members])))
  splits = {name: keep(split) for name, split in (data.splits() | {"train": train}).items()}
  for name, split in splits.items():
    if not len(split):
      raise ArgumentError(
        "num_classes",
        f"the {name} split has no example of the {len(classes)} classes that seed={seed} draws; give another",
      )
  if rest is not None:
    splits["rest"] = keep(rest)
  names = tuple(data.class_names[k] for k in classes) if data.class_names else ()
  return dataclasses.replace(data, **splits, num_classes=len(classes), class_names=names)


def flip_labels(data: Dataset, *, rate: float = 0.0) -> Dataset:
  """Replaces a fraction `rate` of the training labels, rounded, by other classes, always the same ones."""
  if not rate:
    return data
  labels = data.train.labels
  if not data.num_classes or labels.ndim != 1:
    raise ArgumentError(
      "rate", f"needs one class per example, got {data.train.labels_in_words}; leave it at 0"
    )
  generator = np.random.default_rng(0)
  chosen = generator.permutation(len(labels))[: round(rate * len(labels))]
  shifts = generator.integers(1, data.num_classes, len(chosen))
  flipped = labels.copy()
  flipped[chosen] = (labels[chosen] + shifts) % data.num_classes
  return dataclasses.replace(data, train=dataclasses.replace(data.train, labels=flipped))


def hide_labels(data: Dataset) -> Dataset:
  """Keeps the left-over training examples as `unlabelled`, without their labels."""
  if data.rest is None or not len(data.rest):
    raise ArgumentError(
      "batch_size", "no training examples are left over; give 0, or a subset with fewer examples per class"
    )
  labels = data.rest.labels
  hidden = Split(data.rest.inputs, np.full_like(labels, -1 if data.num_classes else np.nan))
  return dataclasses.replace(data, unlabelled=hidden, rest=None)


def hold_out(
  examples: Split, validation_fraction: float, class_names: tuple[str, ...] = ()
) -> tuple[Split, Split]:
  """Splits the examples into a part to keep and a fraction for validation, always the same.

  Examples of one class each are stratified. The names of the classes are for errors.
  """
  from sklearn.model_selection import train_test_split

  one = examples.labels.ndim == 1 and not examples.has_numbers
  classes, sizes = np.unique(examples.labels if one else np.zeros(len(examples)), return_counts=True)
  number, held = len(examples), math.ceil(validation_fraction * len(examples))
  if sizes.min() < 2:
    label = int(classes[sizes.argmin()])
    name = repr(class_names[label]) if class_names else label
    raise ArgumentError(
      "validation_fraction",
      f"got {validation_fraction}, but class {name} has a single training example, which cannot be both kept "
      "and held out; add examples, leave the class out, or give a validation split of its own",
    )
  if not len(classes) <= held <= number - len(classes):
    raise ArgumentError(
      "validation_fraction",
      f"got {validation_fraction}, which is {held} of {number} training examples; each of the {len(classes)} "
      f"classes needs one to keep and one to hold out: give a fraction of {len(classes)} to "
      f"{number - len(classes)} examples, or a split of its own",
    )
  index, strata = np.arange(number), examples.labels if one else None
  parts = train_test_split(index, test_size=validation_fraction, random_state=0, stratify=strata)
  kept, held_out = (examples.take(np.sort(part)) for part in parts)
  return kept, held_out
