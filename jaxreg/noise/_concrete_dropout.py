"""Concrete dropout: a rate learned through relaxed masks, and its KL cost."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_floating, check_key, check_option, check_wide
from jaxreg._sharding import drawn_like
from jaxreg.noise._dropout import shared_shape
from jaxreg.typing import Array, Key

# From this logit on, where 1 - rate is 4e-18, a tangent continues the KL's factor 1 / (1 - rate).
_LINEAR_FROM = 40.0


def concrete_dropout(
  key: Key | None,
  x: ArrayLike,
  *,
  rate_logit: ArrayLike,
  temperature: ArrayLike = 0.1,
  shared_axes: tuple[int, ...] = (),
) -> Array:
  r"""Applies dropout with a relaxed mask, through which the gradient reaches the rate.

  .. math:: y = x \odot \frac{1 - z}{1 - p}, \qquad
    z = \sigma\Bigl(\frac1t \bigl(\operatorname{logit} p + \operatorname{logit} u\bigr)\Bigr), \qquad
    u \sim \mathrm{U}(0, 1)

  As `t` goes to 0 this becomes inverted dropout at rate `p`. The mean of `1 - z` is `1 - p` only in that
  limit and at `p = 1/2`. At test time nothing is done. Train `rate_logit` with `concrete_dropout_kl` in the
  loss: without it nothing keeps the rate from going to 0.

  Args:
    key, x, shared_axes: as in `dropout`.
    rate_logit: `logit p`, a scalar, to be trained.
    temperature: `t`, positive.

  Example:
    >>> concrete_dropout(jax.random.key(0), jnp.ones(4), rate_logit=-1.0).round(2)
    Array([0.  , 0.  , 1.37, 1.37], dtype=float32)

  References:
    Gal, Hron and Kendall, `Concrete Dropout`, 2017, section 3.
  """
  x = check_floating(x, "x")
  wide = jnp.promote_types(x.dtype, jnp.float32)
  logit = check_floating(rate_logit, "rate_logit", shape=()).astype(wide)
  shape = shared_shape(x, shared_axes)
  check_option(temperature, "temperature", shape, low=0, open_low=True, entrywise=True)
  if key is None:
    return x
  noise = drawn_like(x, jax.random.logistic, check_key(key), shape, dtype=wide)
  # In logarithms, because 1 - z and 1 - p can both be 0 when their quotient is not.
  log_kept = jax.nn.log_sigmoid(-(logit + noise) / temperature) - jax.nn.log_sigmoid(-logit)
  return (x * jnp.exp(log_kept)).astype(x.dtype)


def concrete_dropout_kl(kernel: ArrayLike, *, rate_logit: ArrayLike, length_scale: ArrayLike = 1.0) -> Array:
  r"""Computes the KL term that concrete dropout adds to the negative log-likelihood of the training set.

  .. math:: \frac{l^2}{2} \frac{\|W\|^2}{1 - p} - K \mathrm{H}(p), \qquad
    \mathrm{H}(p) = -p \log p - (1 - p) \log (1 - p)

  The term belongs to one layer with dropout on its `K` inputs. With a mean loss, divide it by the number of
  training examples. The paper has `(1 - p) |M|^2`, where dropout multiplies the weights `M` by 0 or 1; under
  inverted dropout the kernel is `W = (1 - p) M`.

  Args:
    kernel: kernel of the layer with the dropped inputs, `[..., K, units]`, floating: dense, or a convolution
      whose input channels are dropped. Equinox has `[units, K, ...]`: give its `weight.T`, or the
      `jnp.moveaxis(weight, (0, 1), (-1, -2))` of a convolution.
    rate_logit: `logit p`, a scalar.
    length_scale: `l`, the length scale of the prior on the weights, at least 0.

  Returns:
    A scalar, float32 or wider; finite at any finite `rate_logit`: where `1 - p` is below 4e-18, a tangent
    continues `1 / (1 - p)`.

  Example:
    >>> concrete_dropout_kl(jnp.ones((2, 3)), rate_logit=0.0)  # 6 - 2 log(2)
    Array(4.6137056, dtype=float32)

  References:
    Gal, Hron and Kendall, `Concrete Dropout`, 2017, section 3.
  """
  kernel = check_wide(kernel, "kernel")
  if kernel.ndim < 2:
    raise ValueError(f"kernel must have shape [..., inputs, units], got {kernel.shape}")
  check_option(length_scale, "length_scale", (), low=0)
  logit = check_floating(rate_logit, "rate_logit", shape=()).astype(kernel.dtype)
  low = jnp.minimum(logit, _LINEAR_FROM)
  inverse_keep = 1 + jnp.exp(low) * (1 + logit - low)
  # p log p from finite factors: the sigmoid reaches 0 before its logarithm is infinite.
  off, on = (jax.nn.sigmoid(s) * jax.nn.log_sigmoid(s) for s in (logit, -logit))
  scale = jnp.square(jnp.asarray(length_scale, kernel.dtype)) / 2
  return scale * jnp.square(kernel).sum() * inverse_keep + kernel.shape[-2] * (off + on)
