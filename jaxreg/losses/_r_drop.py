"""R-Drop: two passes under different noise should agree."""

from __future__ import annotations

import jax
from jax.typing import ArrayLike

from jaxreg._checks import check_logits
from jaxreg._divergence import kl_terms, log_ratio
from jaxreg._where import only_where
from jaxreg.typing import Array


@only_where()
def r_drop(logits: ArrayLike, other_logits: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes the symmetric divergence of two predictions.

  .. math:: \tfrac12 \mathrm{KL}(p \| q) + \tfrac12 \mathrm{KL}(q \| p)
    = \tfrac12 \sum_k (p_k - q_k) (\log p_k - \log q_k)

  Add this term, with a weight, to the loss of both passes. Gradient goes to both predictions; for a teacher,
  stop the gradient of one.

  Args:
    logits, other_logits, where: as in `consistency`; -inf excludes a class.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> r_drop(jnp.array([[jnp.log(3.0), 0.0]]), jnp.array([[0.0, jnp.log(3.0)]]))  # log(3) / 2
    Array([0.54930615], dtype=float32)

  References:
    Liang et al., `R-Drop: Regularized Dropout for Neural Networks`, 2021.
  """
  logits = check_logits(logits, "logits")
  other_logits = check_logits(other_logits, "other_logits", shape=logits.shape)
  log_p, log_q = jax.nn.log_softmax(logits), jax.nn.log_softmax(other_logits)
  ratio = log_ratio(logits, other_logits)
  terms = kl_terms(log_p, log_q, ratio) + kl_terms(log_q, log_p, -ratio)
  return 0.5 * terms.sum(axis=-1)
