"""The Hessian, the noise and the profiles of one dense layer, by single matrix products.

If every example passes a layer `z = h W + b` once, its curvature and noise covariance are sums over examples
of Kronecker products. One product of two thin matrices computes such a sum, instead of one pass over the data
for each parameter or each sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg.flatness._chunked import dealt, num_examples
from jaxreg.flatness._common import analysis, as_pytree, same
from jaxreg.flatness._interval import IntervalFlatness, _check, check_directions, check_loss, intervals
from jaxreg.typing import Array, Batch, Key, check_count, check_key, check_wide

# `(z [n, units], batch, *, key) -> [n]`: the loss of each example as a function of the layer's outputs.
HeadFn = Callable[..., Array]


@partial(jax.tree_util.register_dataclass, data_fields=["packed"], meta_fields=["units", "inputs", "bias"])
@dataclasses.dataclass(frozen=True)
class DenseBlock:
  """A symmetric matrix over the parameters of a dense layer, which stores each distinct entry once.

  Attributes:
    packed: `[units (units + 1) / 2, k (k + 1) / 2]`, where `k` is the number of inputs, plus one with a bias.
    units, inputs: the sizes of the layer.
    bias: whether the bias is part of it.
  """

  packed: Array
  units: int
  inputs: int
  bias: bool

  @property
  def size(self) -> int:
    """The number of parameters."""
    return self.units * (self.inputs + self.bias)

  def matrix(self) -> Array:
    """Builds the dense matrix `[size, size]`: first the bias, then the kernel `[inputs, units]` by rows."""
    return _matrix(self)

  def trace(self) -> Array:
    """Computes the sum of the diagonal."""
    outer, inner = _diagonal_index(self.units), _diagonal_index(self.inputs + self.bias)
    return self.packed[outer[:, None], inner[None, :]].sum()

  def inner(self, other: DenseBlock) -> Array:
    r"""Computes :math:`\mathrm{Tr}(A B)` without building the matrices.

    Raises:
      ValueError: if `other` describes another layer.
    """
    if (self.units, self.inputs, self.bias) != (other.units, other.inputs, other.bias):
      raise ValueError(f"other must describe the same layer, {self._layer()}, got {other._layer()}")
    weights = _pair_weights(self.units)[:, None] * _pair_weights(self.inputs + self.bias)[None, :]
    return jnp.sum(self.packed * other.packed * jnp.asarray(weights, self.packed.dtype))

  def _layer(self) -> str:
    return f"{self.inputs} inputs, {self.units} units, bias {self.bias}"


# Compiled: outside jit, the array of indices would take longer than the numbers.
@jax.jit
def _matrix(block: DenseBlock) -> Array:
  outer, inner = _unpack_index(block.units), _unpack_index(block.inputs + block.bias)
  blocks = block.packed[outer[None, :, None, :], inner[:, None, :, None]]
  return blocks.reshape(block.size, block.size)


@analysis
def dense_hessian(
  head_fn: HeadFn,
  preactivations: ArrayLike,
  inputs: ArrayLike,
  batch: Batch,
  *,
  bias: bool = True,
  key: Key | None = None,
  chunk_size: int = 1000,
  curvature_fn: Callable[[Array, Batch], Array] | None = None,
) -> DenseBlock:
  r"""Computes the exact Hessian of the mean loss in one dense layer's parameters, as one matrix product.

  .. math:: H = \frac1n \sum_i A_i \otimes \tilde h_i \tilde h_i^\top, \qquad
    A_i = \nabla_z^2 \ell_i, \quad \tilde h = (1, h)

  The packed upper triangles of all :math:`A_i` and :math:`\tilde h_i \tilde h_i^\top` are the two factors of
  the product. This is exact if each example uses the layer once and nothing couples examples: no convolution,
  no attention, no BatchNorm after it. It needs the memory of one chunk and of the result.

  Args:
    head_fn: `(z, batch, *, key) -> [n]`, the losses of the examples as a function of the layer's outputs
      `z [n, units]`. `key=None` asks for no noise. A `jax.tree_util.Partial` keeps the parameters of the
      later layers out of the compiled program.
    preactivations: `[n, units]`, `z = h W + b` at the parameters.
    inputs: `[n, inputs]`, `h`.
    batch: other arrays that the head needs, such as labels; its leaves have the same leading axis.
    bias: whether the layer has a bias.
    key: passed to `head_fn`.
    chunk_size: examples at once.
    curvature_fn: `(z, batch) -> [n, units, units]` a formula in place of the derivatives of `head_fn`; it may
      also be a `Partial`.

  Returns:
    A `DenseBlock`; `matrix()` has the order of `subset` on a Flax `Dense` (bias, then kernel).

  Raises:
    TypeError: if an array is not floating, `key` no typed key or `chunk_size` no integer.
    ValueError: if shapes do not fit, or `chunk_size` is below 1.

  Example:
    >>> head = lambda z, batch, *, key: 0.5 * (z**2).sum(axis=-1)
    >>> dense_hessian(head, jnp.ones((2, 1)), jnp.array([[1.0], [3.0]]), None).matrix()  # bias, kernel
    Array([[1., 2.],
           [2., 5.]], dtype=float32)

  References:
    Van Loan and Pitsianis, `Approximation with Kronecker Products`, 1993.
  """
  check_count(chunk_size, "chunk_size")
  z, h = _layer(preactivations, inputs, batch)
  formula = None if curvature_fn is None else as_pytree(curvature_fn)
  return _hessian(bias, chunk_size, formula, as_pytree(head_fn), z, h, batch, key)


@partial(jax.jit, static_argnums=(0, 1))
def _hessian(bias, chunk_size, curvature_fn, head_fn, z, h, batch, key):
  def curvature(z: Array, part: Batch, number: Array) -> Array:
    if curvature_fn is not None:
      curved = curvature_fn(z, part)
      if jnp.shape(curved) != (*z.shape, z.shape[1]):
        raise ValueError(f"curvature_fn must return {(*z.shape, z.shape[1])}, got {jnp.shape(curved)}")
      return curved
    gradient = _gradient(head_fn, part, _fold(key, number))
    column = lambda unit: jax.jvp(gradient, (z,), (jnp.broadcast_to(unit[None], z.shape),))[1]
    return jax.vmap(column, out_axes=2)(jnp.eye(z.shape[1], dtype=z.dtype))

  return _sum_blocks(curvature, bias, chunk_size, z, h, batch, 1 / z.shape[0])


@analysis
def dense_noise_covariance(
  head_fn: HeadFn,
  preactivations: ArrayLike,
  inputs: ArrayLike,
  batch: Batch,
  *,
  key: Key,
  num_masks: int = 2,
  bias: bool = True,
  chunk_size: int = 1000,
) -> DenseBlock:
  r"""Computes the covariance of a dense layer's full-batch gradient under later noise, without a loop.

  .. math:: \Sigma_g =
    \frac1{n^2} \sum_i \mathrm{Cov}_\eta(\nabla_z \ell_i) \otimes \tilde h_i \tilde h_i^\top

  If each example draws its own noise, the covariance of the gradient is a mean over examples. Two draws per
  example give an unbiased estimate of full rank, and the mean over the data set makes it accurate. Samples of
  the whole gradient would leave most directions without an estimate. If few examples cause most of the noise,
  as in a trained network, the same accuracy takes more draws.

  Args:
    head_fn: as in `dense_hessian`; draws noise from the key, independent between examples.
    preactivations, inputs, batch, bias, chunk_size: as in `dense_hessian`.
    key: a typed key.
    num_masks: draws per example, at least 2.

  Returns:
    A `DenseBlock`.

  Raises:
    TypeError: if an array is not floating, `key` no typed key or a count no integer.
    ValueError: if shapes do not fit, `chunk_size` is below 1, or for fewer than 2 draws.

  Example:
    >>> head = lambda z, batch, *, key: (z * jax.random.rademacher(key, z.shape, float)).sum(axis=-1)
    >>> z, h = jnp.zeros((4000, 1)), jnp.ones((4000, 1))
    >>> noise = dense_noise_covariance(head, z, h, None, key=jax.random.key(0), bias=False)
    >>> (4000 * noise.trace()).round(1)  # of one sign
    Array(1., dtype=float32)
  """
  check_key(key)
  check_count(num_masks, "num_masks")
  check_count(chunk_size, "chunk_size")
  if num_masks < 2:
    raise ValueError(f"num_masks must be at least 2, got {num_masks}")
  z, h = _layer(preactivations, inputs, batch)
  return _noise(num_masks, bias, chunk_size, as_pytree(head_fn), z, h, batch, key)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _noise(num_masks, bias, chunk_size, head_fn, z, h, batch, key):
  def covariance(z: Array, part: Batch, number: Array) -> Array:
    keys = jax.random.split(jax.random.fold_in(key, number), num_masks)
    # [n, masks, units]: the products below are faster with the examples on the first axis.
    drawn = jax.vmap(lambda key: _gradient(head_fn, part, key)(z), out_axes=1)(keys)
    drawn = drawn - drawn.mean(axis=1, keepdims=True)
    return jnp.einsum("nku,nkv->nuv", drawn, drawn) / (num_masks - 1)

  return _sum_blocks(covariance, bias, chunk_size, z, h, batch, 1 / z.shape[0] ** 2)


@analysis
def dense_interval_flatness(
  head_fn: HeadFn,
  preactivations: ArrayLike,
  inputs: ArrayLike,
  directions: ArrayLike,
  batch: Batch,
  *,
  bias: bool = True,
  key: Key | None = None,
  factor: float = 2.0,
  first_step: float | None = None,
  growth: float = 1.5,
  rtol: float = 1e-3,
  cap: float = 1e6,
) -> IntervalFlatness:
  r"""Computes `interval_flatness` in a dense layer's parameters, using outputs linear in the distance.

  .. math:: z(t) = z + t\, (h V + v_b)

  Args:
    head_fn, preactivations, inputs, batch, bias, key: as in `dense_hessian`.
    directions: `[k, size]`, in the order of `DenseBlock.matrix`.
    factor, growth, rtol, cap: as in `interval_flatness`.
    first_step: as in `interval_flatness`, but by default the first search starts at 0.01.

  Returns:
    `IntervalFlatness`.

  Raises:
    TypeError: if an array is not floating or `key` no typed key.
    ValueError: as in `interval_flatness`.

  Example:
    >>> head = lambda z, batch, *, key: 0.5 + 0.5 * (z**2).sum(axis=-1)
    >>> z, h = jnp.zeros((2, 1)), jnp.ones((2, 1))
    >>> dense_interval_flatness(head, z, h, jnp.eye(2), None).width.round(2)
    Array([2., 2.], dtype=float32)
  """
  z, h = _layer(preactivations, inputs, batch)
  directions = check_directions(directions, z.shape[1] * (h.shape[1] + bias))
  _check(factor, first_step, growth, rtol, cap)
  numbers = (jnp.asarray(x, z.dtype) for x in (first_step or 1e-2, factor, growth, rtol, cap))
  found, at_start = _lines(
    bias, first_step is None, as_pytree(head_fn), z, h, directions, batch, key, *numbers
  )
  check_loss(*at_start, name="head_fn")
  return found


@partial(jax.jit, static_argnums=(0, 1))
def _lines(bias, follow, head_fn, z, h, directions, batch, key, start, factor, growth, rtol, cap):
  units = z.shape[1]

  def line(direction: Array) -> Callable[[Array], Array]:
    shift, kernel = (direction[:units], direction[units:]) if bias else (jnp.zeros(units), direction)
    speed = h @ kernel.reshape(-1, units) + shift.astype(z.dtype)[None]
    return lambda t: _losses(head_fn, z + t * speed, batch, key).mean()

  loss, again = (_losses(head_fn, z, batch, key).mean() for _ in range(2))
  found = intervals(line, directions.astype(z.dtype), loss, start, factor, growth, rtol, cap, follow, 1)
  return found, (loss, again)


def _sum_blocks(
  of_example: Callable[[Array, Batch, Array], Array],
  bias: bool,
  chunk_size: int,
  z: Array,
  h: Array,
  batch: Batch,
  scale: float,
) -> DenseBlock:
  """The sum over examples of Kronecker products, by one matrix product per chunk."""
  (n, units), inputs = z.shape, h.shape[1]
  outer, inner = np.triu_indices(units), np.triu_indices(inputs + bias)

  def block(number: Array, z: Array, h: Array, part: Batch) -> Array:
    left = of_example(z, part, number)[:, outer[0], outer[1]]
    if bias:
      h = jnp.concatenate([jnp.ones((len(h), 1), h.dtype), h], axis=1)
    right = h[:, inner[0]] * h[:, inner[1]]
    return left.T @ right

  chunks, rest = divmod(n, chunk_size)
  whole = (z, h, batch)
  total = jnp.zeros((len(outer[0]), len(inner[0])), jnp.result_type(z, h))
  if chunks:
    part = lambda number: jax.tree.map(lambda x: dealt(x, chunks, chunk_size, number), whole)
    add = lambda total, number: (total + block(number, *part(number)), None)
    total, _ = jax.lax.scan(add, total, jnp.arange(chunks))
  if rest:
    total = total + block(jnp.int32(chunks), *jax.tree.map(lambda x: x[n - rest :], whole))
  return DenseBlock(total * scale, units, inputs, bias)


def _gradient(head_fn: HeadFn, batch: Batch, key: Key | None) -> Callable[[Array], Array]:
  """The gradient of every example's loss in its own outputs, in one backward pass."""
  return jax.grad(lambda z: _losses(head_fn, z, batch, key).sum())


