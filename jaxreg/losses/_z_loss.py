"""A penalty that keeps the normaliser of the softmax near 1."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_logits
from jaxreg._where import only_where
from jaxreg.losses._softmax import gaps_of
from jaxreg.typing import Array


@only_where()
def z_loss(logits: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes the squared logarithm of the softmax's normaliser.

  .. math:: \ell = \log^2 Z, \qquad Z = \sum_k e^{z_k}

  The cross-entropy does not change if a constant is added to all logits, so they may drift, and large logits
  are coarse in bfloat16. PaLM adds this term with the weight 1e-4. Log-probabilities have
  `Z = 1`; the term is for logits.

  Args:
    logits: `[..., classes]`, floating; -inf excludes a class.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, float32 or wider.

  Example:
    >>> z_loss(jnp.log(jnp.array([[0.5, 0.5], [1.0, jnp.e - 1.0]]))).round(6)
    Array([0., 1.], dtype=float32)

  References:
    Chowdhery et al., `PaLM: Scaling Language Modeling with Pathways`, 2022, section 5.
  """
  logits = check_logits(logits, "logits")
  # Not `logsumexp`, which adds the others to 1 and loses their digits where they are small.
  gaps, is_top = gaps_of(logits)
  others = jnp.where(is_top, 0, jnp.exp(-gaps)).sum(axis=-1)
  return jnp.square(jnp.where(is_top, logits, 0).sum(axis=-1) + jnp.log1p(others))
