"""Softmax of one affine layer, and the losses of its logits."""

import jax.numpy as jnp
import numpy as np

from jaxreg import losses, models
from jaxreg._errors import ArgumentError
from jaxreg.train.methods.method import Method
from jaxreg.typing import Array


def predict_softmax(*, logits: Array, **_: object) -> Array:
  """Computes the softmax of the logits; further outputs of the head do not count."""
  return losses.softmax_log_probs(logits)


def predict_bi_tempered(*, logits: Array, t2: float) -> Array:
  """Computes the prediction of `losses.bi_tempered`."""
  return losses.bi_tempered_log_probs(logits, t2=t2)


def predict_sparsemax(*, logits: Array) -> Array:
  """Computes the prediction of `losses.sparsemax`."""
  return losses.sparsemax_log_probs(logits)


def logit_adjustment(
  *, logits: Array, labels: Array, class_counts: tuple[float, ...] = (), weight: float = 1.0
) -> Array:
  """Computes `losses.logit_adjustment` with the prior of the training set's class counts."""
  classes = logits.shape[-1]
  if len(class_counts) != classes or not all(_is_positive(count) for count in class_counts):
    raise ArgumentError(
      "class_counts", f"must be {classes} numbers above 0, one per class, got {class_counts}"
    )
  log_prior = jnp.log(jnp.asarray(class_counts, jnp.float32))
  return losses.logit_adjustment(logits, labels, log_prior, weight=weight)


def forward_correction(*, logits: Array, labels: Array, transitions: tuple[float, ...] = ()) -> Array:
  """Computes `losses.forward_correction` with the rows of the transition matrix, one after another."""
  classes = logits.shape[-1]
  if len(transitions) != classes**2:
    raise ArgumentError(
      "transitions",
      f"must be {classes} times {classes} numbers, one row after another, got {len(transitions)} numbers",
    )
  matrix = np.asarray(transitions, np.float32).reshape(classes, classes)
  return losses.forward_correction(logits, labels, matrix)


def _is_positive(number: object) -> bool:
  return isinstance(number, int | float) and number > 0


def on_logits(loss, term: str, **options) -> Method:
  """Makes the method of a loss of `(logits, labels, *, ...)`: one affine layer, and softmax as the rule."""
  return Method(models.SoftmaxHead, loss, **{"predict": predict_softmax, "terms": (term,), **options})


METHODS = {
  "softmax": on_logits(losses.softmax_cross_entropy, "nll", soft_labels=True),
  "label_smoothing": on_logits(losses.label_smoothing, "label_smoothing", soft_labels=True),
  "focal": on_logits(losses.focal, "focal", soft_labels=True),
  "poly_loss": on_logits(losses.poly_loss, "poly_loss", soft_labels=True),
  "confidence_penalty": on_logits(losses.confidence_penalty, "confidence_penalty", soft_labels=True),
  "large_margin": on_logits(losses.large_margin, "large_margin"),
  "logit_adjustment": on_logits(logit_adjustment, "nll", soft_labels=True),
  "generalized_cross_entropy": on_logits(
    losses.generalized_cross_entropy, "generalized_cross_entropy", soft_labels=True
  ),
  "active_passive": on_logits(losses.active_passive, "active_passive", soft_labels=True),
  "forward_correction": on_logits(forward_correction, "forward_correction", soft_labels=True),
  "sampled_softmax": on_logits(losses.sampled_softmax, "nll", draws=("loss",)),
  "bi_tempered": on_logits(
    losses.bi_tempered, "bi_tempered", predict=predict_bi_tempered, soft_labels=True, shared=("t2",)
  ),
  "sparsemax": on_logits(losses.sparsemax, "sparsemax", predict=predict_sparsemax, soft_labels=True),
}
