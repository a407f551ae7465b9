"""The augmentations of a run, completed by the data's scale and classes: `(key, batch) -> batch`."""

from collections.abc import Callable, Sequence

from jaxreg.train.lookup import Chosen
from jaxreg.typing import Array, Batch, Key


def make_augmentations(
  named: Sequence[Chosen],
  label_noises: Sequence[Callable[..., Array]],
  *,
  scale: float,
  num_classes: int,
  unlabelled: bool,
) -> list[Callable[[Key, Batch], Batch]]:
  """The augmentations in their order; label noise comes first, before augmentations that mix labels.

  Args:
    named: functions `(key, batch, ...) -> batch`, each with its options.
    label_noises: `(key, labels, *, num_classes) -> labels`.
    scale: the largest value of an input.
    num_classes: the number of classes of the labels; 0 for numbers, which mix as they are.
    unlabelled: whether some examples have no label.
  """
  given = {"value_range": (0.0, scale), "num_classes": num_classes or None}
  made = [_on_labels(noise, num_classes) for noise in label_noises]
  for chosen in named:
    if unlabelled and chosen.needs("num_classes"):
      raise ValueError(f"{chosen.name} mixes labels, and some examples have no label; leave it out")
    made.append(chosen.bound(**given))
  return made


def _on_labels(noise: Callable[..., Array], num_classes: int) -> Callable[[Key, Batch], Batch]:
  def augmentation(key: Key, batch: Batch) -> Batch:
    return {**batch, "labels": noise(key, batch["labels"], num_classes=num_classes)}

  return augmentation
