"""Wrong labels by known probabilities: the cross-entropy of the labels as they are observed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import (
  check_hard_or_soft_labels,
  check_log_probs,
  check_logits,
  check_option,
  check_range,
  check_wide,
  known_values,
)
from jaxreg._labels import is_soft, label_entry
from jaxreg._sharding import gathered, rows
from jaxreg._where import only_where
from jaxreg.losses._softmax import cross_entropies
from jaxreg.typing import Array


@only_where(shared=("transitions",))
def forward_correction(
  logits: ArrayLike, labels: ArrayLike, transitions: ArrayLike, *, where: ArrayLike | None = None
) -> Array:
  r"""Computes the cross-entropy of observed labels, which differ from the true ones with known probabilities.

  .. math:: \ell = -\log \sum_j p_j T_{j y}, \qquad T_{j k} = \Pr(\text{observed } k \mid \text{true } j)

  The logits then are those of the true labels: predict with their softmax. The identity gives the
  cross-entropy. For soft labels the loss is the mean over the
  classes, weighted by the probabilities.

  Args:
    logits, labels, where: as in `softmax_cross_entropy`.
    transitions: `T`, `[classes, classes]`, floating, at least 0 with rows that sum to 1; given, or estimated
      by `transition_matrix`.

  Returns:
    `[...]`, in nats, float32 or wider; +inf for a label of probability 0.

  Example:
    >>> transitions = jnp.array([[0.8, 0.2], [0.4, 0.6]])
    >>> forward_correction(jnp.array([[0.0, 0.0]]), jnp.array([1]), transitions).round(4)  # -log(0.4)
    Array([0.9163], dtype=float32)

  References:
    Patrini et al., `Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach`, 2017,
    Theorem 2.
  """
  logits = check_logits(logits, "logits")
  classes = logits.shape[-1]
  raw, transitions = transitions, check_wide(transitions, "transitions", shape=(classes, classes))
  transitions = transitions.astype(logits.dtype)
  known = known_values(raw)
  if known is not None:
    check_range(known, "transitions", low=0)
    check_range(known.sum(axis=-1), "the sums of the rows of transitions", low=0.99, high=1.01)
  labels = check_hard_or_soft_labels(labels, logits)
  every = cross_entropies(logits)
  if is_soft(labels):
    shape = (*every.shape, classes)
    each = jnp.broadcast_to(every[..., None, :], shape), jnp.broadcast_to(transitions.T, shape)
    return label_entry(_observed(*each), labels)
  outside = (labels < 0) | (labels >= classes)
  column = rows(transitions.T, jnp.where(outside, 0, labels))
  return jnp.where(outside, jnp.nan, _observed(every, column))


def _observed(every: Array, column: Array) -> Array:
  """Computes `-log sum_j p_j T_j` over the last axis, from the cross-entropies of all classes."""
  # Where the label is nearly sure, the small probability of another one has the digits.
  other = (jnp.exp(-every) * (1 - column)).sum(axis=-1)
  near = other < 0.5
  close = -jnp.log1p(-jnp.where(near, other, 0))
  never = (column * jnp.isfinite(every)).sum(axis=-1, keepdims=True) == 0
  far = -jax.nn.logsumexp(jnp.where(never, 0, -every), axis=-1, b=jnp.where(never, 1, column))
  return jnp.where(near, close, jnp.where(never[..., 0], jnp.inf, far))


def transition_matrix(log_probs: ArrayLike, *, quantile: float = 1.0) -> Array:
  r"""Estimates the transition matrix of `forward_correction` from examples that are surely of their class.

  .. math:: T_{j k} = \Pr(\text{observed } k \mid x^j), \qquad
    x^j = \operatorname{argmax}_x \Pr(\text{observed } j \mid x)

  The anchor of a class is the example for which a model, trained on the observed labels, gives it the largest
  probability, or the example nearest to a quantile, which an outlier moves less. The estimate is
  right if each class has an example whose true label is certain, and if the model's probabilities are: an
  early epoch, or a temperature, keeps them from repeating the wrong labels.

  Args:
    log_probs: `[n, classes]`, floating: predictions of the training examples, or of any others.
    quantile: of the probabilities of a class, in [0, 1]; static.

  Returns:
    `[classes, classes]`, rows that sum to 1, float32 or wider.

  Example:
    >>> probs = jnp.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]])
    >>> print((100 * transition_matrix(jnp.log(probs))).round())
    [[90. 10.]
     [30. 70.]]

  References:
    Patrini et al., `Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach`, 2017,
    section 4.
  """
  log_probs = check_log_probs(log_probs, "log_probs")
  if log_probs.ndim != 2 or not len(log_probs):
    raise ValueError(f"log_probs must be [n, classes] with n > 0, got {log_probs.shape}")
  check_option(quantile, "quantile", (), low=0, high=1)
  log_probs = gathered(log_probs)
  order = jnp.argsort(log_probs, axis=0)
  return jnp.exp(log_probs[order[round(quantile * (len(log_probs) - 1))]])
