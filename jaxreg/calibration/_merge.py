"""Sums of batches, added on the host."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def merge(total: Any, new: Any) -> Any:
  """Adds the sums of a batch to a total in float64 on the host, so that any number of batches merges exactly.

  A total in float32 drifts: after 2**24 examples, it no longer counts a single one.

  Args:
    total: what this function returned for the earlier batches, or None before the first.
    new: the sums of a batch: any tree of arrays, as from `nll`, `ece_bins` or `ensembles.laplace_curvature`.

  Returns:
    The same tree of float64 NumPy arrays. Functions of sums, such as `ece`, take it.

  Raises:
    ValueError: if `total` and `new` have different structures.

  Example:
    >>> total = None
    >>> for sum_and_count in ((np.float32(2**24), np.float32(2**24)), (np.float32(0.5), np.float32(1))):
    ...   total = merge(total, sum_and_count)
    >>> float(total[0]), float(total[1])
    (16777216.5, 16777217.0)
  """
  new = jax.tree.map(lambda x: np.asarray(x, np.float64), new)
  return new if total is None else jax.tree.map(np.add, total, new)
