"""R-Drop: two passes under different noise should agree."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.typing import Array, check_wide


def r_drop(log_probs: ArrayLike, other_log_probs: ArrayLike) -> Array:
  r"""Computes the symmetric divergence of two predictions for the same examples.

  .. math:: \tfrac12 \mathrm{KL}(p \| q) + \tfrac12 \mathrm{KL}(q \| p)
    = \tfrac12 \sum_k (p_k - q_k) (\log p_k - \log q_k)

  Add this term, with a weight, to the loss of both passes. Gradient goes to both predictions; for a teacher,
  stop the gradient of one.

  Args:
    log_probs: log-probabilities of `p`, `[..., classes]`, floating; -inf where a probability is 0.
    other_log_probs: log-probabilities of `q`, same shape.

  Returns:
    `[...]`, in nats, float32 or wider.

  Raises:
    TypeError: if log-probabilities are not floating.
    ValueError: if the shapes differ.

  Example:
    >>> r_drop(jnp.log(jnp.array([[0.75, 0.25]])), jnp.log(jnp.array([[0.25, 0.75]])))  # log(3) / 2
    Array([0.54930615], dtype=float32)

  References:
    Liang et al., `R-Drop: Regularized Dropout for Neural Networks`, 2021.
  """
  p = check_wide(log_probs, "log_probs")
  q = check_wide(other_log_probs, "other_log_probs", shape=p.shape)
  # Two predictions agree on a class that both exclude.
  gap = jnp.where(jnp.maximum(p, q) == -jnp.inf, 0, p - q)
  return 0.5 * ((jnp.exp(p) - jnp.exp(q)) * gap).sum(axis=-1)
