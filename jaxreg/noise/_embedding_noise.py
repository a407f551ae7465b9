"""Uniform noise on the embeddings of a sequence, as in NEFTune."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_floating, check_key, check_option
from jaxreg._sharding import drawn_like
from jaxreg._where import check_where
from jaxreg.typing import Array, Key


def embedding_noise(
  key: Key | None, x: ArrayLike, *, alpha: ArrayLike = 5.0, where: ArrayLike | None = None
) -> Array:
  r"""Adds uniform noise to embeddings, with less noise per entry in longer sequences.

  .. math:: y = x + \frac{\alpha}{\sqrt{L d}}\, u, \qquad u \sim \mathcal{U}(-1, 1)^{L \times d}

  The noise of a whole sequence then has the expected squared norm :math:`\alpha^2 / 3`, whatever its length.
  At test time nothing is done.

  Args:
    key: one draw for the whole of `x`; None for no noise.
    x: embeddings, `[..., length, width]`, floating.
    alpha: the scale of the noise, at least 0; the source tries 5, 10 and 15.
    where: `[..., length]`, bools, false for padding. Padding gets no noise and does not count in `L`.

  Example:
    >>> embedding_noise(jax.random.key(0), jnp.zeros((2, 4)), alpha=1.0).shape
    (2, 4)

  References:
    Jain et al., `NEFTune: Noisy Embeddings Improve Instruction Finetuning`, 2023, algorithm 1.
  """
  x = check_floating(x, "x")
  if x.ndim < 2:
    raise ValueError(f"x must be [..., length, width], got {x.shape}")
  check_option(alpha, "alpha", x.shape, low=0, entrywise=True)
  where = jnp.ones(x.shape[:-1], bool) if where is None else jnp.asarray(check_where(where, x.shape[:-1]))
  if key is None:
    return x
  wide = jnp.promote_types(x.dtype, jnp.float32)
  number = jnp.maximum(where.sum(axis=-1, keepdims=True), 1)[..., None] * x.shape[-1]
  drawn = drawn_like(x, jax.random.uniform, check_key(key), x.shape, dtype=wide, minval=-1, maxval=1)
  scaled = jnp.asarray(alpha, wide) / jnp.sqrt(number.astype(wide)) * drawn
  return jnp.where(where[..., None], x + scaled.astype(x.dtype), x)
