"""The diagonal of the Gauss-Newton matrix, exactly: by one backward pass for each output of the network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from jaxreg.flatness._chunked import num_examples
from jaxreg.flatness._common import analysis, widened
from jaxreg.flatness._pulled import outer_hessians, pulled
from jaxreg.flatness._subset import Where, selected
from jaxreg.typing import Array, Batch, Params, check_loss_fn

_ENTRIES = 2**24  # of the examples' gradients that are in memory at once: 64 MiB


@analysis
def gauss_newton_diagonal(
  outputs_fn: Callable[..., Array],
  outer_loss_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  where: Where = "*",
) -> Array:
  r"""Computes the diagonal of the Gauss-Newton matrix exactly, by one backward pass for each output.

  .. math:: \operatorname{diag}(G) = \sum_i \sum_r a_{ir} (J_i^\top u_{ir})^2, \qquad
    \nabla_{z_i}^2 L = \sum_r a_{ir} u_{ir} u_{ir}^\top

  Its sum is the trace. If the network is piecewise linear in each of its layers, the Hessian of all
  parameters has the same diagonal and trace: within a layer the two matrices are equal. ReLU networks with
  convolutions, pooling and BatchNorm's running averages are such networks.

  The gradients of each example in the kernel of a dense or convolutional layer come from the layer's inputs
  and the gradients in its outputs, and are never together in memory. Other parameters, such as biases and
  scales, cost one more forward and backward pass of all examples at once.

  Args:
    outputs_fn: `(params, batch, *, key) -> [n, ...]`, the outputs of each example, called with `key=None`;
      nothing may couple examples, and layers keep them on the leading axis.
    outer_loss_fn: `(outputs, batch) -> scalar`, a mean over the examples.
    params: any pytree.
    batch: `n` examples along the leading axis of its leaves; for more than fit in memory see
      `Curvature.gauss_newton_diagonal`.
    where: the parameters that count.

  Returns:
    `[size]`, in the order of `subset(params, where).flat`.

  Raises:
    TypeError: if a selected leaf is not floating, or `outputs_fn` takes no `key`.
    ValueError: if `where` selects nothing, or the outputs are not `[n, ...]`.

  Example:
    >>> outputs, outer = (lambda params, x, *, key: x @ params), (lambda z, x: 0.5 * (z**2).mean())
    >>> gauss_newton_diagonal(outputs, outer, jnp.ones(2), jnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([2., 8.], dtype=float32)

  References:
    Dangel, Kunstner and Hennig, `BackPACK: Packing more into Backprop`, 2020.
  """
  check_loss_fn(outputs_fn, "outputs_fn")
  num_examples(batch)
  return diagonal(outputs_fn, outer_loss_fn, selected(params, where), widened(params), widened(batch))


@partial(jax.jit, static_argnums=(0, 1, 2))
def diagonal(
  outputs_fn: Callable[..., Array],
  outer_loss_fn: Callable[..., Array],
  mask: tuple[bool, ...],
  params: Params,
  batch: Batch,
) -> Array:
  """The diagonal of the Gauss-Newton matrix of the leaves in `mask`, whose arguments are checked."""
  factors = lambda z: jnp.linalg.eigh(outer_hessians(lambda z: outer_loss_fn(z, batch), z))
  columns = lambda z: jnp.swapaxes(factors(z)[1], 1, 2).reshape(len(z), -1, *z.shape[1:])
  found = pulled(outputs_fn, mask, params, batch, columns)
  scales = factors(found.outputs)[0]
  squares = {number: _squares(scales, *layer) for number, layer in found.layers.items()}
  squares |= {number: jnp.tensordot(scales, each**2, 2) for number, each in found.others.items()}
  return jnp.concatenate([squares[number].reshape(-1) for number in sorted(squares)])


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
  part = lambda first, size: [jax.lax.dynamic_slice_in_dim(x, first, size) for x in (scales, h, g)]
  add = lambda number, total: total + some(*part(number * size, size))
  chunks, rest = divmod(n, size)
  total = jax.lax.fori_loop(0, chunks, add, jnp.zeros((k, units), h.dtype))
  return total + some(*part(chunks * size, rest)) if rest else total
