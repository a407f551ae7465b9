"""Cross-entropy for classes of unequal frequency."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_logits, check_option, check_wide, per_class
from jaxreg._where import only_where
from jaxreg.losses._softmax import softmax_cross_entropy
from jaxreg.typing import Array


@only_where(shared=("log_prior",))
def logit_adjustment(
  logits: ArrayLike,
  labels: ArrayLike,
  log_prior: ArrayLike,
  *,
  weight: ArrayLike = 1.0,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the cross-entropy of logits raised by the log frequency of their class, for training only.

  .. math:: \ell = -\log \frac{e^{o_t + \tau \log \pi_t}}{\sum_k e^{o_k + \tau \log \pi_k}}

  Predict with the plain logits. The model need not learn the class frequencies, so its logits are those for
  balanced classes. For these the loss is consistent at `tau = 1`.

  Args:
    logits, labels, where: as in `softmax_cross_entropy`.
    log_prior: `log pi`, `[classes]`, floating. The logarithms of counts also work: a constant makes no
      difference.
    weight: `tau`, a scalar or `[...]`, at least 0; 0 is the cross-entropy.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> logit_adjustment(jnp.zeros((2, 2)), jnp.array([0, 1]), jnp.log(jnp.array([3.0, 1.0]))).round(4)
    Array([0.2877, 1.3863], dtype=float32)

  References:
    Menon et al., `Long-tail learning via logit adjustment`, 2021.
  """
  logits = check_logits(logits, "logits")
  log_prior = check_wide(log_prior, "log_prior", shape=logits.shape[-1:])
  check_option(weight, "weight", logits.shape[:-1], low=0)
  weight = per_class(weight, logits.dtype)
  log_prior = jnp.broadcast_to(log_prior, logits.shape)
  # A class that never occurs has -inf, and 0 times -inf is NaN.
  never = jnp.isneginf(log_prior)
  adjustment = jnp.where(never & (weight > 0), -jnp.inf, weight * jnp.where(never, 0, log_prior))
  return softmax_cross_entropy(logits + adjustment, labels)
