"""Classes of unequal frequency: weights for them, and adjusted logits."""

from __future__ import annotations

import math
from typing import Literal

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_logits, check_option, check_range, check_wide, per_class
from jaxreg._where import only_where
from jaxreg.losses._softmax import softmax_cross_entropy
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

  The weights of the examples are `class_weights(counts)[labels]`. With the inverse, each class has the same
  weight in total, as with `class_weight="balanced"` in scikit-learn. The third, the inverse of the effective
  number of examples, lies between equal weights, `beta = 0`, and the inverse, `beta` to 1. The paper's
  weights have the mean 1 over the classes instead.

  Args:
    counts: `n`, `[classes]`, the number of examples of each class, at least 0.
    scheme: "inverse", "sqrt" or "effective", in the order of the equation.
    beta: in [0, 1), for "effective"; static.
    limit: the largest ratio of two weights, at least 1; static. Larger weights are cut before the mean is
      taken. Default: none.

  Returns:
    `[classes]`, float32 or wider; 0 for a class without examples.

  Example:
    >>> class_weights(jnp.array([90, 10]))
    Array([0.5555556, 5.       ], dtype=float32)

  References:
    Cui et al., `Class-Balanced Loss Based on Effective Number of Samples`, 2019, section 4.
  """
  counts = jnp.asarray(counts)
  if counts.ndim != 1 or not counts.size:
    raise ValueError(f"counts must be [classes], got {counts.shape}")
  if not any(jnp.issubdtype(counts.dtype, kind) for kind in (jnp.integer, jnp.floating)):
    raise TypeError(f"counts must be numbers, got {counts.dtype}")
  check_range(counts, "counts", low=0)
  check_choice(scheme, "scheme", ("inverse", "sqrt", "effective"))
  check_option(beta, "beta", (), low=0, high=1, open_high=True)
  if limit is not None:
    check_option(limit, "limit", (), low=1)
  n = counts.astype(jnp.promote_types(counts.dtype, jnp.float32))
  some = n > 0
  safe = jnp.where(some, n, 1)
  if scheme == "effective":
    # 1 - beta^n without the rounding of a beta near 1.
    raw = (1 - beta) / -jnp.expm1(safe * math.log(beta)) if beta else jnp.ones_like(n)
  else:
    raw = 1 / (safe if scheme == "inverse" else jnp.sqrt(safe))
  if limit is not None:
    raw = jnp.minimum(raw, limit * jnp.where(some, raw, jnp.inf).min())
  raw = jnp.where(some, raw, 0)
  total = (n * raw).sum()
  return raw * (n.sum() / jnp.where(total > 0, total, 1))


@only_where()
def logit_adjustment(
  logits: ArrayLike,
  labels: ArrayLike,
  log_prior: ArrayLike,
  *,
  weight: ArrayLike = 1.0,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the cross-entropy of logits raised by the log frequency of their class, for training only.

  .. math:: \ell = -\log \frac{e^{o_t + \tau \log \pi_t}}{\sum_k e^{o_k + \tau \log \pi_k}}

  Predict with the plain logits. The model need not learn the frequencies, so it has the logits of balanced
  classes, for which the loss is consistent at `tau = 1`.

  Args:
    logits, labels, where: as in `softmax_cross_entropy`.
    log_prior: `log pi`, `[classes]`, floating. The logarithms of counts also work: a constant makes no
      difference.
    weight: `tau`, a scalar or `[...]`, at least 0; 0 is the cross-entropy.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> logit_adjustment(jnp.zeros((2, 2)), jnp.array([0, 1]), jnp.log(jnp.array([3.0, 1.0]))).round(4)
    Array([0.2877, 1.3863], dtype=float32)

  References:
    Menon et al., `Long-tail learning via logit adjustment`, 2021.
  """
  logits = check_logits(logits, "logits")
  log_prior = check_wide(log_prior, "log_prior", shape=logits.shape[-1:])
  check_option(weight, "weight", logits.shape[:-1], low=0)
  weight = per_class(weight, logits.dtype)
  log_prior = jnp.broadcast_to(log_prior, logits.shape)
  # A class that never occurs has -inf, and 0 times -inf is NaN.
  never = jnp.isneginf(log_prior)
  adjustment = jnp.where(never & (weight > 0), -jnp.inf, weight * jnp.where(never, 0, log_prior))
  return softmax_cross_entropy(logits + adjustment, labels)
