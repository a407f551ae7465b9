"""Bernoulli dropout, inverted or not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_axes, check_floating, check_key, check_option
from jaxreg._sharding import drawn_like
from jaxreg.typing import Array, Key


def dropout(
  key: Key | None,
  x: ArrayLike,
  *,
  rate: ArrayLike,
  inverted: bool = True,
  shared_axes: tuple[int, ...] = (),
) -> Array:
  r"""Sets each entry to zero with probability `rate`.

  .. math:: y = \frac{m \odot x}{1 - \text{rate}} \ \text{(inverted)} \quad\text{or}\quad y = m \odot x,
    \qquad m \sim \mathrm{Ber}(1 - \text{rate})

  Inverted dropout needs nothing at test time. Otherwise multiply by `1 - rate` there, or scale the weights
  that read the result by `scale_weights`.

  Args:
    key: one draw for the whole of `x`; None for no noise, which returns `x` unchanged.
    x: any shape, floating.
    rate: probability of dropping, in [0, 1]; may be traced, so it can follow a schedule. A traced rate is not
      checked: above 1 it gives zeros, below 0 a smaller `x`.
    inverted: whether the kept entries are scaled to keep the mean.
    shared_axes: axes along which one mask is shared, for instance the positions of a feature map.

  Returns:
    An array of the shape and dtype of `x`; all zeros at rate 1.

  Example:
    >>> dropout(jax.random.key(0), jnp.ones(4), rate=0.5)
    Array([0., 0., 2., 2.], dtype=float32)

  References:
    Srivastava et al., `Dropout: A Simple Way to Prevent Neural Networks from Overfitting`, 2014, section 4.
  """
  x = check_floating(x, "x")
  shape = shared_shape(x, shared_axes)
  check_option(rate, "rate", shape, low=0, high=1, entrywise=True)
  if key is None:
    return x
  mask = dropout_mask(key, shape, rate=rate, like=x)
  keep = 1.0 - jnp.asarray(rate, jnp.promote_types(x.dtype, jnp.float32))
  # At rate 1 nothing is kept; dividing by 1 instead of 0 keeps value and gradient exactly 0.
  scale = 1.0 / jnp.where(keep > 0, keep, 1.0) if inverted else 1.0
  # Rounds once, at the end: in bfloat16 the scale at rate 0.1 is off by 0.2 %.
  return jnp.where(mask, (x * scale).astype(x.dtype), jnp.zeros((), x.dtype))


def dropout_mask(key: Key, shape: tuple[int, ...], *, rate: ArrayLike, like: ArrayLike = 0.0) -> Array:
  """Samples the kept entries: `[shape]`, bool, true with probability `1 - rate`, split as `like` is."""
  keep = 1.0 - jnp.asarray(rate, jnp.float32)
  return drawn_like(jnp.asarray(like), jax.random.bernoulli, check_key(key), shape, p=keep)


def shared_shape(x: Array, shared_axes: tuple[int, ...]) -> tuple[int, ...]:
  """Returns the shape of one draw for `x`, with size 1 along `shared_axes`."""
  shared = check_axes(shared_axes, "shared_axes", x.ndim)
  return tuple(1 if axis in shared else n for axis, n in enumerate(x.shape))
