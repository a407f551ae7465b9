"""L2 regularisation of linear and quadratic problems: solutions, shrinkage, bias and variance."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
import jax.scipy.linalg
from jax.typing import ArrayLike

from jaxreg._checks import check_range, check_wide
from jaxreg.typing import Array


def ridge(
  x: ArrayLike, y: ArrayLike, *, alpha: ArrayLike, convention: Literal["half", "lecture"] = "half"
) -> Array:
  r"""Solves linear regression with an L2 penalty.

  .. math:: (X^\top X + \alpha I)^{-1} X^\top y
    &= \arg\min_w \tfrac12 \|X w - y\|^2 + \tfrac{\alpha}{2} \|w\|^2 \quad \text{("half")} \\
    (X^\top X + \tfrac{\alpha}{2} I)^{-1} X^\top y
    &= \arg\min_w \|X w - y\|^2 + \tfrac{\alpha}{2} \|w\|^2 \quad \text{("lecture")}

  Erratum: the lecture states the second objective and prints the first solution. If the objective has the
  mean of the squares instead of their sum, `alpha` is multiplied by the number of rows. An intercept must not
  be penalised: centre `x` and `y`, which gives the same weights as a separate intercept.

  Args:
    x: `[rows, features]`, floating.
    y: `[rows]` or `[rows, outputs]`, floating.
    alpha: at least 0; above 0 if the columns of `x` are dependent.
    convention: which objective.

  Returns:
    `[features]` or `[features, outputs]`, float32 or wider.

  Raises:
    TypeError: if `x` or `y` is not floating.
    ValueError: for shapes that do not fit, a negative `alpha` or another `convention`.

  Example:
    >>> ridge(jnp.ones((3, 1)), jnp.array([1.0, 2.0, 1.0]), alpha=1.0)
    Array([1.], dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, L2 parameter regularization
    on machine learning.
  """
  x, y = check_wide(x, "x"), check_wide(y, "y")
  if x.ndim != 2:
    raise ValueError(f"x must be [rows, features], got {x.shape}")
  if y.ndim not in (1, 2) or y.shape[0] != x.shape[0]:
    raise ValueError(f"y must have the {x.shape[0]} rows of x, [rows] or [rows, outputs], got {y.shape}")
  check_range(alpha, "alpha", low=0)
  if convention not in ("half", "lecture"):
    raise ValueError(f"convention must be 'half' or 'lecture', got {convention!r}")
  added = alpha if convention == "half" else jnp.divide(alpha, 2)
  return _solve(_product(x.T, x), added, _product(x.T, y))


def pinv_limit(x: ArrayLike, *, alpha: ArrayLike) -> Array:
  r"""Computes the ridge estimator's matrix, which tends to the pseudo-inverse as `alpha` goes to 0.

  .. math:: X^+ = \lim_{\alpha \searrow 0} (X^\top X + \alpha I)^{-1} X^\top
    = V \operatorname{diag}\Bigl(\frac{s}{s^2 + \alpha}\Bigr) U^\top

  The computation uses singular values; values within rounding of 0 count as 0. The inverse itself is lost to
  rounding in float32 near `alpha` of 1e-4. The distance to the pseudo-inverse is of the order of `alpha`.

  Args:
    x: `[rows, features]`, floating, of any rank.
    alpha: at least 0; 0 gives the pseudo-inverse itself.

  Returns:
    `[features, rows]`, float32 or wider.

  Raises:
    TypeError: if `x` is not floating.
    ValueError: if `x` is not a matrix or `alpha` negative.

  Example:
    >>> pinv_limit(jnp.array([[2.0, 0.0], [0.0, 0.0]]), alpha=0.0)
    Array([[0.5, 0. ],
           [0. , 0. ]], dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, regularization and
    under-constrained problems.
  """
  x = check_wide(x, "x")
  if x.ndim != 2:
    raise ValueError(f"x must be [rows, features], got {x.shape}")
  check_range(alpha, "alpha", low=0)
  u, s, vt = jnp.linalg.svd(x, full_matrices=False)
  counts = s > s.max(initial=0) * max(x.shape) * jnp.finfo(s.dtype).eps
  inverse = jnp.where(counts, s / jnp.where(counts, s**2 + alpha, 1), 0)
  return _product(vt.T * inverse[None], u.T)


def l2_shrinkage(eigvals: ArrayLike, *, alpha: ArrayLike) -> Array:
  r"""Computes the fraction of each eigen-component of the minimiser that L2 regularisation keeps.

  .. math:: \frac{\lambda_i}{\lambda_i + \alpha}

  The components are along the Hessian's eigenvectors, for the penalty :math:`(\alpha/2) \|w\|^2`; with
  :math:`\alpha \|w\|^2` it is :math:`\lambda / (\lambda + 2 \alpha)`.

  Args:
    eigvals: `lambda`, at least 0, any shape, floating.
    alpha: at least 0.

  Returns:
    An array of the shape of `eigvals`, float32 or wider, in [0, 1]; 0 where `lambda` is 0.

  Raises:
    TypeError: if `eigvals` are not floating.
    ValueError: if `alpha` is negative.

  Example:
    >>> l2_shrinkage(jnp.array([0.0, 1.0, 3.0]), alpha=1.0)
    Array([0.  , 0.5 , 0.75], dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, L2 parameter regularization.
  """
  eigvals = check_wide(eigvals, "eigvals")
  check_range(alpha, "alpha", low=0)
  total = eigvals + alpha
  return jnp.where(total <= 0, 0, eigvals / jnp.where(total <= 0, 1, total))


def l2_solution(hessian: ArrayLike, w_star: ArrayLike, *, alpha: ArrayLike) -> Array:
  r"""Computes the minimiser of a quadratic with an L2 penalty.

  .. math:: \tilde w = (H + \alpha I)^{-1} H w^* = \arg\min_w
    \tfrac12 (w - w^*)^\top H (w - w^*) + \tfrac{\alpha}{2} \|w\|^2

  Args:
    hessian: `H`, `[n, n]`, symmetric and positive semi-definite, floating.
    w_star: the minimiser without the penalty, `[n]`.
    alpha: at least 0; above 0 if `H` is singular.

  Returns:
    `[n]`, float32 or wider.

  Raises:
    TypeError: if `hessian` or `w_star` is not floating.
    ValueError: if the shapes do not fit or `alpha` is negative.

  Example:
    >>> l2_solution(jnp.diag(jnp.array([3.0, 15.0])), jnp.array([1.0, 1.0]), alpha=1.0)
    Array([0.75  , 0.9375], dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, L2 parameter regularization.
  """
  w_star = check_wide(w_star, "w_star")
  if w_star.ndim != 1:
    raise ValueError(f"w_star must be [n], got {w_star.shape}")
  hessian = check_wide(hessian, "hessian", shape=(w_star.size, w_star.size))
  check_range(alpha, "alpha", low=0)
  return _solve(hessian, alpha, _product(hessian, w_star))


def effective_dof(eigvals: ArrayLike, *, alpha: ArrayLike) -> Array:
  r"""Computes the effective number of parameters under L2 regularisation.

  .. math:: \sum_i \frac{\lambda_i}{\lambda_i + \alpha}
    = \operatorname{tr}\bigl(X (X^\top X + \alpha I)^{-1} X^\top\bigr)

  Args:
    eigvals: `[..., n]`, at least 0, floating: eigenvalues of the Hessian, for regression of `X' X`.
    alpha: at least 0.

  Returns:
    `[...]`, float32 or wider, between 0 and `n`.

  Raises:
    TypeError: if `eigvals` are not floating.
    ValueError: if `alpha` is negative or `eigvals` is a scalar.

  Example:
    >>> effective_dof(jnp.array([0.0, 1.0, 3.0]), alpha=1.0)
    Array(1.25, dtype=float32)

  References:
    Hastie, Tibshirani and Friedman, `The Elements of Statistical Learning`, 2009, section 3.4.1.
  """
  eigvals = check_wide(eigvals, "eigvals")
  if eigvals.ndim == 0:
    raise ValueError("eigvals must be [..., n], got a scalar")
  return l2_shrinkage(eigvals, alpha=alpha).sum(axis=-1)


def ridge_bias_variance(
  eigvals: ArrayLike, w_star: ArrayLike, *, alpha: ArrayLike, noise: ArrayLike
) -> dict[str, Array]:
  r"""Computes the bias and variance parts of ridge regression's mean squared error in its weights.

  .. math:: \|\mathbb{E} \tilde w - w^*\|^2 = \sum_i \Bigl(\frac{\alpha}{\lambda_i + \alpha}
    (Q^\top w^*)_i\Bigr)^2, \qquad
    \mathbb{E} \|\tilde w - \mathbb{E} \tilde w\|^2 = \sigma^2 \sum_i \frac{\lambda_i}{(\lambda_i + \alpha)^2}

  The expectation is over `y = X w* + noise`. Some `alpha` above 0 always has a smaller sum than 0.

  Args:
    eigvals: `lambda`, `[n]`, of `X' X`, at least 0, floating.
    w_star: `Q' w*`, `[n]`: the true weights along the eigenvectors of `X' X`.
    alpha: penalty weight of `ridge`, at least 0.
    noise: `sigma`, the standard deviation of the targets, at least 0.

  Returns:
    `bias_squared` and `variance`, scalars, float32 or wider; at `alpha = 0` the values of the pseudo-inverse.

  Raises:
    TypeError: if `eigvals` or `w_star` is not floating.
    ValueError: if the shapes do not fit, or `alpha` or `noise` is negative.

  Example:
    >>> ridge_bias_variance(jnp.array([1.0, 3.0]), jnp.array([2.0, 4.0]), alpha=1.0, noise=2.0)
    {'bias_squared': Array(2., dtype=float32), 'variance': Array(1.75, dtype=float32)}

  References:
    Hoerl and Kennard, `Ridge Regression: Biased Estimation for Nonorthogonal Problems`, 1970.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, regularizing
    estimators (in words).
  """
  eigvals = check_wide(eigvals, "eigvals")
  if eigvals.ndim != 1:
    raise ValueError(f"eigvals must be [n], got {eigvals.shape}")
  w_star = check_wide(w_star, "w_star", shape=eigvals.shape)
  check_range(noise, "noise", low=0)
  kept = l2_shrinkage(eigvals, alpha=alpha)
  # kept / (lambda + alpha), with 0 / 0 = 0: a direction without curvature is not learned and has no noise.
  total = eigvals + alpha
  variance = jnp.where(total <= 0, 0, kept / jnp.where(total <= 0, 1, total)).sum()
  return {"bias_squared": jnp.square((1 - kept) * w_star).sum(), "variance": jnp.square(noise) * variance}


def _product(a: Array, b: Array) -> Array:
  return jnp.matmul(a, b, precision="highest")


def _solve(matrix: Array, added: ArrayLike, right: Array) -> Array:
  """Solves `(matrix + added I) x = right`."""
  return jax.scipy.linalg.solve(
    matrix + added * jnp.eye(len(matrix), dtype=matrix.dtype), right, assume_a="pos"
  )
