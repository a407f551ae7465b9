"""Deterministic DropMax: deterministic attention that also trains its retain probabilities on the labels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg.losses._deterministic_attention import deterministic_attention
from jaxreg.losses._labels import is_soft
from jaxreg.typing import Array, check_hard_or_soft_labels, check_range, check_wide


def deterministic_dropmax(
  logits: ArrayLike,
  retain_logits: ArrayLike,
  labels: ArrayLike,
  *,
  auxiliary_weight: float | Array = 1.0,
) -> Array:
  """Computes the deterministic DropMax loss: the sum of `deterministic_dropmax_terms`, with its formulas.

  Args:
    logits: `o`, `[..., classes]`, floating.
    retain_logits: logits of `rho`, same shape.
    labels: `[...]`, integer, or `[..., classes]`, soft, as in `softmax_cross_entropy`.
    auxiliary_weight: weight of the second term.

  Returns:
    `[...]`, in nats, float32 or wider.

  Raises:
    TypeError, ValueError: as `deterministic_dropmax_terms`.

  Example:
    >>> deterministic_dropmax(jnp.zeros((4, 10)), jnp.zeros((4, 10)), jnp.zeros(4, int)).shape
    (4,)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `Deterministic DropMax`.
  """
  terms = deterministic_dropmax_terms(logits, retain_logits, labels, auxiliary_weight=auxiliary_weight)
  return terms["nll"] + terms["auxiliary"]


def deterministic_dropmax_terms(
  logits: ArrayLike,
  retain_logits: ArrayLike,
  labels: ArrayLike,
  *,
  auxiliary_weight: float | Array = 1.0,
) -> dict[str, Array]:
  r"""Computes the two terms of deterministic DropMax, per example.

  .. math::
    \text{nll} &= -\log \frac{(\rho_t + \epsilon) e^{o_t}}{\sum_k (\rho_k + \epsilon) e^{o_k}} \\
    \text{auxiliary} &= -\sum_k y_k \log \rho_k + (1 - y_k) \log (1 - \rho_k)

  Prediction uses the softmax of the first term, `dropmax_log_probs`. This is a baseline of the DropMax paper.
  Its definition is not confirmed, and neither is the weight, which is DropMax's here.

  Args:
    logits: `o`, `[..., classes]`, floating.
    retain_logits: logits of `rho`, same shape.
    labels: `[...]`, integer, or `[..., classes]`, soft, as in `softmax_cross_entropy`.
    auxiliary_weight: weight of the second term.

  Returns:
    `nll` and `auxiliary`, weighted, each `[...]` in nats, float32 or wider.

  Raises:
    TypeError: if the logits are not floating or `labels` are neither integer nor soft.
    ValueError: if shapes do not fit or the weight is NaN.

  Example:
    >>> terms = deterministic_dropmax_terms(jnp.zeros((4, 10)), jnp.zeros((4, 10)), jnp.zeros(4, int))
    >>> {name: round(float(term[0]), 3) for name, term in terms.items()}
    {'nll': 2.303, 'auxiliary': 6.931}

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `Deterministic DropMax`.
  """
  logits = check_wide(logits, "logits")
  prior = check_wide(retain_logits, "retain_logits", shape=logits.shape)
  labels = check_hard_or_soft_labels(labels, logits)
  check_range(auxiliary_weight, "auxiliary_weight")
  target = labels if is_soft(labels) else jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
  auxiliary = jnp.asarray(optax.losses.sigmoid_binary_cross_entropy(prior, target))
  return {
    "nll": deterministic_attention(logits, prior, labels),
    "auxiliary": auxiliary_weight * auxiliary.sum(axis=-1),
  }
