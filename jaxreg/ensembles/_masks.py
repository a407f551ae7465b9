"""All masks of dropout, and their probabilities."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_option
from jaxreg._sharding import partitioned
from jaxreg.typing import Array

MAX_UNITS = 16


def dropout_masks(num_units: int) -> Array:
  """Enumerates all masks of some units: row `n` holds the binary digits of `n`, so row 0 drops all.

  Args:
    num_units: `d`, at most 16, because `2^d` masks are enumerated. For more units sample: `mc_predict`.

  Returns:
    `[2^d, d]`, bool, true for a kept unit.

  Raises:
    ValueError: if `num_units` is above 16.

  Example:
    >>> dropout_masks(2)
    Array([[False, False],
           [ True, False],
           [False,  True],
           [ True,  True]], dtype=bool)
  """
  check_count(num_units, "num_units")
  if num_units > MAX_UNITS:
    raise ValueError(
      f"num_units must be at most {MAX_UNITS}, got {num_units}: all 2^d masks are enumerated; for more "
      "units sample masks with mc_predict"
    )
  return (jnp.arange(2**num_units)[:, None] >> jnp.arange(num_units)[None]) & 1 == 1


def mask_probs(masks: ArrayLike, *, rate: ArrayLike) -> Array:
  r"""Computes the probability of each mask if units are kept independently.

  .. math:: p(\mu) = \prod_j p_j^{\mu_j} (1 - p_j)^{1 - \mu_j}

  Args:
    masks: `[..., d]`, bool.
    rate: `1 - p`, the probability of dropping a unit, in [0, 1]: a scalar for all units, or `[d]`.

  Returns:
    `[...]`, float32 or wider; over all of `dropout_masks(d)` they sum to 1.

  Example:
    >>> mask_probs(dropout_masks(2), rate=0.25)
    Array([0.0625, 0.1875, 0.1875, 0.5625], dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, dropout: prediction.
  """
  masks = jnp.asarray(masks)
  if masks.dtype != bool or masks.ndim == 0:
    raise TypeError(f"masks must be bool, [..., units], got {masks.dtype} {masks.shape}")
  check_option(rate, "rate", masks.shape[-1:], low=0, high=1)
  rate = jnp.asarray(rate, jnp.promote_types(jnp.result_type(rate, float), jnp.float32))

  def product(masks: Array, rate: Array) -> Array:
    rate = jnp.broadcast_to(rate, masks.shape)
    return jnp.where(masks, 1 - rate, rate).prod(axis=-1)

  return partitioned(product, masks, rate, kept=slice(-1))
