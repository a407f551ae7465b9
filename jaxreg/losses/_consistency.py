"""Consistency: two noisy predictions for the same example should be the same."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_logits
from jaxreg._divergence import log_ratio
from jaxreg._where import only_where
from jaxreg.losses._softmax import cross_entropies, gaps_of
from jaxreg.typing import Array


@only_where()
def consistency(logits: ArrayLike, other_logits: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes the mean squared difference of two predictions, as in the Pi-model and mean teachers.

  .. math:: \ell = \frac1K \sum_k (p_k - q_k)^2

  The term is unsupervised: it needs no labels. In the Pi-model both predictions come from the same parameters
  under different noise and augmentation, and gradient goes to both. A teacher gets no gradient: its
  parameters are not trained, as with `averaging.ema`; otherwise pass
  `jax.lax.stop_gradient(other_logits)`. Both papers raise the term's weight slowly from 0, because
  early predictions are poor.

  Args:
    logits: logits of `p`, `[..., classes]`, floating.
    other_logits: logits of `q`, same shape.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in [0, 2 / classes], float32 or wider.

  Example:
    >>> consistency(jnp.array([[1e3, 0.0]]), jnp.array([[0.0, 0.0]]))  # a certain and a uniform prediction
    Array([0.25], dtype=float32)

  References:
    Laine and Aila, `Temporal Ensembling for Semi-Supervised Learning`, 2017.
    Tarvainen and Valpola, `Mean teachers are better role models`, 2017.
  """
  logits = check_logits(logits, "logits")
  other_logits = check_logits(other_logits, "other_logits", shape=logits.shape)
  # The exponentials of cross-entropies keep the gradients of nearly certain predictions.
  p, q = jnp.exp(-cross_entropies(logits)), jnp.exp(-cross_entropies(other_logits))
  # The difference of two predictions that nearly agree would cancel.
  ratio = log_ratio(logits, other_logits)
  near = jnp.abs(ratio) < 0.5
  gap = jnp.where(near, q * jnp.expm1(jnp.where(near, ratio, 0)), p - q)
  # Of a nearly certain class, the probabilities of the others have the digits.
  _, is_top = gaps_of(other_logits)
  gap = jnp.where(is_top, -jnp.where(is_top, 0, gap).sum(axis=-1, keepdims=True), gap)
  return jnp.square(gap).mean(axis=-1)
