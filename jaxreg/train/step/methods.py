"""A method: a head, a per-example loss on its outputs, and a prediction rule.

Heads return a dict whose names are the arguments of the loss. A method needs a loss in `losses/`, a row in
`REGISTRY`, a config and a test.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

from flax import linen as nn

from jaxreg import models
from jaxreg.models._method_heads import regression_head
from jaxreg.train.step import method_adapters as rules
from jaxreg.typing import Array

Predicts = Literal["classes", "yes or no", "means", "moments", "quantiles"]
NUMBERS: tuple[Predicts, ...] = ("means", "moments", "quantiles")


@dataclasses.dataclass(frozen=True)
class Method:
  """A head, a loss and a prediction rule.

  Attributes:
    head: `(**options)` to a Linen module, `features -> outputs`; the options have what
      `of_data` names.
    loss: `(key, *, labels, **outputs, **options)` to per-example terms by name; the loss is their sum.
    predict: `(key, *, **outputs, **options)` to what `predicts` says.
    terms: the names of the loss's terms.
    diagnose: called as `loss`, with all its options; returns per-example quantities that are only logged.
    soft_labels: whether `loss` also takes probabilities `[batch, classes]` as labels.
    shared: the options of the loss that `predict` takes, too, and `head` if it has them.
    predicts: what `predict` returns: log-probabilities of `classes` `[batch, classes]`, or of `yes or no` for
      each label. Of labels that are numbers: `means` or `moments`, both `[batch, ..., 2]` of a mean and a
      variance (0 for `means`), or `quantiles` `[batch, ..., levels]` for the option `levels`.
  """

  head: Callable[..., nn.Module]
  loss: Callable[..., dict[str, Array]]
  predict: Callable[..., Array]
  terms: tuple[str, ...] = ("nll",)
  diagnose: Callable[..., dict[str, Array]] | None = None
  soft_labels: bool = False
  shared: tuple[str, ...] = ()
  predicts: Predicts = "classes"

  @property
  def of_data(self) -> tuple[str, ...]:
    """What the data tell the head."""
    if self.predicts == "classes":
      return ("num_classes",)
    return ("num_classes", "label_shape") if self.predicts == "yes or no" else ("label_shape",)


def of_logits(loss: Callable[..., Array], term: str, *, soft_labels: bool = False) -> Method:
  """The method for a loss of `(logits, labels, *, ...)`: a linear head, and softmax as its prediction rule.

  Args:
    loss: a per-example loss.
    term: the name of the loss among the metrics.
    soft_labels: whether the loss also takes probabilities as labels.
  """
  return Method(
    models.SoftmaxHead,
    rules.single(loss, term),
    rules.predict_softmax,
    terms=(term,),
    soft_labels=soft_labels,
  )


def of_outputs(loss: Callable[..., Array], term: str) -> Method:
  """The method for a loss of `(outputs, targets, *, ...)`: a linear head whose outputs are the prediction."""
  parts = (regression_head, rules.of_targets(loss, term), rules.predict_means)
  return Method(*parts, terms=(term,), predicts="means")
