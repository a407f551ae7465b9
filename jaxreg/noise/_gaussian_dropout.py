"""Dropout with Gaussian factors."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_floating, check_option, key_first
from jaxreg.noise._gaussian_noise import gaussian_noise
from jaxreg.typing import Array, Key


@key_first
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

  Returns:
    An array of the shape and dtype of `x`.

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
    # The root has an infinite derivative at rate 0, the quotient at rate 1; there 0.5 takes their place.
    inside = (rate > 0) & (rate < 1)
    usual = jnp.where(inside, rate, 0.5)
    std = jnp.where(inside, jnp.sqrt(usual / (1 - usual)), 0)
    x = x if key is None else jnp.where(rate < 1, x, jnp.zeros_like(x))
  assert std is not None
  return gaussian_noise(key, x, std=std, kind="multiplicative", shared_axes=shared_axes)
