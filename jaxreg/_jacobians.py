"""Per-example Jacobians of a network, layer by layer without a gradient for each kernel and example."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxreg._analyses import num_examples, outputs_of_leaves
from jaxreg._layers import Layer, layers_in, tapped
from jaxreg.typing import Array, Batch, Key, Params


class ExampleKeys(NamedTuple):
  """The keys of examples, whose numbers are `first, first + stride, ...`."""

  key: Key
  first: Array | int
  stride: Array | int

  def at(self, number: Array) -> Key:
    """Returns the key of an example by its place in the batch."""
    return jax.random.fold_in(self.key, self.first + self.stride * number)


class LayerRows(NamedTuple):
  """A layer's inputs `[n, positions, rows]` and the gradients in its outputs, `[n, r, positions, units]`.

  The gradient in the layer's matrix is the sum over positions of their products.
  """

  layer: Layer
  inputs: Array
  gradients: Array

  def matrices(self) -> Array:
    """Computes the gradients in the layer's matrix, `[n, r, rows, units]`."""
    return jnp.einsum("ntk,nrtu->nrku", self.inputs, self.gradients)


class JacobianRows(NamedTuple):
  """The outputs, and rows of each example's Jacobian, or combinations of them."""

  outputs: Array
  layers: list[LayerRows]
  others: dict[int, Array]  # gradients in the leaves without a layer, `[n, r, *leaf]`, by their numbers

  def leaves(self) -> dict[int, Array]:
    """Computes the gradients in all leaves, `[n, r, *leaf]`, by their numbers."""
    leaves = dict(self.others)
    for rows in self.layers:
      leaves |= rows.layer.spread(rows.matrices())
    return leaves

  def flat(self) -> Array:
    """Computes the gradients in all leaves as vectors, `[n, r, size]`."""
    leaves = self.leaves()
    return jnp.concatenate([leaves[n].reshape(*leaves[n].shape[:2], -1) for n in sorted(leaves)], axis=2)


def pull_back(
  apply_fn: Callable[..., Array],
  mask: tuple[bool, ...],
  params: Params,
  batch: Batch,
  columns_fn: Callable[[Array], Array],
  keys: ExampleKeys | None = None,
) -> JacobianRows:
  """Multiplies Jacobians from the left by `columns_fn(outputs)`, `[n, r, *outputs]`.

  Kernels and biases of layers whose inputs have the examples on the leading axis get one pass of all
  examples; XLA would make a grouped convolution of their per-example gradients. All other leaves, and all
  leaves under noise, get one pass per example, batched by `vmap`.
  """
  leaves, tree = jax.tree.flatten(params)
  taken = [number for number, selected in enumerate(mask) if selected]
  outputs_fn = partial(outputs_of_leaves, apply_fn, tree)

  def example_outputs(leaves: list[Array], example: Batch, number: Array) -> Array:
    one = jax.tree.map(lambda x: x[None], example)
    z = outputs_fn(leaves, one, None if keys is None else keys.at(number))
    _check_outputs(z, 1)
    return z[0]

  numbers = jnp.arange(num_examples(batch))
  if keys is None:
    z, columns, layers = _pull_back_layers(outputs_fn, leaves, mask, batch, columns_fn)
  else:
    z, layers = jax.vmap(example_outputs, in_axes=(None, 0, 0))(leaves, batch, numbers), []
    columns = columns_fn(z)
  covered = {number for rows in layers for number in rows.layer.numbers}
  rest = [number for number in taken if number not in covered]

  def example_gradients(example: Batch, number: Array, columns: Array) -> list[Array]:
    def outputs_at_rest(rest_leaves: list[Array]) -> Array:
      replaced = list(leaves)
      for place, leaf in zip(rest, rest_leaves, strict=True):
        replaced[place] = leaf
      return example_outputs(replaced, example, number)

    pull = jax.vjp(outputs_at_rest, [leaves[n] for n in rest])[1]
    return jax.vmap(pull)(columns)[0]

  others = jax.vmap(example_gradients)(batch, numbers, columns) if rest else []
  return JacobianRows(z, layers, dict(zip(rest, others, strict=True)))


def _pull_back_layers(
  outputs_fn: Callable[..., Array],
  leaves: list[Array],
  mask: tuple[bool, ...],
  batch: Batch,
  columns_fn: Callable[[Array], Array],
) -> tuple[Array, Array, list[LayerRows]]:
  """Returns the outputs, the columns, and the inputs and gradients of the layers of the leaves in `mask`."""
  _check_outputs(jax.eval_shape(outputs_fn, leaves, batch), num_examples(batch))
  layers, _ = layers_in(outputs_fn, leaves, batch, mask)
  run = tapped(partial(outputs_fn, batch=batch), leaves, layers)
  z, inputs, zeros = run({})
  columns = columns_fn(z)
  if not layers:
    return z, columns, []

  def value_at(taps: dict[int, Array]) -> Array:
    return run(taps)[0]

  pull = jax.vjp(value_at, zeros)[1]
  (gradients,) = jax.vmap(pull, in_axes=1, out_axes=1)(columns)
  return (
    z,
    columns,
    [LayerRows(one, one.inputs(inputs[one.kernel]), gradients[one.kernel]) for one in layers],
  )


def unit_outputs_per_example(z: Array) -> Array:
  """Returns all unit vectors with the shape of an example's outputs, `[n, outputs, *outputs]`."""
  units = jnp.eye(z[0].size, dtype=z.dtype).reshape(-1, *z.shape[1:])
  return jnp.broadcast_to(units[None], (len(z), *units.shape))


def _check_outputs(z: Array, n: int) -> None:
  if jnp.shape(z)[:1] != (n,):
    one = " of one example" if n == 1 else ""
    raise ValueError(f"apply_fn must return the outputs [{n}, ...]{one}, got {jnp.shape(z)}")
