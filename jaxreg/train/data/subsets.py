"""Which of the examples of a data set a run uses, and with which labels."""

import dataclasses

import numpy as np

from jaxreg.train.data.dataset import Dataset, Split
from jaxreg.train.errors import RunError


def subset(data: Dataset, *, num_classes: int = 0, per_class: int = 0, seed: int = 0) -> Dataset:
  """Some of the classes, and of each so many training examples; 0 for all.

  Both are drawn by `seed`, so that of two subsets the smaller lies in the larger. The classes keep their
  order and are numbered anew; validation and test have all examples of theirs.

  Raises:
    RunError: if there are not so many.
  """
  if not num_classes and not per_class:
    return data
  if data.train.labels.ndim != 1:
    raise RunError(
      f"data.subset: needs a label an example, these have {data.train.labels.shape[1]}; leave it at 0"
    )
  if num_classes and not 2 <= num_classes <= data.num_classes:
    raise RunError(f"data.subset.num_classes: must be 0 or from 2 to {data.num_classes}, got {num_classes}")
  generator = np.random.default_rng(seed)
  classes = np.sort(generator.permutation(data.num_classes)[: num_classes or data.num_classes])
  number = np.full(data.num_classes, -1)
  number[classes] = np.arange(len(classes))

  def of_classes(split: Split) -> Split:
    kept = split.take(number[split.labels] >= 0)
    return Split(kept.inputs, number[kept.labels])

  train, rest = data.train, data.rest
  if per_class:
    # Drawn for every class, whether it is kept or not, so that fewer classes have the same examples.
    members = [generator.permutation(np.flatnonzero(train.labels == k)) for k in range(data.num_classes)]
    smallest = min(len(members[k]) for k in classes)
    if per_class > smallest:
      raise RunError(f"data.subset.per_class: must be 0 or at most {smallest}, got {per_class}")
    left = train.take(np.sort(np.concatenate([each[per_class:] for each in members])))
    rest = left if rest is None else rest.joined(left)
    train = train.take(np.sort(np.concatenate([each[:per_class] for each in members])))
  splits = {name: of_classes(split) for name, split in (data.splits() | {"train": train}).items()}
  for name, split in splits.items():
    if not len(split):
      raise RunError(
        f"data.subset.num_classes: the {name} split has no example of the {len(classes)} classes that "
        f"data.subset.seed={seed} draws; give another"
      )
  if rest is not None:
    splits["rest"] = of_classes(rest)
  return dataclasses.replace(data, **splits, num_classes=len(classes))


def flip_labels(data: Dataset, *, rate: float = 0.0, seed: int = 0) -> Dataset:
  """The data with that share of the training labels, rounded, replaced by other classes, drawn by `seed`.

  Raises:
    RunError: if `rate` is outside [0, 1], or labels are not one an example.
  """
  if not 0 <= rate <= 1:
    raise RunError(f"data.flipped_labels.rate: must lie in [0, 1], got {rate}")
  if not rate:
    return data
  labels = data.train.labels
  if labels.ndim != 1:
    raise RunError(
      f"data.flipped_labels: needs a label an example, these have {labels.shape[1]}; leave the rate at 0"
    )
  generator = np.random.default_rng(seed)
  chosen = generator.permutation(len(labels))[: round(rate * len(labels))]
  shifts = generator.integers(1, data.num_classes, len(chosen))
  flipped = labels.copy()
  flipped[chosen] = (labels[chosen] + shifts) % data.num_classes
  return dataclasses.replace(data, train=Split(data.train.inputs, flipped))


def hide_labels(data: Dataset) -> Dataset:
  """The data with the rest of the training examples beside them, their labels taken away.

  Raises:
    RunError: if nothing is left.
  """
  if data.rest is None or not len(data.rest):
    raise RunError(
      "data.unlabelled.batch_size: no training examples are left over; give 0, or fewer with labels by "
      "data.subset.per_class"
    )
  hidden = Split(data.rest.inputs, np.full(len(data.rest), -1))
  return dataclasses.replace(data, unlabelled=hidden, rest=None)


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
