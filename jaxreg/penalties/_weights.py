"""Penalties of the weights alone: norms, priors and orthogonality."""

from __future__ import annotations

import functools
import math

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_option
from jaxreg._leaves import absolute, selected, total, unit_axes
from jaxreg._scaled import norm, scaled
from jaxreg._sharding import partitioned
from jaxreg.paths import kernels_only
from jaxreg.typing import Array, Mask, Params


def l2(params: Params, *, mask: Mask = kernels_only) -> Array:
  r"""Computes half the sum of squared weights.

  .. math:: \Omega(w) = \tfrac12 \sum_i w_i^2, \qquad \nabla \Omega = w

  `alpha * l2(params)` is the convention :math:`(\alpha/2) \|w\|^2`, whose SGD step at rate `eps` is `(1 - eps
  alpha) w - eps grad`. Keras' `L2` and `optax.tree.norm(squared=True)` lack the half. Under an adaptive
  optimizer this is not decoupled weight decay: the optimizer rescales the penalty's gradient together with
  the loss's.

  Args:
    params: any pytree.
    mask: which leaves count; by default kernels and embeddings, no biases and no normalisation scales.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> l2({"kernel": jnp.array([3.0, 4.0]), "bias": jnp.array([9.0])})
    Array(12.5, dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, L2 parameter regularization.
  """
  return total(0.5 * jnp.square(w).sum() for _, w in selected(params, mask))


def l1(params: Params, *, mask: Mask = kernels_only) -> Array:
  r"""Computes the sum of absolute weights.

  .. math:: \Omega(w) = \sum_i |w_i|, \qquad \nabla \Omega = \operatorname{sign}(w), \quad
    \operatorname{sign}(0) = 0

  A weight of exactly 0 stays 0. Gradient steps oscillate around 0 without reaching it; for exact zeros use
  `constraints.proximal` with `constraints.prox_l1`.

  Args:
    params, mask: as in `l2`.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> l1({"kernel": jnp.array([3.0, -4.0]), "bias": jnp.array([9.0])})
    Array(7., dtype=float32)

  References:
    Tibshirani, `Regression shrinkage and selection via the lasso`, 1996, section 2.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, L1 regularization.
  """
  return total(absolute(w).sum() for _, w in selected(params, mask))


def elastic_net(params: Params, *, ratio: ArrayLike, mask: Mask = kernels_only) -> Array:
  r"""Computes `ratio` times the L1 norm plus `1 - ratio` times half the squared L2 norm.

  .. math:: \Omega(w) = \rho \|w\|_1 + \frac{1 - \rho}{2} \|w\|_2^2

  Args:
    params, mask: as in `l2`.
    ratio: `rho` in [0, 1]; 1 is `l1`, 0 is `l2`.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> elastic_net({"kernel": jnp.array([3.0, -4.0])}, ratio=0.5)
    Array(9.75, dtype=float32)

  References:
    Zou and Hastie, `Regularization and variable selection via the elastic net`, 2005.
    Friedman, Hastie and Tibshirani, `Regularization Paths for Generalized Linear Models via Coordinate
    Descent`, 2010 (this parameterisation).
  """
  check_option(ratio, "ratio", (), low=0, high=1)
  return jnp.multiply(ratio, l1(params, mask=mask)) + jnp.multiply(1 - ratio, l2(params, mask=mask))


def gaussian_prior(params: Params, *, precision: ArrayLike, mask: Mask = kernels_only) -> Array:
  r"""Computes minus the log density of independent normal weights.

  .. math:: -\log p(w) = \frac{\alpha}{2} \|w\|_2^2 - \frac n2 \log \frac{\alpha}{2\pi}, \qquad
    w_i \sim \mathcal{N}(0, 1/\alpha)

  Its gradient equals the gradient of `alpha * l2`. The constant matters if `alpha` is learned or densities
  are compared. A maximum a posteriori estimate adds this penalty to the *sum* of the examples' losses; with a
  mean over `N` examples its weight is `1 / N`.

  Args:
    params, mask: as in `l2`; `mask` selects `n` weights in all.
    precision: `alpha` > 0, may be traced.

  Returns:
    A scalar in nats, float32 or wider.

  Example:
    >>> gaussian_prior({"kernel": jnp.array([1.0, 1.0])}, precision=1.0).round(4)
    Array(2.8379, dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, L1 regularization (the MAP
    reading of both norms).
  """
  check_option(precision, "precision", (), low=0, open_low=True)
  half_log = 0.5 * (jnp.log(precision) - math.log(2 * math.pi))
  return jnp.multiply(precision, l2(params, mask=mask)) - _count(params, mask) * half_log


def laplace_prior(params: Params, *, rate: ArrayLike, mask: Mask = kernels_only) -> Array:
  r"""Computes minus the log density of independent Laplace weights.

  .. math:: -\log p(w) = \alpha \|w\|_1 - n (\log \alpha - \log 2), \qquad
    w_i \sim \mathrm{Laplace}(0, 1/\alpha)

  Erratum: the lecture sums the densities of `n` weights and prints the constant once.

  Args:
    params, mask: as in `gaussian_prior`.
    rate: `alpha` > 0, may be traced.

  Returns:
    A scalar in nats, float32 or wider.

  Example:
    >>> laplace_prior({"kernel": jnp.array([1.0, -1.0])}, rate=2.0)
    Array(4., dtype=float32)

  References:
    As in `gaussian_prior`.
  """
  check_option(rate, "rate", (), low=0, open_low=True)
  return jnp.multiply(rate, l1(params, mask=mask)) - _count(params, mask) * (jnp.log(rate) - math.log(2))


