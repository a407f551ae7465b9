"""DropConnect: dropout of single weights."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_floating, check_option
from jaxreg._sharding import placed_like
from jaxreg.noise._dropout import dropout
from jaxreg.noise._weight_noise import map_selected
from jaxreg.paths import kernels_only
from jaxreg.typing import Array, Key, Mask, Params


def dropconnect(
  key: Key | None,
  x: ArrayLike,
  kernel: ArrayLike,
  *,
  rate: ArrayLike,
  bias: ArrayLike | None = None,
  per_example: bool = True,
  inverted: bool = True,
) -> Array:
  r"""Applies a dense layer and drops each of its weights with probability `rate`.

  .. math:: y = \frac{(M \odot W)^\top x}{1 - \text{rate}} + b \ \text{(inverted)},
    \qquad M_{ij} \sim \mathrm{Ber}(1 - \text{rate})

  The noise is inside the product, so this function takes the kernel too, unlike the rest of this folder. Some
  networks call `stochastic_depth` by this name; that is another method. At test time use the plain layer.

  Args:
    key: one draw for the whole of `x`; None for the plain layer.
    x: `[..., features]`, floating.
    kernel: `[features, units]`, floating.
    rate: probability of dropping a weight, in [0, 1]; may be traced.
    bias: `[units]`, not dropped. To drop it as in the paper, make it a row of `kernel` for an input of ones.
    per_example: whether each entry of the leading axes gets its own mask, as in the paper, at `features *
      units` random numbers each; otherwise one mask serves all of `x`.
    inverted: whether the result is scaled to keep the mean.

  Returns:
    `[..., units]`, in the dtype of `x`; the bias at rate 1.

  Example:
    >>> dropconnect(jax.random.key(0), jnp.ones((2, 4)), jnp.ones((4, 3)), rate=0.5)
    Array([[6., 0., 6.],
           [0., 2., 2.]], dtype=float32)

  References:
    Wan et al., `Regularization of Neural Networks using DropConnect`, 2013, section 3.
  """
  x, kernel = _check(x, kernel)
  check_option(rate, "rate", (), low=0, high=1)
  wide = jnp.promote_types(x.dtype, jnp.float32)
  if per_example and key is not None:
    kernel = placed_like(jnp.broadcast_to(kernel, (*x.shape[:-1], *kernel.shape)), x[..., None])
  weights = dropout(key, kernel, rate=rate, inverted=False)
  product = jnp.einsum("...f,...fu->...u", x, weights, preferred_element_type=wide)
  if inverted and key is not None:
    product = product / _positive(1 - jnp.asarray(rate, wide))
  return _plus(product, bias, x.dtype)


def dropconnect_params(
  key: Key | None, params: Params, *, rate: ArrayLike, mask: Mask = kernels_only, inverted: bool = True
) -> Params:
  """Drops single weights of any model: `apply(dropconnect_params(key, params, rate=0.5), x)`.

  One mask serves the whole batch; `dropconnect` draws one per example. Call it inside the loss: the gradients
  then belong to the clean parameters, and no noise stays in them.

  Args:
    key, params, mask: as in `weight_noise`.
    rate, inverted: as in `dropconnect`.

  Example:
    >>> params = {"kernel": jnp.ones(4), "bias": jnp.ones(2)}
    >>> dropconnect_params(jax.random.key(1), params, rate=0.5)["kernel"]
    Array([2., 0., 2., 2.], dtype=float32)

  References:
    Wan et al., `Regularization of Neural Networks using DropConnect`, 2013, section 3.
  """
  check_option(rate, "rate", (), low=0, high=1)

  def drop(key, leaf):
    return dropout(key, leaf, rate=rate, inverted=inverted)

  return map_selected(drop, key, params, mask)


def _check(x: ArrayLike, kernel: ArrayLike) -> tuple[Array, Array]:
  x, kernel = check_floating(x, "x"), check_floating(kernel, "kernel")
  if x.ndim == 0 or kernel.ndim != 2 or kernel.shape[0] != x.shape[-1]:
    raise ValueError(
      f"kernel must have shape [features, units] for x [..., features], got {kernel.shape} for {x.shape}"
    )
  return x, kernel


def _positive(keep: Array) -> Array:
  # At rate 1 nothing is kept; dividing by 1 instead of 0 keeps value and gradient exactly 0.
  return jnp.where(keep > 0, keep, 1)


def _plus(product: Array, bias: ArrayLike | None, dtype: Any) -> Array:
  if bias is None:
    return product.astype(dtype)
  bias = check_floating(bias, "bias", shape=product.shape[-1:])
  return (product + jnp.broadcast_to(bias, product.shape)).astype(dtype)
