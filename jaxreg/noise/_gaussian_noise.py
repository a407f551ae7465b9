"""Gaussian noise, added or multiplied, and dropout with Gaussian factors."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_floating, check_key, check_option
from jaxreg._sharding import drawn_like
from jaxreg.noise._dropout import shared_shape
from jaxreg.typing import Array, Key

Kind = Literal["additive", "multiplicative"]


def gaussian_noise(
  key: Key | None,
  x: ArrayLike,
  *,
  std: ArrayLike,
  kind: Kind = "additive",
  shared_axes: tuple[int, ...] = (),
) -> Array:
  r"""Adds Gaussian noise to each entry, or multiplies it by noise of mean 1.

  .. math:: y = x + \sigma n \ \text{(additive)} \quad\text{or}\quad y = x \odot (1 + \sigma n),
    \qquad n \sim \mathcal{N}(0, I)

  For inputs or hidden units. At test time nothing is done: both kinds keep the mean. For a linear model and
  the squared error, additive noise on the inputs is exactly the penalty :math:`\sigma^2 \|w\|^2`;
  `papers/regularization` has the terms of other models.

  Args:
    key, x, shared_axes: as in `dropout`.
    std: `sigma`, at least 0, a scalar or an array that broadcasts to the shape of `x`; may be traced, so it
      can follow a schedule.
    kind: whether the noise is added or multiplied.

  Returns:
    An array of the shape and dtype of `x`; `x` itself at `std` 0.

  Example:
    >>> gaussian_noise(jax.random.key(0), jnp.zeros(3), std=1.0).round(1)
    Array([ 1.6,  2. , -0.4], dtype=float32)
    >>> gaussian_noise(jax.random.key(0), jnp.zeros(3), std=0.1, kind="multiplicative")
    Array([0., 0., 0.], dtype=float32)

  References:
    Bishop, `Training with Noise is Equivalent to Tikhonov Regularization`, 1995.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, dataset augmentation.
  """
  x = check_floating(x, "x")
  check_option(std, "std", x.shape, low=0, entrywise=True)
  check_kind(kind)
  shape, wide = shared_shape(x, shared_axes), jnp.promote_types(x.dtype, jnp.float32)
  if key is None:
    return x
  noise = drawn_like(x, jax.random.normal, check_key(key), shape, dtype=wide)
  noise = jnp.asarray(std, wide) * noise
  return (x + noise if kind == "additive" else x * (1 + noise)).astype(x.dtype)


def gaussian_dropout(
  key: Key | None,
  x: ArrayLike,
  *,
  rate: ArrayLike | None = None,
  std: ArrayLike | None = None,
  shared_axes: tuple[int, ...] = (),
) -> Array:
  r"""Multiplies each entry by Gaussian noise of mean 1, with the variance of inverted dropout's factors.

  .. math:: y = x \odot z, \qquad z \sim \mathcal{N}(1, \sigma^2), \qquad
    \sigma^2 = \frac{\text{rate}}{1 - \text{rate}}

  Nothing is dropped, and nothing is done at test time.

  Args:
    key, x, shared_axes: as in `dropout`.
    rate: the dropout rate with the same variance, in [0, 1]; may be traced. At rate 1 the variance is
      infinite and the result is all zeros, as in `dropout`.
    std: `sigma` itself, instead of `rate`; may be traced.

  Raises:
    ValueError: unless exactly one of `rate` and `std` is given.

  Example:
    >>> gaussian_dropout(jax.random.key(0), jnp.ones(3), rate=0.2).round(2)
    Array([1.81, 2.01, 0.78], dtype=float32)

  References:
    Srivastava et al., `Dropout: A Simple Way to Prevent Neural Networks from Overfitting`, 2014, section 10.
  """
  x = check_floating(x, "x")
  if (rate is None) == (std is None):
    raise ValueError(f"give one of rate and std, got rate={rate} and std={std}")
  if rate is not None:
    check_option(rate, "rate", x.shape, low=0, high=1, entrywise=True)
    rate = jnp.asarray(rate, jnp.promote_types(x.dtype, jnp.float32))
    # At rates 0 and 1 the derivative is infinite, so 0.5 replaces the rate.
    inside = (rate > 0) & (rate < 1)
    usual = jnp.where(inside, rate, 0.5)
    std = jnp.where(inside, jnp.sqrt(usual / (1 - usual)), 0)
    x = x if key is None else jnp.where(rate < 1, x, jnp.zeros((), x.dtype))
  assert std is not None
  return gaussian_noise(key, x, std=std, kind="multiplicative", shared_axes=shared_axes)


def check_kind(kind: str) -> None:
  check_choice(kind, "kind", ("additive", "multiplicative"))
