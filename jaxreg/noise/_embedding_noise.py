"""Uniform noise on the embeddings of a sequence, as in NEFTune."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.typing import Array, Key, check_floating, check_key, check_range, key_first


@key_first
def embedding_noise(
  key: Key | None, x: ArrayLike, *, alpha: ArrayLike = 5.0, mask: ArrayLike | None = None
) -> Array:
  r"""Adds uniform noise to embeddings, the less for each entry the more entries a sequence has.

  .. math:: y = x + \frac{\alpha}{\sqrt{L d}}\, u, \qquad u \sim \mathcal{U}(-1, 1)^{L \times d}

  The noise of a whole sequence then has the expected squared norm :math:`\alpha^2 / 3`, whatever its length.
  At test time nothing is done.

  Args:
    key: one draw for the whole of `x`; None for no noise.
    x: embeddings, `[..., length, width]`, floating.
    alpha: the scale of the noise, at least 0; the source tries 5, 10 and 15.
    mask: `[..., length]`, bools, false for padding. Padding gets no noise and does not count in `L`.

  Returns:
    An array of the shape and dtype of `x`.

  Raises:
    TypeError: if `x` is not floating, `mask` is not of bools or `key` is not a typed key.
    ValueError: if `x` has fewer than two axes, `mask` is not `[..., length]` or `alpha` is negative.

  Example:
    >>> embedding_noise(jax.random.key(0), jnp.zeros((2, 4)), alpha=1.0).shape
    (2, 4)

  References:
    Jain et al., `NEFTune: Noisy Embeddings Improve Instruction Finetuning`, 2023, algorithm 1.
  """
  x = check_floating(x, "x")
  check_range(alpha, "alpha", low=0)
  if x.ndim < 2:
    raise ValueError(f"x must be [..., length, width], got {x.shape}")
  mask = jnp.ones(x.shape[:-1], bool) if mask is None else jnp.asarray(mask)
  if mask.dtype != jnp.bool_:
    raise TypeError(f"mask must be bools, got {mask.dtype}")
  if mask.shape != x.shape[:-1]:
    raise ValueError(f"mask must be {x.shape[:-1]}, got {mask.shape}")
  if key is None:
    return x
  wide = jnp.promote_types(x.dtype, jnp.float32)
  number = jnp.maximum(mask.sum(axis=-1, keepdims=True), 1)[..., None] * x.shape[-1]
  drawn = jax.random.uniform(check_key(key), x.shape, wide, -1, 1)
  scaled = jnp.asarray(alpha, wide) / jnp.sqrt(number.astype(wide)) * drawn
  return jnp.where(mask[..., None], x + scaled.astype(x.dtype), x)
