"""What a method is: a head, a per-example loss on its outputs, and a prediction rule."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from jaxreg.train import keys
from jaxreg.typing import Array, Key, PyTree

Outputs = Mapping[str, PyTree]  # what a head returns, by name
Part = Literal["loss", "predict"]
Predicts = Literal["classes", "yes or no", "means", "moments", "quantiles"]
NUMBERS: tuple[Predicts, ...] = ("means", "moments", "quantiles")


@dataclasses.dataclass(frozen=True)
class Method:
  """A head, a loss and a prediction rule, which are plain functions of named arguments.

  Attributes:
    head: `(**options)` to a Linen module, `features -> outputs`. The outputs are a dict whose names are the
      arguments of the loss. The options include what `from_data` names.
    loss: `(*, labels, **outputs, **options) -> [batch]`, or a dict of several terms, whose sum is the loss.
    predict: `(**outputs, **options)` to what `predicts` says.
    terms: the names of the loss's terms.
    draws: the functions that take a key in front, `"loss"` (with `diagnose`), `"predict"` or both.
    diagnose: called as `loss`, with all its options; returns per-example quantities that are only logged.
    soft_labels: whether `loss` also takes probabilities `[batch, classes]` as labels.
    labels: the name of the loss's argument for the labels.
    shared: the options of the loss that `predict` takes, too, and `head` if it has them.
    predicts: what `predict` returns: log-probabilities of `classes` `[batch, classes]`, or of `yes or no` for
      each label. Of labels that are numbers: `means` or `moments`, both `[batch, ..., 2]` of a mean and a
      variance (0 for `means`), or `quantiles` `[batch, ..., levels]` for the option `levels`.
    needs: further fields of `DataSpec` that the head takes, such as `input_shape`.
  """

  head: Callable[..., Any]
  loss: Callable[..., Array | dict[str, Array]]
  predict: Callable[..., Array]
  terms: tuple[str, ...] = ("nll",)
  draws: tuple[Part, ...] = ()
  diagnose: Callable[..., dict[str, Array]] | None = None
  soft_labels: bool = False
  labels: str = "labels"
  shared: tuple[str, ...] = ()
  predicts: Predicts = "classes"
  needs: tuple[str, ...] = ()

  @property
  def from_data(self) -> tuple[str, ...]:
    """The descriptions of the data that the head takes."""
    labels = {"classes": ("num_classes",), "yes or no": ("num_classes", "label_shape")}
    return (*labels.get(self.predicts, ("label_shape",)), *self.needs)

  def key_for(self, part: Part, key: Key) -> tuple[Key, ...]:
    """Returns the arguments in front of those by name: the key for a function that draws, else none."""
    return (keys.again(key),) if part in self.draws else ()

  def predicted(self, key: Key, outputs: Outputs) -> Array:
    """Applies the prediction rule to a head's outputs."""
    return self.predict(*self.key_for("predict", key), **outputs)
