"""The Gauss-Newton matrix from per-example Jacobians: the exact Hessian of one layer of a ReLU network."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg.flatness._chunked import dealt, num_examples
from jaxreg.flatness._common import analysis, same, widened
from jaxreg.flatness._subset import Where, selected, split
from jaxreg.typing import Array, Batch, Key, Params, check_count, check_loss_fn


@analysis
def gauss_newton_matrix(
  outputs_fn: Callable[..., Array],
  outer_loss_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  where: Where = "*",
  key: Key | None = None,
  chunk_size: int = 16,
) -> Array:
  r"""Computes the Gauss-Newton matrix from per-example Jacobians, by one matrix product per chunk.

  .. math:: G = \frac1n \sum_i J_i^\top A_i J_i, \qquad J_i = \partial z_i / \partial \theta, \quad
    A_i = \nabla_z^2 \ell_i

  It is `materialize(gauss_newton(...))`, but one backward pass per output replaces one product per parameter.

  If the outputs are piecewise linear in the selected parameters, this is the exact Hessian. That holds for
  one linear or convolutional layer of a ReLU network, with residual connections, pooling and BatchNorm's
  running averages too. It does not hold for two layers together, smooth activations after the layer, or a
  layer before attention: there it is the Gauss-Newton matrix only. `hvp` along a random
  vector tells the two apart. `dense_hessian` needs no such condition, and is faster, for a dense layer that
  sees every example once.

  Args:
    outputs_fn: `(params, batch, *, key) -> [n, ...]`, the outputs of each example, called with
      batches of one example; nothing may couple examples.
    outer_loss_fn: `(outputs, batch) -> scalar`, a mean over the examples.
    params: any pytree.
    batch: `n` examples along the leading axis of its leaves.
    where: the parameters of the matrix; the others are constant.
    key: each example's `outputs_fn` gets a key of its own.
    chunk_size: examples at once; their Jacobians are in memory, `[chunk_size, outputs, size]`.

  Returns:
    `[size, size]`, symmetric, in the order of `subset(params, where).flat`.

  Raises:
    TypeError: if a selected leaf is not floating, `outputs_fn` takes no `key`, `key` is no typed key, or
      `chunk_size` is no integer.
    ValueError: if `where` selects nothing, `chunk_size` is below 1, or a shape does not fit.

  Example:
    >>> outputs, outer = (lambda params, x, *, key: x @ params), (lambda z, x: 0.5 * (z**2).mean())
    >>> gauss_newton_matrix(outputs, outer, jnp.ones(2), jnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([[2., 0.],
           [0., 8.]], dtype=float32)

  References:
    Schraudolph, `Fast Curvature Matrix-Vector Products for Second-Order Gradient Descent`, 2002.
  """
  check_loss_fn(outputs_fn, "outputs_fn")
  check_count(chunk_size, "chunk_size")
  mask, params, batch = selected(params, where), widened(params), widened(batch)
  chunk_size = min(chunk_size, num_examples(batch))
  return _matrix(outputs_fn, outer_loss_fn, mask, chunk_size, params, batch, same(key))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _matrix(outputs_fn, outer_loss_fn, mask, chunk_size, params, batch, key):
  part, size = split(params, mask), num_examples(batch)
  chunks, rest = divmod(size, chunk_size)

  def jacobian(example: Batch, number: Array) -> tuple[Array, Array]:
    one = jax.tree.map(lambda x: x[None], example)
    of_example = None if key is None else jax.random.fold_in(key, number)
    z, pull = jax.vjp(lambda flat: outputs_fn(part.merge(flat), one, key=of_example), part.flat)
    if jnp.ndim(z) < 1 or len(z) != 1:
      raise ValueError(f"outputs_fn must return the outputs [1, ...] of one example, got {jnp.shape(z)}")
    return z[0], jax.vmap(lambda unit: pull(unit)[0])(_units(z))

  def block(examples: Batch, numbers: Array) -> Array:
    z, jacobians = jax.vmap(jacobian)(examples, numbers)
    gradient = jax.grad(lambda z: outer_loss_fn(z, examples))
    column = lambda unit: jax.jvp(gradient, (z,), (jnp.broadcast_to(unit, z.shape),))[1]
    curvature = jax.vmap(column, out_axes=1)(_units(z[:1])).reshape(len(z), z[0].size, z[0].size)
    curved = jnp.einsum("nkc,ncd->nkd", curvature, jacobians)
    flat = lambda x: x.reshape(-1, part.flat.size)
    # A mean over the chunk, of a sum over all.
    return flat(jacobians).T @ flat(curved) * (len(z) / size)

  def add(total: Array, number: Array) -> tuple[Array, None]:
    examples = jax.tree.map(lambda x: dealt(x, chunks, chunk_size, number), batch)
    return total + block(examples, number + chunks * jnp.arange(chunk_size)), None

  total, _ = jax.lax.scan(add, jnp.zeros((part.flat.size,) * 2, part.flat.dtype), jnp.arange(chunks))
  if rest:
    total = total + block(jax.tree.map(lambda x: x[size - rest :], batch), jnp.arange(size - rest, size))
  return (total + total.T) / 2


def _units(z: Array) -> Any:
  """All unit vectors of the shape of `z`: `[z.size, *z.shape]`."""
  return jnp.eye(z.size, dtype=z.dtype).reshape(-1, *z.shape)