def _losses(head_fn: HeadFn, z: Array, batch: Batch, key: Key | None) -> Array:
  """The losses of the examples `[n]`, with fixed noise; a mean would have the wrong scale."""
  losses = head_fn(z, batch, key=same(key))
  if jnp.shape(losses) != z.shape[:1]:
    raise ValueError(f"head_fn must return a loss for each of {len(z)} examples, got {jnp.shape(losses)}")
  return losses


def _fold(key: Key | None, number: Array) -> Key | None:
  return None if key is None else jax.random.fold_in(key, number)


def _layer(preactivations: ArrayLike, inputs: ArrayLike, batch: Batch) -> tuple[Array, Array]:
  z, h = check_wide(preactivations, "preactivations"), check_wide(inputs, "inputs")
  if z.ndim != 2 or h.ndim != 2 or len(z) != len(h):
    raise ValueError(
      f"preactivations must be [n, units] and inputs [n, inputs], got {z.shape} and {h.shape}; "
      "the layer must see every example once"
    )
  if jax.tree.leaves(batch) and num_examples(batch) != len(z):
    raise ValueError(f"batch must have {len(z)} examples, as preactivations have, got {num_examples(batch)}")
  return z, h


def _unpack_index(size: int) -> np.ndarray:
  """The position of each entry in the packed upper triangle: `[size, size]`."""
  index = np.zeros((size, size), np.int32)
  index[np.triu_indices(size)] = np.arange(size * (size + 1) // 2)
  return np.maximum(index, index.T)


def _diagonal_index(size: int) -> np.ndarray:
  return np.diagonal(_unpack_index(size))


def _pair_weights(size: int) -> np.ndarray:
  """How often the matrix contains each entry of the packed triangle."""
  rows, columns = np.triu_indices(size)
  return np.where(rows == columns, 1.0, 2.0)
