"""A method: a head, a per-example loss on its outputs, and a prediction rule.

Heads return a dict whose names are the arguments of the loss. A method needs a loss in `losses/`, a row in
`REGISTRY`, a config and a test.
"""

import dataclasses
from collections.abc import Callable

from flax import linen as nn

from jaxreg import models
from jaxreg.train.step import method_adapters as rules
from jaxreg.typing import Array


@dataclasses.dataclass(frozen=True)
class Method:
  """A head, a loss and a prediction rule.

  Attributes:
    head: `(num_classes, **options)` to a Linen module, `features -> outputs`.
    loss: `(key, *, labels, **outputs, **options)` to per-example terms by name; the loss is their sum.
    predict: `(key, *, **outputs, **options)` to log-probabilities `[batch, classes]`.
    terms: the names of the loss's terms.
    diagnose: called as `loss`, with all its options; returns per-example quantities that are only logged.
    soft_labels: whether `loss` also takes probabilities `[batch, classes]` as labels.
    shared: the options of the loss that `predict` takes, too.
  """

  head: Callable[..., nn.Module]
  loss: Callable[..., dict[str, Array]]
  predict: Callable[..., Array]
  terms: tuple[str, ...] = ("nll",)
  diagnose: Callable[..., dict[str, Array]] | None = None
  soft_labels: bool = False
  shared: tuple[str, ...] = ()


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
