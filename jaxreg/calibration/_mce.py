"""The maximum calibration error, from per-bin sums."""

import jax.numpy as jnp

from jaxreg._checks import check_wide
from jaxreg.calibration._ece import Bins
from jaxreg.typing import Array


def mce(bins: Bins) -> Array:
  r"""Computes the maximum calibration error from merged bins, in [0, 1].

  .. math:: \max_m \bigl|\operatorname{acc}(m) - \operatorname{conf}(m)\bigr|

  The maximum is over non-empty bins. A bin with few examples has a large gap by chance, and one such bin is
  enough.

  Args:
    bins: sums `[..., num_bins]`, as in `ece`.

  Returns:
    `[...]`, in at least float32; 0 for no examples.

  Example:
    >>> mce(Bins(confidence=jnp.array([3.0]), correct=jnp.array([1.0]), count=jnp.array([4.0])))
    Array(0.5, dtype=float32)

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017.
  """
  confidence, correct, count = (check_wide(x, name) for name, x in zip(Bins._fields, bins, strict=True))
  gaps = jnp.where(count > 0, jnp.abs(correct - confidence) / jnp.where(count > 0, count, 1), 0)
  # On a CPU, compiled code may drop NaN from a maximum.
  return jnp.where(jnp.isnan(gaps).any(axis=-1), jnp.nan, gaps.max(axis=-1))
