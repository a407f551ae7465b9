"""All masks of dropout, and their probabilities."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg.typing import Array, check_count, check_range

MAX_UNITS = 16


def dropout_masks(num_units: int) -> Array:
  """Enumerates all masks of some units: row `n` holds the binary digits of `n`, so row 0 drops all.

  Args:
    num_units: `d`, at most 16, because `2^d` masks are enumerated. For more units sample: `mc_predict`.

  Returns:
    `[2^d, d]`, bool, true for a kept unit.

  Raises:
    TypeError: if `num_units` is not an integer.
    ValueError: if it is below 1 or above 16.

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


def mask_probs(masks: ArrayLike, *, keep_prob: ArrayLike) -> Array:
  r"""Computes the probability of each mask if units are kept independently.

  .. math:: p(\mu) = \prod_j p_j^{\mu_j} (1 - p_j)^{1 - \mu_j}

  Args:
    masks: `[..., d]`, bool.
    keep_prob: `p`, the probability of keeping a unit, in [0, 1]: a scalar for all units, or `[d]`.

  Returns:
    `[...]`, float32 or wider; over all of `dropout_masks(d)` they sum to 1.

  Raises:
    TypeError: if `masks` are not bool.
    ValueError: if `keep_prob` is outside [0, 1] or of another shape.

  Example:
    >>> mask_probs(dropout_masks(2), keep_prob=0.75)
    Array([0.0625, 0.1875, 0.1875, 0.5625], dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, dropout: prediction.
  """
  masks = jnp.asarray(masks)
  if masks.dtype != bool or masks.ndim == 0:
    raise TypeError(f"masks must be bool, [..., units], got {masks.dtype} {masks.shape}")
  keep = jnp.asarray(keep_prob, jnp.promote_types(jnp.result_type(keep_prob, float), jnp.float32))
  if keep.shape not in ((), masks.shape[-1:]):
    raise ValueError(f"keep_prob must be a scalar or {masks.shape[-1:]}, got {keep.shape}")
  if not isinstance(keep_prob, Tracer):
    known = np.asarray(keep_prob)
    for end in (known.min(initial=1), known.max(initial=0)):
      check_range(end, "keep_prob", low=0, high=1)
  keep = jnp.broadcast_to(keep, masks.shape)
  return jnp.where(masks, keep, 1 - keep).prod(axis=-1)
