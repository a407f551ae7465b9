"""Dropout for self-normalising networks."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_floating, check_option
from jaxreg.noise._dropout import dropout_mask, shared_shape
from jaxreg.typing import Array, Key

# SELU's limit at minus infinity: -lambda * alpha, with its two constants.
SATURATION = -1.0507009873554805 * 1.6732632423543772


def alpha_dropout(
  key: Key | None, x: ArrayLike, *, rate: ArrayLike, shared_axes: tuple[int, ...] = ()
) -> Array:
  r"""Sets each entry to SELU's lower limit with probability `rate`, keeping mean 0 and variance 1.

  .. math:: y = a (m \odot x + (1 - m)\, \alpha') + b, \qquad m \sim \mathrm{Ber}(q), \qquad
    a = \bigl(q + \alpha'^2 q (1 - q)\bigr)^{-1/2}, \quad b = -a (1 - q)\, \alpha'

  with `q = 1 - rate`. Inputs of another mean or variance do not keep them.

  Args:
    key, rate, shared_axes: as in `dropout`.
    x: outputs of SELU, any shape, floating.

  Returns:
    An array of the shape and dtype of `x`; zeros at rate 1, which is the limit.

  Example:
    >>> alpha_dropout(jax.random.key(0), jnp.zeros(4), rate=0.5).round(3)
    Array([-0.77900004, -0.77900004,  0.77900004,  0.77900004], dtype=float32)

  References:
    Klambauer et al., `Self-Normalizing Neural Networks`, 2017, the paragraph on a new dropout technique.
  """
  x = check_floating(x, "x")
  shape = shared_shape(x, shared_axes)
  check_option(rate, "rate", shape, low=0, high=1, entrywise=True)
  if key is None:
    return x
  mask = dropout_mask(key, shape, rate=rate, like=x)
  keep = 1 - jnp.asarray(rate, jnp.promote_types(x.dtype, jnp.float32))
  # At rate 1 the scale is infinite; a dropped entry is then 0 times that scale, and must be 0.
  usual = jnp.where(keep > 0, keep, 1)
  scale = 1 / jnp.sqrt(usual * (1 + SATURATION**2 * (1 - usual)))
  shift = -scale * (1 - usual) * SATURATION
  # Equals a alpha' + b, without the cancellation of that sum.
  dropped = scale * keep * SATURATION
  return jnp.where(mask, scale * x + shift, dropped).astype(x.dtype)
