"""Gaussian noise, added or multiplied."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_floating, check_key, check_option, key_first
from jaxreg._sharding import sharding_like
from jaxreg.noise._dropout import shared_shape
from jaxreg.typing import Array, Key

Kind = Literal["additive", "multiplicative"]


@key_first
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
  noise = jax.random.normal(check_key(key), shape, wide, out_sharding=sharding_like(x, shape))
  noise = jnp.asarray(std, wide) * noise
  return (x + noise if kind == "additive" else x * (1 + noise)).astype(x.dtype)


def check_kind(kind: str) -> None:
  check_choice(kind, "kind", ("additive", "multiplicative"))
