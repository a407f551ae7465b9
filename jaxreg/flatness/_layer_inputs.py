"""Inputs and outputs of the dense and convolutional layers of any function, by the names of their kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# JAX 0.12 has one class under both names, and its types export one of them.
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal  # pyright: ignore[reportPrivateImportUsage]

from jaxreg.flatness._batches import num_examples
from jaxreg.typing import Array, Batch

_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # of compiled or custom functions
_CONVOLUTIONS = ("conv_general_dilated", "canonical_convolution")  # the second is in `models.convolution`


def tapped(
  function: Callable[[list[Array]], Array],
  leaves: list[Array],
  kernels: dict[int, str],
  *,
  skip_others: bool = False,
) -> Callable[[dict[int, Array]], tuple[Array, dict[int, Array], dict[int, Array]]]:
  """Traces a function of leaves, and adds taps to the outputs of the layers whose kernels are named.

  Returns a function from the taps to the function's value, the layers' inputs `[n, positions, inputs]` and
  their outputs. A missing tap is 0; the gradient in a tap is that in the layer's output. With `skip_others`,
  a leaf that is not the kernel of exactly one layer is left out of both; else it is an error.
  """
  traced = jax.make_jaxpr(function)(leaves)
  where = {traced.jaxpr.invars[number]: number for number in kernels}

  def run(taps: dict[int, Array]) -> tuple[Array, dict[int, Array], dict[int, Array]]:
    inputs: dict[int, Array] = {}
    outputs: dict[int, Array] = {}
    others: set[int] = set()

    def other(number: int, why: str) -> None:
      if not skip_others:
        raise ValueError(f"mask: {kernels[number]} {why}")
      others.add(number)

    def layer(number: int, eqn: Any, values: list[Array], result: Array) -> Array:
      if number in inputs:
        other(number, "must be used by one layer once, but is used again")
      elif why := _unlike_a_layer(eqn, values):
        other(number, why)
      else:
        inputs[number], outputs[number] = _inputs(eqn, values), result
        return result + taps[number] if number in taps else result
      return result

    value = _run(traced, leaves, where, layer, other)[0]
    for number in kernels:
      if number not in inputs:
        other(number, "is the kernel of no matrix product or convolution")
    of_layers = lambda found: {number: x for number, x in found.items() if number not in others}
    return value, of_layers(inputs), of_layers(outputs)

  return run


def of_examples(
  outputs: Callable[[list[Array], Batch], Array], leaves: list[Array], kernels: dict[int, str], batch: Batch
) -> set[int]:
  """The kernels whose layers' inputs have the examples on the leading axis: its length is their number.

  A length may equal the number of examples by chance, so another number of examples is traced, too.
  """
  size = num_examples(batch)

  def lengths(size: int) -> dict[int, int]:
    some = jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype), batch)
    inputs_of = lambda leaves, some: tapped(
      lambda leaves: outputs(leaves, some), leaves, kernels, skip_others=True
    )({})[1]
    return {number: len(x) for number, x in jax.eval_shape(inputs_of, leaves, some).items()}

  other = 1 if size > 1 else 2
  found, again = lengths(size), lengths(other)
  return {number for number in found if found[number] == size and again.get(number) == other}


def _run(traced: Any, args: Any, where: Any, layer: Any, other: Any) -> list[Any]:
  jaxpr, consts = traced.jaxpr, traced.consts
  values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
  where = dict(where)  # from a variable to the number of the kernel that it holds
  read = lambda x: x.val if isinstance(x, Literal) else values[x]
  for eqn in jaxpr.eqns:
    taken = [read(x) for x in eqn.invars]
    held = {
      place: where[x] for place, x in enumerate(eqn.invars) if not isinstance(x, Literal) and x in where
    }
    name, inner = eqn.primitive.name, next((eqn.params[key] for key in _INNER if key in eqn.params), None)
    if name == "stop_gradient":  # its result is a constant, not the kernel
      held = {}
    if held and name != "scan" and isinstance(inner, ClosedJaxpr | Jaxpr):
      inner = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
      found = _run(
        inner, taken, {inner.jaxpr.invars[place]: number for place, number in held.items()}, layer, other
      )
    else:
      # Older versions of JAX return the functions beside the parameters.
      params = eqn.primitive.get_bind_params(eqn.params)
      functions, params = params if isinstance(params, tuple) else ((), params)
      found = eqn.primitive.bind(*functions, *taken, **params)
      found = list(found) if eqn.primitive.multiple_results else [found]
      if held and name in ("convert_element_type", "copy"):
        where[eqn.outvars[0]] = held[0]
      elif held and name in ("dot_general", *_CONVOLUTIONS) and list(held) == [1]:
        found = [layer(held[1], eqn, taken, found[0])]
      else:
        right = "must be the right side of a matrix product or a convolution, [..., in, out]"
        for number in held.values():
          other(number, f"{right}, but is used by {name}")
    values.update(zip(eqn.outvars, found, strict=True))
  return [read(x) for x in jaxpr.outvars]


def _unlike_a_layer(eqn: Any, values: list[Array]) -> str:
  """Says what a matrix product or convolution lacks to be a layer with a kernel, or nothing."""
  x, kernel = values
  if eqn.primitive.name == "dot_general":
    (contracted, rows), batched = eqn.params["dimension_numbers"]
    last = tuple(contracted) == (x.ndim - 1,) and tuple(rows) == (0,) and not any(map(len, batched))
    good = x.ndim > 1 and kernel.ndim == 2 and last
    return "" if good else "must be a kernel [in, out] that multiplies the last axis of its input"
  if eqn.primitive.name == "canonical_convolution":
    return ""
  numbers, spatial = eqn.params["dimension_numbers"], kernel.ndim - 2
  straight = (0, spatial + 1, *range(1, spatial + 1))  # [n, ..., channels]
  layout = (kernel.ndim - 1, kernel.ndim - 2, *range(spatial))  # [..., in, out]
  if (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec) != (straight, layout, straight):
    return "must be a kernel [..., in, out] on images [n, ..., channels]"
  grouped = eqn.params["feature_group_count"] != 1 or eqn.params["batch_group_count"] != 1
  return "must be the kernel of a convolution without groups" if grouped else ""


def _inputs(eqn: Any, values: list[Array]) -> Array:
  """The inputs of a layer `[n, positions, inputs]`; for a convolution patches, in the order of its kernel."""
  x, kernel = values
  if eqn.primitive.name == "dot_general":
    return x.reshape(len(x), -1, x.shape[-1])
  # Slices of the padded images, which take a fraction of the time of `conv_general_dilated_patches`.
  sides, params = kernel.shape[:-2], eqn.params
  names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
  # A common factor of all four only spreads the images out (as in `models.convolution`), so divide by it.
  factors = [math.gcd(stride, *pair, *rest) for stride, pair, *rest in zip(*(params[name] for name in names))]
  strides, lhs_dilation, rhs_dilation = (
    [number // factor for number, factor in zip(params[name], factors)] for name in (names[0], *names[2:])
  )
  padding = [
    (low // factor, high // factor, dilation - 1)
    for (low, high), factor, dilation in zip(params["padding"], factors, lhs_dilation)
  ]
  padded = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *padding, (0, 0, 0)])
  spans = [(side - 1) * dilation + 1 for side, dilation in zip(sides, rhs_dilation)]
  outputs = [
    (length - span) // stride + 1 for length, span, stride in zip(padded.shape[1:-1], spans, strides)
  ]

  def at(offsets: tuple[int, ...]) -> Array:
    starts = [offset * dilation for offset, dilation in zip(offsets, rhs_dilation)]
    ends = [start + (number - 1) * stride + 1 for start, number, stride in zip(starts, outputs, strides)]
    return jax.lax.slice(padded, (0, *starts, 0), (len(x), *ends, x.shape[-1]), (1, *strides, 1))

  patches = jnp.stack([at(offsets) for offsets in itertools.product(*map(range, sides))], axis=-2)
  return patches.reshape(len(x), math.prod(outputs), -1)
