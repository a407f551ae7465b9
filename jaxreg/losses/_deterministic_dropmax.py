"""Deterministic DropMax: deterministic attention that also trains its retain probabilities on the labels."""

from __future__ import annotations

import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg._checks import check_hard_or_soft_labels, check_logits, check_option
from jaxreg._labels import is_soft, is_target_of
from jaxreg._where import only_where
from jaxreg.losses._deterministic_attention import deterministic_attention
from jaxreg.typing import Array


@only_where()
def deterministic_dropmax_terms(
  logits: ArrayLike,
  retain_logits: ArrayLike,
  labels: ArrayLike,
  *,
  auxiliary_weight: float | Array = 1.0,
  where: ArrayLike | None = None,
) -> dict[str, Array]:
  """Computes the two terms of `deterministic_dropmax`, which has their formulas; their sum is the loss.

  Args:
    logits, retain_logits, labels: as in `deterministic_dropmax`, and so are the options.

  Returns:
    `nll` and `auxiliary`, weighted, each `[...]` in nats, float32 or wider.

  Example:
    >>> terms = deterministic_dropmax_terms(jnp.zeros((4, 10)), jnp.zeros((4, 10)), jnp.zeros(4, int))
    >>> {name: round(float(term[0]), 3) for name, term in terms.items()}
    {'nll': 2.303, 'auxiliary': 6.931}
  """
  logits = check_logits(logits, "logits")
  prior = check_logits(retain_logits, "retain_logits", shape=logits.shape)
  labels = check_hard_or_soft_labels(labels, logits)
  check_option(auxiliary_weight, "auxiliary_weight", logits.shape[:-1], low=0)
  target = labels if is_soft(labels) else is_target_of(labels, logits)
  auxiliary = jnp.asarray(optax.losses.sigmoid_binary_cross_entropy(prior, target))
  return {
    "nll": deterministic_attention(logits, prior, labels),
    "auxiliary": auxiliary_weight * auxiliary.sum(axis=-1),
  }


def deterministic_dropmax(
  logits: ArrayLike,
  retain_logits: ArrayLike,
  labels: ArrayLike,
  *,
  auxiliary_weight: float | Array = 1.0,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the deterministic DropMax loss, the sum of two terms.

  .. math::
    \text{nll} &= -\log \frac{(\rho_t + \epsilon) e^{o_t}}{\sum_k (\rho_k + \epsilon) e^{o_k}} \\
    \text{auxiliary} &= -\sum_k y_k \log \rho_k + (1 - y_k) \log (1 - \rho_k)

  Prediction uses the softmax of the first term, `dropmax_log_probs`. This is a baseline of the DropMax paper.
  Neither its definition nor the weight is confirmed; the weight here is DropMax's.

  Args:
    logits, retain_logits, labels, where: as in `deterministic_attention`.
    auxiliary_weight: weight of the second term, a scalar or `[...]`, at least 0.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> deterministic_dropmax(jnp.zeros((4, 10)), jnp.zeros((4, 10)), jnp.zeros(4, int)).round(3)
    Array([9.234, 9.234, 9.234, 9.234], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `Deterministic DropMax`.
  """
  terms = deterministic_dropmax_terms(
    logits, retain_logits, labels, auxiliary_weight=auxiliary_weight, where=where
  )
  return terms["nll"] + terms["auxiliary"]
