"""Gradients of each example's outputs in each parameter, without a convolution for each example."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxreg import paths
from jaxreg.flatness._chunked import num_examples
from jaxreg.flatness._common import outputs_of
from jaxreg.flatness._layer_inputs import of_examples, tapped
from jaxreg.typing import Array, Batch, Key, Params


class Pulled(NamedTuple):
  """The rows of each example's Jacobian, or multiples of them, by the number of a leaf.

  Attributes:
    outputs: `[n, ...]`.
    layers: inputs `[n, positions, k]` of the layer that a kernel belongs to, and gradients in its outputs,
      `[n, r, positions, units]`. The gradient in the kernel is the sum of their products over the positions.
    others: gradients in all other leaves, `[n, r, *leaf]`.
  """

  outputs: Array
  layers: dict[int, tuple[Array, Array]]
  others: dict[int, Array]


def pulled(
  outputs_fn: Callable[..., Array],
  mask: tuple[bool, ...],
  params: Params,
  batch: Batch,
  columns_of: Callable[[Array], Array],
  key_of: Callable[[Array], Key] | None = None,
) -> Pulled:
  """Multiplies Jacobians from the left by `columns_of(outputs)`, `[n, r, *outputs]`.

  Kernels of dense and convolutional layers, whose inputs have the examples on the leading axis, get a pass of
  all examples at once; XLA would make a convolution in groups of the gradients in them. All other leaves get
  a pass of each example, batched by `vmap`. Noise, with `key_of` from the number of an example to its key,
  makes all leaves such.

  Raises:
    ValueError: if `outputs_fn` does not return the outputs of each example.
  """
  leaves, tree = jax.tree.flatten(params)
  names, n = paths.leaf_names(params), num_examples(batch)
  taken = [number for number, chosen in enumerate(mask) if chosen]
  outputs = lambda leaves, batch, key: outputs_of(outputs_fn, jax.tree.unflatten(tree, leaves), batch, key)

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
    raise ValueError(f"outputs_fn must return the outputs [{n}, ...]{one}, got {jnp.shape(z)}")


def outer_hessians(outer: Callable[[Array], Array], z: Array) -> Array:
  """The Hessian of the outer loss in the outputs of each example, `[n, outputs, outputs]`."""
  columns = lambda unit: jax.jvp(jax.grad(outer), (z,), (jnp.broadcast_to(unit, z.shape),))[1]
  return jax.vmap(columns, out_axes=1)(unit_outputs(z)).reshape(len(z), z[0].size, z[0].size)


def unit_outputs(z: Array) -> Array:
  """All unit vectors of the shape of an example's outputs: `[outputs, *outputs]`."""
  return jnp.eye(z[0].size, dtype=z.dtype).reshape(-1, *z.shape[1:])