def _count(params: Params, mask: Mask) -> int:
  return sum(w.size for _, w in selected(params, mask))


def group_lasso(
  params: Params,
  *,
  axis: int | tuple[int, ...] | None = None,
  size_weighted: bool = True,
  mask: Mask = kernels_only,
) -> Array:
  r"""Computes the sum over units of the norm of each unit's incoming weights.

  .. math:: \Omega(w) = \sum_g \sqrt{n_g}\, \|w_g\|_2, \qquad
    \nabla_{w_g} \Omega = \sqrt{n_g}\, \frac{w_g}{\|w_g\|_2}, \quad 0 \text{ at } w_g = 0

  The penalty drives whole units to zero. The factor `sqrt(n_g)`, with `n_g` the number of weights in a group,
  makes groups of different sizes comparable. For units that are exactly zero use
  `constraints.prox_group_lasso`.

  Args:
    params, mask: as in `l2`.
    axis: axes of a group's weights, the same for all leaves; by default the axes of one unit's incoming
      weights (`paths.incoming_axes`).
    size_weighted: whether to multiply by the root of the size.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> group_lasso({"kernel": jnp.array([[3.0, 0.0], [4.0, 0.0]])}, size_weighted=False)
    Array(5., dtype=float32)

  References:
    Yuan and Lin, `Model selection and estimation in regression with grouped variables`, 2006.
  """

  def of_leaf(name: str, w: Array) -> Array:
    axes = unit_axes(name, w, axis)
    return group_factor(w, axes, size_weighted) * norm(w, axes).sum()

  return total(of_leaf(name, w) for name, w in selected(params, mask))


def group_factor(w: Array, axes: tuple[int, ...], size_weighted: bool) -> float:
  return math.sqrt(math.prod(w.shape[axis] for axis in axes)) if size_weighted else 1.0


def hoyer(params: Params, *, mask: Mask = kernels_only) -> Array:
  r"""The sum over leaves of Hoyer-Square, a measure of how many weights are not zero.

  .. math:: \Omega(w) = \sum_l \frac{\bigl(\sum_i |w_{l,i}|\bigr)^2}{\sum_i w_{l,i}^2}, \qquad
    \frac{\partial \Omega}{\partial w_{l,i}} = \frac{2 \|w_l\|_1}{\|w_l\|_2^2}
    \Bigl(\operatorname{sign}(w_{l,i}) - \frac{\|w_l\|_1}{\|w_l\|_2^2}\, w_{l,i}\Bigr)

  For `n` weights it lies between 1, if one weight alone is not zero, and `n`, if all have the same size. For
  a leaf of zeros the value and its gradient are 0. A common factor of all weights changes nothing: unlike
  `l1`, the penalty makes small weights smaller and large weights larger. Gradient steps reach no exact zero:
  cut off the small weights after the training.

  Args:
    params, mask: as in `l2`.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> hoyer({"kernel": jnp.array([[2.0, -2.0, 2.0, 2.0, 0.0]]), "bias": jnp.array([9.0])})  # 8^2 / 16
    Array(4., dtype=float32)

  References:
    Yang, Wen and Li, `DeepHoyer: Learning Sparser Neural Network with Differentiable Scale-Invariant Sparsity
    Measures`, 2020.
    Hoyer, `Non-negative Matrix Factorization with Sparseness Constraints`, 2004.
  """

  def of_leaf(w: Array) -> Array:
    w, length, _ = scaled(w.ravel(), (0,))
    return jnp.square(absolute(w).sum() / jnp.where(length[0] == 0, 1, length[0]))

  return total(of_leaf(w) for _, w in selected(params, mask))


def orthogonality(
  params: Params, *, axis: int | tuple[int, ...] | None = None, mask: Mask = kernels_only
) -> Array:
  r"""Computes the squared distance of each kernel's Gram matrix from the identity.

  .. math:: \Omega(W) = \|W^\top W - I\|_F^2 \quad\text{if } n \ge m, \qquad
    \|W W^\top - I\|_F^2 \quad\text{otherwise}, \qquad W \in \mathbb{R}^{n \times m}

  Here `m` units have `n` incoming weights each; kernels with more axes are flattened to such a matrix. The
  two forms differ by the constant `|n - m|`. So the smaller one is 0 for every matrix with orthonormal
  columns or rows, and it is cheaper.

  Args:
    params, mask: as in `l2`.
    axis: as in `group_lasso`.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> orthogonality({"kernel": jnp.array([[2.0, 0.0], [0.0, 1.0]])})
    Array(9., dtype=float32)

  References:
    Brock et al., `Neural Photo Editing with Introspective Adversarial Networks`, 2017.
    Bansal, Chen and Wang, `Can We Gain More from Orthogonality Regularizations in Training Deep CNNs?`, 2018.
  """

  def of_leaf(w: Array, axes: tuple[int, ...]) -> Array:
    moved = jnp.moveaxis(w, axes, range(len(axes)))
    # Both sizes explicitly: a kernel without inputs leaves no number of units to infer.
    matrix = moved.reshape(math.prod(moved.shape[: len(axes)]), math.prod(moved.shape[len(axes) :]))
    if matrix.shape[0] < matrix.shape[1]:
      matrix = matrix.T
    # Near the optimum this subtracts nearly equal numbers, so accelerators must not reduce the precision.
    gram = jnp.matmul(matrix.T, matrix, precision="highest")
    return jnp.square(gram - jnp.eye(gram.shape[0], dtype=gram.dtype)).sum()

  leaves = ((w, unit_axes(name, w, axis)) for name, w in selected(params, mask))
  return total(partitioned(functools.partial(of_leaf, axes=axes), w, kept=slice(0)) for w, axes in leaves)
