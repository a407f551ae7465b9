"""Linear regression with dropout on its inputs: ridge regression with a penalty weight per feature."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_range, check_wide
from jaxreg.typing import Array


def dropout_ridge(X: ArrayLike, y: ArrayLike, *, keep_prob: ArrayLike, inverted: bool = False) -> Array:
  r"""Computes the minimiser of the expected squared error over dropout masks.

  .. math:: w = \arg\min_w \mathbb{E}_Z \|y - (Z \odot X) w\|^2
    = \bigl(p X^\top X + (1 - p) \operatorname{diag}(X^\top X)\bigr)^{-1} X^\top y,
    \qquad Z_{ij} \sim \mathrm{Ber}(p)

  For inverted dropout, with masks `Z / p`, `w` is `p` times as large: the weights for test time.

  Args:
    X: `[examples, features]`, floating.
    y: `[examples]` or `[examples, outputs]`, floating.
    keep_prob: `p`, the probability of keeping, in (0, 1].
    inverted: whether the kept entries are divided by `p`.

  Returns:
    `[features]` or `[features, outputs]`, float32 or wider. Among several minimisers this is the smallest: at
    `keep_prob` 1 it is least squares, and a feature that is always 0 has weight 0.

  Raises:
    TypeError: if an array is not floating.
    ValueError: if the shapes do not fit or `keep_prob` is outside (0, 1].

  Example:
    >>> dropout_ridge(jnp.array([[1., 1.], [1., -1.]]), jnp.array([2., 0.]), keep_prob=0.5).round(4)
    Array([1., 1.], dtype=float32)

  References:
    Srivastava et al., `Dropout: A Simple Way to Prevent Neural Networks from Overfitting`, 2014, section 9.1.
  """
  X, y, p = _check(X, y, keep_prob)
  # As least squares, which keeps twice as many digits as the normal equations. The added rows are diagonal:
  # the root of each feature's sum of squares over the examples.
  penalty = jnp.sqrt(1 - p) * jnp.diag(jnp.sqrt(jnp.square(X).sum(axis=0)))
  rows = jnp.concatenate([jnp.sqrt(p) * X, penalty])
  targets = jnp.concatenate([y / jnp.sqrt(p), jnp.zeros((X.shape[1], *y.shape[1:]), y.dtype)])
  w = jnp.linalg.lstsq(rows, targets)[0]
  return p * w if inverted else w


def dropout_ridge_loss(
  w: ArrayLike, X: ArrayLike, y: ArrayLike, *, keep_prob: ArrayLike, inverted: bool = False
) -> Array:
  r"""Computes the mean over dropout masks of a linear model's summed squared error.

  .. math:: \mathbb{E}_Z \|y - (Z \odot X) w\|^2 = \|y - p X w\|^2 + p (1 - p) \sum_j \|X_j\|^2 w_j^2

  Inverted, with masks `Z / p`: :math:`\|y - X w\|^2 + \frac{1 - p}{p} \sum_j \|X_j\|^2 w_j^2`.

  Args:
    w: `[features]` or `[features, outputs]`, floating.
    X, y, keep_prob, inverted: as in `dropout_ridge`.

  Returns:
    A scalar, float32 or wider.

  Raises:
    TypeError, ValueError: as `dropout_ridge`.

  Example:
    >>> dropout_ridge_loss(jnp.ones(2), jnp.ones((1, 2)), jnp.ones(1), keep_prob=0.5)  # 0 + 1/4 + 1/4
    Array(0.5, dtype=float32)

  References:
    Srivastava et al., `Dropout: A Simple Way to Prevent Neural Networks from Overfitting`, 2014, section 9.1.
  """
  X, y, p = _check(X, y, keep_prob)
  w = check_wide(w, "w", shape=(X.shape[1], *y.shape[1:]))
  if inverted:
    w = w / p
  spread = jnp.square(X).sum(axis=0) @ jnp.square(w)
  return jnp.square(y - p * (X @ w)).sum() + p * (1 - p) * spread.sum()


def _check(X: ArrayLike, y: ArrayLike, keep_prob: ArrayLike) -> tuple[Array, Array, Array]:
  X, y = check_wide(X, "X"), check_wide(y, "y")
  if X.ndim != 2 or y.ndim not in (1, 2) or y.shape[0] != X.shape[0]:
    raise ValueError(
      f"y must be [examples] or [examples, outputs] for X [examples, features], got {y.shape} for {X.shape}"
    )
  check_range(keep_prob, "keep_prob", low=0, high=1, open_low=True)
  return X, y, jnp.asarray(keep_prob, jnp.promote_types(X.dtype, y.dtype))
