"""How far the weights of different units are from orthonormal."""

import functools
import math

import jax
import jax.numpy as jnp

from jaxreg._errors import ArgumentError
from jaxreg._leaves import selected, total, unit_axes
from jaxreg._sharding import partitioned
from jaxreg.paths import is_below_stacked, kernels_only
from jaxreg.typing import Array, Mask, Params


def orthogonality(
  params: Params, *, axis: int | tuple[int, ...] | None = None, mask: Mask = kernels_only
) -> Array:
  r"""Computes the squared distance of each kernel's Gram matrix from the identity.

  .. math:: \Omega(W) = \|W^\top W - I\|_F^2 \quad\text{if } n \ge m, \qquad
    \|W W^\top - I\|_F^2 \quad\text{otherwise}, \qquad W \in \mathbb{R}^{n \times m}

  Here `m` units have `n` incoming weights each; kernels with more axes are flattened to such a matrix. The
  two forms differ by the constant `|n - m|`. So the smaller one is 0 for every matrix with orthonormal
  columns or rows, and it is cheaper. Below `stacked` each layer has its own matrix.

  Args:
    params, mask: as in `l2`.
    axis: as in `group_lasso`.

  Returns:
    A scalar, float32 or wider.

  Raises:
    ValueError: for a selected leaf of fewer than two axes, such as a bias.

  Example:
    >>> orthogonality({"kernel": jnp.array([[2.0, 0.0], [0.0, 1.0]])})
    Array(9., dtype=float32)

  References:
    Brock et al., `Neural Photo Editing with Introspective Adversarial Networks`, 2017.
    Bansal, Chen and Wang, `Can We Gain More from Orthogonality Regularizations in Training Deep CNNs?`, 2018.
  """

  def leaf_penalty(w: Array, axes: tuple[int, ...]) -> Array:
    moved = jnp.moveaxis(w, axes, range(len(axes)))
    # Both sizes explicitly: a kernel without inputs leaves no number of units to infer.
    matrix = moved.reshape(math.prod(moved.shape[: len(axes)]), math.prod(moved.shape[len(axes) :]))
    if matrix.shape[0] < matrix.shape[1]:
      matrix = matrix.T
    # Near the optimum this subtracts nearly equal numbers, so accelerators must not reduce the precision.
    gram = jnp.matmul(matrix.T, matrix, precision="highest")
    return jnp.square(gram - jnp.eye(gram.shape[0], dtype=gram.dtype)).sum()

  def layers_penalty(w: Array, axes: tuple[int, ...]) -> Array:
    of_layer = functools.partial(leaf_penalty, axes=tuple(axis - 1 for axis in axes))
    return jax.vmap(of_layer)(w).sum()

  def penalty_of(name: str, w: Array) -> Array:
    if w.ndim < 2:
      raise ArgumentError(
        "mask", f"must select matrices, and leave out biases and other vectors, got params/{name} {w.shape}"
      )
    axes = unit_axes(name, w, axis)
    penalty = layers_penalty if is_below_stacked(name) and 0 not in axes else leaf_penalty
    return partitioned(functools.partial(penalty, axes=axes), w, kept=slice(0))

  return total(penalty_of(name, w) for name, w in selected(params, mask))
