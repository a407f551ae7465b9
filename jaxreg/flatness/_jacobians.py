"""Per-example Jacobians, and the Gauss-Newton matrix and its diagonal from them, exactly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxreg import paths
from jaxreg._checks import check_count, check_loss_fn
from jaxreg._sharding import partitioned
from jaxreg._sums import add, compensated, sum_of_rows, total
from jaxreg.flatness._batches import dealt, num_examples
from jaxreg.flatness._common import analysis, outputs_of, same, widened
from jaxreg.flatness._layer_inputs import of_examples, tapped
from jaxreg.flatness._subset import selected, split
from jaxreg.typing import Array, Batch, Key, Mask, Params

_ENTRIES = 2**24  # the most entries of per-example gradients in memory at once: 64 MiB


@analysis
def gauss_newton_diagonal(
  apply_fn: Callable[..., Array],
  outer_loss_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  mask: Mask = "*",
) -> Array:
  r"""Computes the diagonal of the Gauss-Newton matrix exactly, by one backward pass for each output.

  .. math:: \operatorname{diag}(G) = \sum_i \sum_r a_{ir} (J_i^\top u_{ir})^2, \qquad
    \nabla_{z_i}^2 L = \sum_r a_{ir} u_{ir} u_{ir}^\top

  Its sum is the trace. If the network is piecewise linear in each of its layers, the Hessian of all
  parameters has the same diagonal and trace: within a layer the two matrices are equal. ReLU networks with
  convolutions, pooling and BatchNorm's running averages are such networks.

  The gradients of each example in a dense or convolutional kernel are never together in memory. Parameters
  that are no kernel, such as biases, cost one more forward and backward pass of all examples at once.

  Args:
    apply_fn: `(params, batch, *, key) -> [n, ...]`, the outputs of each example, called with `key=None`;
      nothing may couple examples, and layers keep them on the leading axis.
    outer_loss_fn: `(outputs, batch) -> scalar`, a mean over the examples.
    params, mask: as in `hvp`; the diagonal `[size]` is in the order of `subset(params, mask).flat`.
    batch: `n` examples along the leading axis of its leaves; for more than fit in memory see
      `Curvature.gauss_newton_diagonal`.

  Example:
    >>> outputs, outer = (lambda params, x, *, key: x @ params), (lambda z, x: 0.5 * (z**2).mean())
    >>> gauss_newton_diagonal(outputs, outer, jnp.ones(2), jnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([2., 8.], dtype=float32)

  References:
    Dangel, Kunstner and Hennig, `BackPACK: Packing more into Backprop`, 2020.
  """
  check_loss_fn(apply_fn, "apply_fn")
  num_examples(batch)
  compute = partial(diagonal, apply_fn, outer_loss_fn, selected(params, mask))
  return partitioned(compute, widened(params), widened(batch), kept=slice(0))


@partial(jax.jit, static_argnums=(0, 1, 2))
def diagonal(
  apply_fn: Callable[..., Array],
  outer_loss_fn: Callable[..., Array],
  mask: tuple[bool, ...],
  params: Params,
  batch: Batch,
) -> Array:
  """The diagonal of the Gauss-Newton matrix of the leaves in `mask`, whose arguments are checked."""
  factors = lambda z: jnp.linalg.eigh(outer_hessians(lambda z: outer_loss_fn(z, batch), z))
  columns = lambda z: jnp.swapaxes(factors(z)[1], 1, 2).reshape(len(z), -1, *z.shape[1:])
  found = pulled(apply_fn, mask, params, batch, columns)
  scales = factors(found.outputs)[0]
  squares = {number: _squares(scales, *layer) for number, layer in found.layers.items()}
  squares |= {number: _weighted_squares(scales, each) for number, each in found.others.items()}
  return jnp.concatenate([squares[number].reshape(-1) for number in sorted(squares)])


def _weighted_squares(scales: Array, gradients: Array) -> Array:
  """The weighted sum over examples and factors of squares, `[n, r]` and `[n, r, ...] -> [...]`."""
  # A reduction adds in pairs, and a product of matrices nearly one after the other.
  return (scales.reshape(*scales.shape, *[1] * (gradients.ndim - 2)) * gradients**2).sum(axis=(0, 1))


def _squares(scales: Array, h: Array, g: Array) -> Array:
  """The sum over examples and factors of the scaled squares of a layer's gradients.

  `[n, r]`, inputs `[n, positions, k]`, gradients in outputs `[n, r, positions, units]` `-> [k, units]`.
  """
  n, positions, k = h.shape
  factors, units = g.shape[1], g.shape[3]
  first, second = jnp.triu_indices(positions)
  by_pairs = len(first) <= factors * positions

  def some(scales: Array, h: Array, g: Array) -> Array:
    if not by_pairs:
      gradients = jnp.einsum("ntk,ntx->nkx", h, jnp.swapaxes(g, 1, 2).reshape(len(g), positions, -1))
      return jnp.einsum("nr,nkru->ku", scales, gradients.reshape(len(g), k, factors, units) ** 2)
    # The square of a sum over positions is a sum over their pairs, so one matrix product gives all examples'.
    weights = jnp.where(first == second, 1, 2).astype(h.dtype)
    outer = jnp.einsum("p,nr,nrpu,nrpu->npu", weights, scales, g[:, :, first], g[:, :, second])
    return jnp.einsum("npk,npu->ku", h[:, first] * h[:, second], outer)

  entries = len(first) * (k + factors * units) if by_pairs else factors * k * units
  size = max(1, min(n, _ENTRIES // entries))
  return sum_of_rows(some, size, jnp.zeros((k, units), h.dtype), scales, h, g)


@analysis
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

  It is `gauss_newton(...).matrix()`, but one backward pass per output replaces one product per parameter.

  If the outputs are piecewise linear in the selected parameters, this is the exact Hessian. That holds for
  one linear or convolutional layer of a ReLU network, with residual connections, pooling and BatchNorm's
  running averages too. It does not hold for two layers together, smooth activations after the layer, or a
  layer before attention; `hvp` along a random vector tells the two apart. `DenseLayer.hessian` needs no such
  condition, and is faster, for a dense layer that sees every example once.

  Args:
    apply_fn: `(params, batch, *, key) -> [n, ...]`, the outputs of each example, called with batches of
      some examples or of one; nothing may couple examples, and layers keep them on the leading axis.
    outer_loss_fn, params, batch, mask: as in `gauss_newton_diagonal`; the matrix is `[size, size]`.
    key: each example's `apply_fn` gets a key of its own.
    chunk_size: examples at once; their Jacobians are in memory, `[chunk_size, outputs, size]`.

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
  compute = partial(_matrix, apply_fn, outer_loss_fn, selected(params, mask), chunk_size)
  return partitioned(compute, widened(params), widened(batch), key, kept=slice(0))


def _matrix(apply_fn, outer_loss_fn, taken, chunk_size, params, batch, key):
  size = num_examples(batch)
  chunk_size = min(chunk_size, size)
  chunks, rest = divmod(size, chunk_size)
  batch = jax.tree.map(jnp.asarray, batch)
  add_chunk = partial(_add, apply_fn, outer_loss_fn, taken, chunks, chunk_size)
  like = split(params, taken).flat
  running = compensated(jnp.zeros((like.size, like.size), like.dtype))
  if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((params, batch, key))):
    running = jax.lax.fori_loop(0, chunks, lambda n, sums: add_chunk(sums, n, params, batch, key), running)
  else:  # a loop on the host, because on a CPU XLA runs convolutions in a compiled loop many times slower
    for number in range(chunks):
      running = jax.block_until_ready(add_chunk(running, number, params, batch, key))
  if rest:
    last = jax.tree.map(lambda x: x[size - rest :], batch)
    part = _block(apply_fn, outer_loss_fn, taken, params, last, key, size - rest, 1, rest / size)
    running = add(running, part)
  matrix = total(running)
  return (matrix + matrix.T) / 2


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), donate_argnums=5)
def _add(apply_fn, outer_loss_fn, mask, chunks, chunk_size, running, number, params, batch, key):
  """Adds the chunk of a number."""
  chunk = jax.tree.map(lambda x: dealt(x, chunks, chunk_size, number), batch)
  weight = chunk_size / num_examples(batch)
  return add(running, _block(apply_fn, outer_loss_fn, mask, params, chunk, key, number, chunks, weight))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _block(apply_fn, outer_loss_fn, mask, params, examples, key, first, stride, weight):
  """The matrix of some examples, whose numbers are `first, first + stride, ...`."""
  kept = same(key)
  key_of = None if kept is None else lambda number: jax.random.fold_in(kept, first + stride * number)
  outputs, rows = jacobians(apply_fn, mask, params, examples, key_of)
  curvature = outer_hessians(lambda z: outer_loss_fn(z, examples), outputs)
  curved = jnp.einsum("nkc,ncd->nkd", curvature, rows)
  flat = lambda x: x.reshape(-1, x.shape[-1])
  return flat(rows).T @ flat(curved) * weight


def jacobians(
  apply_fn: Callable[..., Array],
  mask: tuple[bool, ...],
  params: Params,
  examples: Batch,
  key_of: Callable[[Array], Key] | None = None,
) -> tuple[Array, Array]:
  """The outputs `[n, ...]` and each example's Jacobian `[n, outputs, size]` in the leaves of `mask`."""
  units = lambda z: jnp.broadcast_to(unit_outputs(z)[None], (len(z), *unit_outputs(z).shape))
  found = pulled(apply_fn, mask, params, examples, units, key_of)
  rows = lambda x: x.reshape(*x.shape[:2], -1)
  parts = {n: rows(jnp.einsum("ntk,nrtu->nrku", *layer)) for n, layer in found.layers.items()}
  parts |= {number: rows(each) for number, each in found.others.items()}
  return found.outputs, jnp.concatenate([parts[number] for number in sorted(parts)], axis=2)


class Pulled(NamedTuple):
  """The outputs, and rows of each example's Jacobian, or multiples of them, by the number of a leaf.

  The gradient in a layer's kernel is the sum over positions of the products of its inputs
  `[n, positions, k]` and the gradients in its outputs, `[n, r, positions, units]`.
  """

  outputs: Array
  layers: dict[int, tuple[Array, Array]]
  others: dict[int, Array]  # gradients in all other leaves, `[n, r, *leaf]`


def pulled(
  apply_fn: Callable[..., Array],
  mask: tuple[bool, ...],
  params: Params,
  batch: Batch,
  columns_of: Callable[[Array], Array],
  key_of: Callable[[Array], Key] | None = None,
) -> Pulled:
  """Multiplies Jacobians from the left by `columns_of(outputs)`, `[n, r, *outputs]`.

  Kernels of layers whose inputs have the examples on the leading axis get one pass of all examples; XLA would
  make a convolution in groups of their gradients. All other leaves, and all leaves under noise, with `key_of`
  from the number of an example to its key, get a pass of each example, batched by `vmap`.
  """
  leaves, tree = jax.tree.flatten(params)
  names, n = paths.leaf_names(params), num_examples(batch)
  taken = [number for number, chosen in enumerate(mask) if chosen]
  outputs = lambda leaves, batch, key: outputs_of(apply_fn, jax.tree.unflatten(tree, leaves), batch, key)

  def of_example(leaves: list[Array], example: Batch, number: Array) -> Array:
    one = jax.tree.map(lambda x: x[None], example)
    z = outputs(leaves, one, None if key_of is None else key_of(number))
    _check_outputs(z, 1)
    return z[0]

  layers, numbers = {}, jnp.arange(n)
  if key_of is None:
    kernels = {number: names[number] for number in taken if jnp.ndim(leaves[number]) > 1}
    run = tapped(lambda leaves: outputs(leaves, batch, None), leaves, kernels, skip_others=True)
    z, inputs, made = run({})
    _check_outputs(z, n)
    columns = columns_of(z)
    # An input with another leading axis, such as all tokens, does not tell the examples apart.
    alike = of_examples(lambda leaves, batch: outputs(leaves, batch, None), leaves, kernels, batch)
    made = {number: x for number, x in made.items() if number in alike}
    if made:
      taps = {number: jnp.zeros_like(x) for number, x in made.items()}
      pull = jax.vjp(lambda taps: run(taps)[0], taps)[1]
      gradients = jax.vmap(lambda column: pull(column)[0], in_axes=1, out_axes=1)(columns)
      shaped = lambda h, g: (h, g.reshape(*g.shape[:2], h.shape[1], g.shape[-1]))
      layers = {number: shaped(inputs[number], g) for number, g in gradients.items()}
  else:
    z = jax.vmap(of_example, in_axes=(None, 0, 0))(leaves, batch, numbers)
    columns = columns_of(z)
  rest = [number for number in taken if number not in layers]

  def gradients_of(example: Batch, number: Array, columns: Array) -> list[Array]:
    place = lambda some: [dict(zip(rest, some)).get(number, leaf) for number, leaf in enumerate(leaves)]
    some = [leaves[number] for number in rest]
    pull = jax.vjp(lambda some: of_example(place(some), example, number), some)[1]
    return jax.vmap(lambda column: pull(column)[0])(columns)

  others = jax.vmap(gradients_of)(batch, numbers, columns) if rest else []
  return Pulled(z, layers, dict(zip(rest, others, strict=True)))


def _check_outputs(z: Array, n: int) -> None:
  if jnp.shape(z)[:1] != (n,):
    one = " of one example" if n == 1 else ""
    raise ValueError(f"apply_fn must return the outputs [{n}, ...]{one}, got {jnp.shape(z)}")


def outer_hessians(outer: Callable[[Array], Array], z: Array) -> Array:
  """The Hessian of the outer loss in the outputs of each example, `[n, outputs, outputs]`."""
  columns = lambda unit: jax.jvp(jax.grad(outer), (z,), (jnp.broadcast_to(unit, z.shape),))[1]
  return jax.vmap(columns, out_axes=1)(unit_outputs(z)).reshape(len(z), z[0].size, z[0].size)


def unit_outputs(z: Array) -> Array:
  """All unit vectors of the shape of an example's outputs: `[outputs, *outputs]`."""
  return jnp.eye(z[0].size, dtype=z.dtype).reshape(-1, *z.shape[1:])
