"""Weights for classes of unequal frequency."""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_option, check_range, known_values
from jaxreg.typing import Array


def class_weights(
  counts: ArrayLike,
  *,
  scheme: Literal["inverse", "sqrt", "effective"] = "inverse",
  beta: float = 0.999,
  limit: float | None = None,
) -> Array:
  r"""Computes a weight for each class that falls with its frequency; the mean over all examples is 1.

  .. math:: w_k \propto \frac{1}{n_k}, \quad \frac{1}{\sqrt{n_k}} \quad \text{or} \quad
    \frac{1 - \beta}{1 - \beta^{n_k}}, \qquad \frac{1}{n} \sum_k n_k w_k = 1

  The weights of the examples are `class_weights(counts)[labels]`. With "inverse", all classes have the same
  total weight, as with `class_weight="balanced"` in scikit-learn. "effective" is the inverse of the effective
  number of examples. It gives equal weights at `beta = 0` and approaches "inverse" as `beta` goes to 1. The
  paper's weights have the mean 1 over the classes instead.

  Args:
    counts: `n`, `[classes]`, the number of examples of each class, at least 0.
    scheme: "inverse", "sqrt" or "effective", in the order of the equation.
    beta: in [0, 1), for "effective"; static.
    limit: the largest ratio of two weights, at least 1; static. Larger weights are clipped before
      normalization. Default: no limit.

  Returns:
    `[classes]`, float32 or wider; 0 for a class without examples.

  Example:
    >>> class_weights(jnp.array([90, 10]))
    Array([0.5555556, 5.       ], dtype=float32)

  References:
    Cui et al., `Class-Balanced Loss Based on Effective Number of Samples`, 2019, section 4.
  """
  # In NumPy, since JAX wraps integers of 64 bits to 32 without a word.
  counts = counts if isinstance(counts, jax.Array) else np.asarray(counts)
  if counts.ndim != 1 or not counts.size:
    raise ValueError(f"counts must be [classes], got {counts.shape}")
  if not any(jnp.issubdtype(counts.dtype, kind) for kind in (jnp.integer, jnp.floating)):
    raise TypeError(f"counts must be numbers, got {counts.dtype}")
  check_range(counts, "counts", low=0, float64=True)
  check_choice(scheme, "scheme", ("inverse", "sqrt", "effective"))
  check_range(beta, "beta", low=0, high=1, open_high=True, float64=True)
  if limit is not None:
    check_option(limit, "limit", (), low=1, high=math.inf)
  dtype, known = jnp.promote_types(counts.dtype, jnp.float32), known_values(counts)
  # Known counts are weighed in float64, since counts above 3e38 and products of large ones overflow float32.
  xp: Any = jnp if known is None else np
  n = counts.astype(dtype) if known is None else known.astype(np.float64)
  some = n > 0
  safe = xp.where(some, n, 1)
  if scheme == "effective":
    # 1 - beta^n without the rounding of a beta near 1.
    raw = (1 - beta) / -xp.expm1(safe * math.log(beta)) if beta else xp.ones_like(n)
  else:
    raw = 1 / (safe if scheme == "inverse" else xp.sqrt(safe))
  if limit is not None:
    raw = xp.minimum(raw, limit * xp.where(some, raw, xp.inf).min())
  raw = xp.where(some, raw, 0)
  total = (n * raw).sum()
  return jnp.asarray((raw * (n.sum() / xp.where(total > 0, total, 1))).astype(dtype))
