"""The Gauss-Newton matrix from per-example Jacobians: the exact Hessian of one layer of a ReLU network."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxreg.flatness._chunked import dealt, num_examples
from jaxreg.flatness._common import analysis, same, widened
from jaxreg.flatness._pulled import outer_hessians, pulled, unit_outputs
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
    outputs_fn: `(params, batch, *, key) -> [n, ...]`, the outputs of each example, called with batches of
      some examples or of one; nothing may couple examples, and layers keep them on the leading axis.
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
  size = num_examples(batch)
  chunk_size = min(chunk_size, size)
  chunks, rest = divmod(size, chunk_size)
  batch = jax.tree.map(jnp.asarray, batch)
  add = partial(_add, outputs_fn, outer_loss_fn, mask, chunks, chunk_size)
  like = split(params, mask).flat
  total = jnp.zeros((like.size, like.size), like.dtype)
  if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((params, batch, key))):
    total = jax.lax.fori_loop(0, chunks, lambda n, total: add(total, n, params, batch, key), total)
  else:  # a loop on the host, because on a CPU XLA runs convolutions in a compiled loop many times slower
    for number in range(chunks):
      total = jax.block_until_ready(add(total, number, params, batch, key))
  if rest:
    last = jax.tree.map(lambda x: x[size - rest :], batch)
    total = total + _block(outputs_fn, outer_loss_fn, mask, params, last, key, size - rest, 1, rest / size)
  return (total + total.T) / 2


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), donate_argnums=5)
def _add(outputs_fn, outer_loss_fn, mask, chunks, chunk_size, total, number, params, batch, key):
  """Adds the chunk of a number."""
  chunk = jax.tree.map(lambda x: dealt(x, chunks, chunk_size, number), batch)
  weight = chunk_size / num_examples(batch)
  return total + _block(outputs_fn, outer_loss_fn, mask, params, chunk, key, number, chunks, weight)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _block(outputs_fn, outer_loss_fn, mask, params, examples, key, first, stride, weight):
  """The matrix of some examples, whose numbers are `first, first + stride, ...`."""
  kept = same(key)
  key_of = None if kept is None else lambda number: jax.random.fold_in(kept, first + stride * number)
  units = lambda z: jnp.broadcast_to(unit_outputs(z)[None], (len(z), *unit_outputs(z).shape))
  found = pulled(outputs_fn, mask, params, examples, units, key_of)
  rows = lambda x: x.reshape(*x.shape[:2], -1)
  parts = {n: rows(jnp.einsum("ntk,nrtu->nrku", *layer)) for n, layer in found.layers.items()}
  parts |= {number: rows(each) for number, each in found.others.items()}
  jacobians = jnp.concatenate([parts[number] for number in sorted(parts)], axis=2)
  curvature = outer_hessians(lambda z: outer_loss_fn(z, examples), found.outputs)
  curved = jnp.einsum("nkc,ncd->nkd", curvature, jacobians)
  flat = lambda x: x.reshape(-1, x.shape[-1])
  return flat(jacobians).T @ flat(curved) * weight
