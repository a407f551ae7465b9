"""The methods that `method.name` can name: a head, a per-example loss on its outputs, a prediction rule.

Heads return a dict whose names are the arguments of the loss. A method needs a row here, a loss in `losses/`,
a config and a test. A method from outside is a `Method` or a loss in any module, named `module:NAME`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxreg import losses, models
from jaxreg.losses._deterministic_dropmax import deterministic_dropmax_terms
from jaxreg.losses._dropmax_qp import dropmax_qp_terms
from jaxreg.train.lookup import find, short, takes
from jaxreg.train.step import method_adapters as rules
from jaxreg.typing import Array


@dataclasses.dataclass(frozen=True)
class Method:
  """A head, a loss and a prediction rule.

  Attributes:
    head: `(num_classes, **options)` to a Linen module, `features -> outputs`.
    loss: `(key, *, labels, **outputs, **options)` to per-example terms by name; the loss is their sum.
    predict: `(key, *, **outputs, **options)` to log-probabilities `[batch, classes]`; an option without a
      default takes the value of the loss's option.
    terms: the names of the loss's terms.
    diagnose: like `loss`, but it returns per-example quantities that are only logged.
    soft_labels: whether `loss` also takes probabilities `[batch, classes]` as labels.
  """

  head: Callable[..., Any]
  loss: Callable[..., dict[str, Array]]
  predict: Callable[..., Array]
  terms: tuple[str, ...] = ("nll",)
  diagnose: Callable[..., dict[str, Array]] | None = None
  soft_labels: bool = False


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


METHODS = {
  "softmax": of_logits(losses.softmax_cross_entropy, "nll", soft_labels=True),
  "label_smoothing": of_logits(losses.label_smoothing, "label_smoothing", soft_labels=True),
  "focal": of_logits(losses.focal, "focal", soft_labels=True),
  "poly_loss": of_logits(losses.poly_loss, "poly_loss", soft_labels=True),
  "confidence_penalty": of_logits(losses.confidence_penalty, "confidence_penalty", soft_labels=True),
  "large_margin": of_logits(losses.large_margin, "large_margin"),
  "logit_adjustment": Method(
    models.SoftmaxHead, rules.logit_adjustment, rules.predict_softmax, soft_labels=True
  ),
  "cosface": Method(
    models.CosineHead, rules.single(losses.cosface, "cosface"), rules.predict_cosine, terms=("cosface",)
  ),
  "arcface": Method(
    models.CosineHead, rules.single(losses.arcface, "arcface"), rules.predict_cosine, terms=("arcface",)
  ),
  "bi_tempered": Method(
    models.SoftmaxHead,
    rules.single(losses.bi_tempered, "bi_tempered"),
    rules.predict_bi_tempered,
    terms=("bi_tempered",),
    soft_labels=True,
  ),
  "sparsemax": Method(
    models.SoftmaxHead,
    rules.single(losses.sparsemax, "sparsemax"),
    rules.predict_sparsemax,
    terms=("sparsemax",),
    soft_labels=True,
  ),
  "group_softmax": Method(
    models.GroupSoftmaxHead, rules.group_softmax, rules.predict_group_softmax, terms=("group_softmax",)
  ),
  "sampled_softmax": Method(
    models.SoftmaxHead, rules.drawn(losses.sampled_softmax, "nll"), rules.predict_softmax
  ),
  "random_dropmax": Method(
    models.SoftmaxHead, rules.drawn(losses.random_dropmax, "nll"), rules.predict_softmax
  ),
  "deterministic_attention": Method(
    models.AttentionHead,
    rules.single(losses.deterministic_attention, "nll"),
    rules.predict_gated,
    soft_labels=True,
  ),
  "deterministic_dropmax": Method(
    models.AttentionHead,
    rules.keyless(deterministic_dropmax_terms),
    rules.predict_gated,
    terms=("nll", "auxiliary"),
    soft_labels=True,
  ),
  "autoencoder": Method(models.DecodingHead, rules.autoencoder, rules.predict_classes, soft_labels=True),
  "multitask": Method(models.CoarseTasksHead, rules.multitask, rules.predict_classes, terms=("nll", "tasks")),
  "dropmax_qp": Method(
    models.AttentionHead, dropmax_qp_terms, rules.predict_dropmax, terms=("nll", "kl", "neg_entropy")
  ),
  "dropmax": Method(
    models.DropMaxHead,
    losses.dropmax_terms,
    rules.predict_dropmax,
    terms=("nll", "kl", "neg_entropy", "auxiliary"),
    diagnose=losses.dropmax_diagnostics,
  ),
}


def find_method(name: str) -> Method:
  """The method that `method.name` names; it may also name a loss of `(logits, labels, ...)`."""
  kind = "a jaxreg.train.Method, or a loss of (logits, labels, ...)"
  fits = lambda found: isinstance(found, Method) or takes(found, "logits", "labels")
  found = find(name, METHODS, "method.name", kind, fits)
  return found if isinstance(found, Method) else of_logits(found, short(name))
