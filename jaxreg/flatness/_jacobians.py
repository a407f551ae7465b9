"""The Gauss-Newton matrix and its diagonal from per-example Jacobians, exactly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg._analyses import (
  as_mean_and_count,
  example_count,
  full_precision,
  num_examples,
  same,
  times_count,
  widened,
)
from jaxreg._checks import check_count, check_loss_fn
from jaxreg._jacobians import ExampleKeys, pull_back, unit_outputs_per_example
from jaxreg._sums import sum_of_rows
from jaxreg.flatness._chunked import checked_chunk_size, sum_over_chunks
from jaxreg.flatness._subset import selected
from jaxreg.typing import Array, Batch, Key, Mask, Params

_ENTRIES = 2**24  # the maximum number of entries of per-example gradients in memory: 64 MiB


@full_precision
def gauss_newton_diagonal(
  apply_fn: Callable[..., Array],
  outer_loss_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  mask: Mask = "*",
  chunk_size: int | None = None,
) -> Array:
  r"""Computes the diagonal of the Gauss-Newton matrix exactly, by one backward pass for each output.

  .. math:: \operatorname{diag}(G) = \sum_i \sum_r a_{ir} (J_i^\top u_{ir})^2, \qquad
    \nabla_{z_i}^2 L = \sum_r a_{ir} u_{ir} u_{ir}^\top

  Its sum is the trace. If the network is piecewise linear in each of its layers, the Hessian of all
  parameters has the same diagonal and trace: within a layer the two matrices are equal. ReLU networks with
  convolutions, pooling and BatchNorm's running averages are such networks.

  Memory never holds the gradients of all examples in a dense or convolutional layer. Other parameters, such
  as a normalisation's, cost one more forward and backward pass of all examples at once.

  Args:
    apply_fn: `(params, batch, *, key) -> [n, ...]`, the outputs of each example, called with `key=None`. It
      must not couple examples, and layers must keep them on the leading axis.
    outer_loss_fn: `(outputs, batch) -> scalar`, a mean over the examples. If some do not count, or not alike,
      it must return `(mean, count)`: it gets one chunk of examples at a time.
    params, mask: as in `hvp`; the diagonal `[size]` is in the order of `subset(params, mask).flat`.
    batch: `n` examples along the leading axis of its leaves; `Curvature.gauss_newton_diagonal` takes loaders.
    chunk_size: how many examples to process at a time; by default all.

  Example:
    >>> outputs, outer = (lambda params, x, *, key: x @ params), (lambda z, x: 0.5 * (z**2).mean())
    >>> gauss_newton_diagonal(outputs, outer, jnp.ones(2), jnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([2., 8.], dtype=float32)

  References:
    Dangel, Kunstner and Hennig, `BackPACK: Packing more into Backprop`, 2020.
  """
  check_loss_fn(apply_fn, "apply_fn")
  size = checked_chunk_size(chunk_size, batch)
  summed = _Diagonal(apply_fn, outer_loss_fn, selected(params, mask))
  total, count = sum_over_chunks(summed, size, widened(params), widened(batch))
  return total / count


@dataclasses.dataclass(frozen=True)
class _Diagonal:
  """Computes the diagonal of some examples, times their count, and the count."""

  apply_fn: Callable[..., Array]
  outer_loss_fn: Callable[..., Array]
  mask: tuple[bool, ...]

  def __call__(
    self, params: Params, examples: Batch, key: None, first: Array | int, stride: int
  ) -> tuple[Array, Array]:
    del key, first, stride
    values, count = diagonal(self.apply_fn, self.outer_loss_fn, self.mask, params, examples)
    return times_count(values, count), count


@partial(jax.jit, static_argnums=(0, 1, 2))
def diagonal(
  apply_fn: Callable[..., Array],
  outer_loss_fn: Callable[..., Array],
  mask: tuple[bool, ...],
  params: Params,
  batch: Batch,
) -> tuple[Array, Array]:
  """Computes the diagonal for the leaves in `mask`, and how many examples count."""

  def factors(z: Array) -> tuple[Array, Array]:
    return jnp.linalg.eigh(outer_hessians(outer_loss_fn, z, batch))

  def eigenvectors(z: Array) -> Array:
    return jnp.swapaxes(factors(z)[1], 1, 2).reshape(len(z), -1, *z.shape[1:])

  rows = pull_back(apply_fn, mask, params, batch, eigenvectors)
  scales = factors(rows.outputs)[0]
  squares = {number: _weighted_squares(scales, gradients) for number, gradients in rows.others.items()}
  for layer, inputs, gradients in rows.layers:
    squares |= layer.spread(_squares(scales, inputs, gradients))
  values = jnp.concatenate([squares[number].reshape(-1) for number in sorted(squares)])
  return values, _outer_count(outer_loss_fn, rows.outputs, batch)


def _weighted_squares(scales: Array, gradients: Array) -> Array:
  """Sums weighted squares over examples and factors, `[n, r]` and `[n, r, ...] -> [...]`."""
  # A reduction adds in pairs; a matrix product adds nearly one entry after the other.
  return (scales.reshape(*scales.shape, *[1] * (gradients.ndim - 2)) * gradients**2).sum(axis=(0, 1))


def _squares(scales: Array, h: Array, g: Array) -> Array:
  """Sums the scaled squares of a layer's gradients over examples and factors.

  `[n, r]`, inputs `[n, positions, k]`, gradients in outputs `[n, r, positions, units]` `-> [k, units]`.
  """
  n, positions, k = h.shape
  factors, units = g.shape[1], g.shape[3]
  first, second = jnp.triu_indices(positions)
  by_pairs = len(first) <= factors * positions

  def squares_of_rows(scales: Array, h: Array, g: Array) -> Array:
    if not by_pairs:
      gradients = jnp.einsum("ntk,ntx->nkx", h, jnp.swapaxes(g, 1, 2).reshape(len(g), positions, -1))
      return jnp.einsum("nr,nkru->ku", scales, gradients.reshape(len(g), k, factors, units) ** 2)
    # The square of a sum over positions is a sum over pairs, so one matrix product serves all examples.
    weights = jnp.where(first == second, 1, 2).astype(h.dtype)
    outer = jnp.einsum("p,nr,nrpu,nrpu->npu", weights, scales, g[:, :, first], g[:, :, second])
    return jnp.einsum("npk,npu->ku", h[:, first] * h[:, second], outer)

  entries = len(first) * (k + factors * units) if by_pairs else factors * k * units
  size = max(1, min(n, _ENTRIES // entries))
  return sum_of_rows(squares_of_rows, size, jnp.zeros((k, units), h.dtype), scales, h, g)


@full_precision
def gauss_newton_matrix(
  apply_fn: Callable[..., Array],
  outer_loss_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  mask: Mask = "*",
  key: Key | None = None,
  chunk_size: int = 16,
) -> Array:
  r"""Computes the Gauss-Newton matrix from per-example Jacobians, by one matrix product per chunk.

  .. math:: G = \frac1n \sum_i J_i^\top A_i J_i, \qquad J_i = \partial z_i / \partial \theta, \quad
    A_i = \nabla_z^2 \ell_i

  It is `gauss_newton(...).matrix()`, and costs one backward pass per output, not one product per parameter.

  If the outputs are piecewise linear in the selected parameters, this is the exact Hessian. That holds for
  one linear or convolutional layer of a ReLU network, with residual connections, pooling and BatchNorm's
  running averages too. It does not hold for two layers together, smooth activations after the layer, or a
  layer before attention. A product of `hvp` with a random vector tells whether the two matrices agree.

  Args:
    apply_fn: `(params, batch, *, key) -> [n, ...]`, the outputs of each example, called with batches of any
      size. It must not couple examples, and layers must keep them on the leading axis.
    outer_loss_fn, params, batch, mask: as in `gauss_newton_diagonal`; the matrix is `[size, size]`. If some
      examples do not count, or not alike, `outer_loss_fn` must return `(mean, count)`: it gets one chunk of
      examples at a time, and chunks weigh by their counts.
    key: for noise; each example gets its own key.
    chunk_size: how many examples to process at a time; memory holds their Jacobians, `[chunk_size, outputs,
      size]`.

  Example:
    >>> outputs, outer = (lambda params, x, *, key: x @ params), (lambda z, x: 0.5 * (z**2).mean())
    >>> gauss_newton_matrix(outputs, outer, jnp.ones(2), jnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([[2., 0.],
           [0., 8.]], dtype=float32)

  References:
    Schraudolph, `Fast Curvature Matrix-Vector Products for Second-Order Gradient Descent`, 2002.
  """
  check_loss_fn(apply_fn, "apply_fn")
  check_count(chunk_size, "chunk_size")
  num_examples(batch)
  block = _Block(apply_fn, outer_loss_fn, selected(params, mask))
  total, count = sum_over_chunks(block, int(chunk_size), widened(params), widened(batch), key)
  return (total + total.T) / (2 * count)


@dataclasses.dataclass(frozen=True)
class _Block:
  """Computes the matrix of some examples, times their count, and the count."""

  apply_fn: Callable[..., Array]
  outer_loss_fn: Callable[..., Array]
  mask: tuple[bool, ...]

  def __call__(
    self, params: Params, examples: Batch, key: Key | None, first: Array | int, stride: int
  ) -> tuple[Array, Array]:
    keys = None if key is None else ExampleKeys(same(key), first, stride)  # type: ignore[arg-type]
    jacobians = pull_back(self.apply_fn, self.mask, params, examples, unit_outputs_per_example, keys)
    rows, curvature = jacobians.flat(), outer_hessians(self.outer_loss_fn, jacobians.outputs, examples)
    count = _outer_count(self.outer_loss_fn, jacobians.outputs, examples)
    curved = jnp.einsum("nkc,ncd->nkd", times_count(curvature, count), rows)
    size = rows.shape[-1]
    return rows.reshape(-1, size).T @ curved.reshape(-1, size), count


def _outer_count(outer_loss_fn: Callable[..., Any], z: Array, batch: Batch) -> Array:
  """Returns how many examples count in the outer loss."""
  count = as_mean_and_count(outer_loss_fn(z, batch), "outer_loss_fn")[1]
  return example_count(count, batch, z.dtype)


def outer_hessians(outer_loss_fn: Callable[..., Array], z: Array, batch: Batch) -> Array:
  """Computes the Hessian of the outer loss in the outputs of each example, `[n, outputs, outputs]`."""

  def outer_loss(z: Array) -> Array:
    return as_mean_and_count(outer_loss_fn(z, batch), "outer_loss_fn")[0]

  def column(unit: Array) -> Array:
    return jax.jvp(jax.grad(outer_loss), (z,), (jnp.broadcast_to(unit, z.shape),))[1]

  return jax.vmap(column, out_axes=1)(unit_outputs_per_example(z)[0]).reshape(len(z), z[0].size, z[0].size)
