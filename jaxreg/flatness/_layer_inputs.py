"""Inputs and outputs of the dense and convolutional layers of any function, by the names of their kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

# JAX 0.12 has one class under both names, and its types export one of them.
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal  # pyright: ignore[reportPrivateImportUsage]

from jaxreg.flatness._common import num_examples
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

  Returns a function of the taps, which computes the function's value, the layers' inputs
  `[n, positions, inputs]` and their outputs. A missing tap is 0; the gradient in a tap is the gradient in the
  layer's output. A leaf must be the kernel of exactly one layer; with `skip_others`, the results leave out
  other leaves, which are an error otherwise.
  """
  traced = jax.make_jaxpr(function)(leaves)
  kernel_of = {traced.jaxpr.invars[number]: number for number in kernels}

  def run(taps: dict[int, Array]) -> tuple[Array, dict[int, Array], dict[int, Array]]:
    layers = _Layers(kernels, taps, skip_others)
    value = _run(traced, leaves, kernel_of, layers)[0]
    return value, *layers.inputs_and_outputs()

  return run


class _Layers:
  """Collects the inputs and outputs of the layers while a function is run, and adds the taps."""

  def __init__(self, kernels: dict[int, str], taps: dict[int, Array], skip_others: bool) -> None:
    self.kernels, self.taps, self.skip_others = kernels, taps, skip_others
    self.inputs: dict[int, Array] = {}
    self.outputs: dict[int, Array] = {}
    self.others: set[int] = set()

  def reject(self, number: int, why: str) -> None:
    """Marks a leaf that is not the kernel of exactly one layer."""
    if not self.skip_others:
      raise ValueError(f"mask: {self.kernels[number]} {why}")
    self.others.add(number)

  def visit(self, number: int, eqn: Any, values: list[Array], result: Array) -> Array:
    """Records a layer, and returns its output with the tap."""
    if number in self.inputs:
      self.reject(number, "must be used by one layer once, but is used again")
    elif why := _unlike_a_layer(eqn, values):
      self.reject(number, why)
    else:
      self.inputs[number], self.outputs[number] = _inputs(eqn, values), result
      return result + self.taps[number] if number in self.taps else result
    return result

  def inputs_and_outputs(self) -> tuple[dict[int, Array], dict[int, Array]]:
    """Returns the inputs and outputs of the layers by the number of their kernel."""
    for number in self.kernels:
      if number not in self.inputs:
        self.reject(number, "is not the kernel of a matrix product or convolution")
    numbers = [number for number in self.inputs if number not in self.others]
    return {n: self.inputs[n] for n in numbers}, {n: self.outputs[n] for n in numbers}


def leading_axis_is_examples(
  outputs_fn: Callable[..., Array],
  leaves: list[Array],
  kernels: dict[int, str],
  batch: Batch,
) -> set[int]:
  """Returns the kernels of the layers whose inputs have the examples on the leading axis.

  The length of that axis may equal the number of examples by chance, so another number of examples is traced,
  too.
  """
  size = num_examples(batch)
  other = 1 if size > 1 else 2
  lengths, other_lengths = (
    _leading_lengths(outputs_fn, leaves, kernels, batch, number) for number in (size, other)
  )
  return {n for n in lengths if lengths[n] == size and other_lengths.get(n) == other}


def _leading_lengths(
  outputs_fn: Callable[..., Array],
  leaves: list[Array],
  kernels: dict[int, str],
  batch: Batch,
  size: int,
) -> dict[int, int]:
  """Returns the leading lengths of the layers' inputs for a batch of `size` examples."""

  def inputs(leaves: list[Array], batch: Batch) -> dict[int, Array]:
    return tapped(partial(outputs_fn, batch=batch), leaves, kernels, skip_others=True)({})[1]

  def resized(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype)

  shapes = jax.eval_shape(inputs, leaves, jax.tree.map(resized, batch))
  return {number: len(x) for number, x in shapes.items()}


def _run(traced: Any, args: Any, kernel_of: dict[Any, int], layers: _Layers) -> list[Any]:
  """Evaluates a jaxpr; `kernel_of` has the number of the kernel that a variable holds."""
  jaxpr, consts = traced.jaxpr, traced.consts
  values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
  kernel_of = dict(kernel_of)
  for eqn in jaxpr.eqns:
    operands = [_read(values, x) for x in eqn.invars]
    held = {
      place: kernel_of[x]
      for place, x in enumerate(eqn.invars)
      if not isinstance(x, Literal) and x in kernel_of
    }
    name, inner = eqn.primitive.name, next((eqn.params[key] for key in _INNER if key in eqn.params), None)
    if name == "stop_gradient":  # its result is a constant, not the kernel
      held = {}
    if held and name != "scan" and isinstance(inner, ClosedJaxpr | Jaxpr):
      inner = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
      held_inside = {inner.jaxpr.invars[place]: number for place, number in held.items()}
      results = _run(inner, operands, held_inside, layers)
    else:
      # Older versions of JAX also return the functions of a primitive.
      params = eqn.primitive.get_bind_params(eqn.params)
      functions, params = params if isinstance(params, tuple) else ((), params)
      results = eqn.primitive.bind(*functions, *operands, **params)
      results = list(results) if eqn.primitive.multiple_results else [results]
      if held and name in ("convert_element_type", "copy"):
        kernel_of[eqn.outvars[0]] = held[0]
      elif held and name in ("dot_general", *_CONVOLUTIONS) and list(held) == [1]:
        results = [layers.visit(held[1], eqn, operands, results[0])]
      else:
        right = "must be the right side of a matrix product or a convolution, [..., in, out]"
        for number in held.values():
          layers.reject(number, f"{right}, but is used by {name}")
    values.update(zip(eqn.outvars, results, strict=True))
  return [_read(values, x) for x in jaxpr.outvars]


def _read(values: dict[Any, Any], variable: Any) -> Any:
  return variable.val if isinstance(variable, Literal) else values[variable]


def _unlike_a_layer(eqn: Any, values: list[Array]) -> str:
  """Returns why a matrix product or convolution is not a layer with a kernel; empty if it is one."""
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
  """Returns a layer's inputs `[n, positions, inputs]`: of a convolution, patches in the kernel's order."""
  x, kernel = values
  if eqn.primitive.name == "dot_general":
    return x.reshape(len(x), -1, x.shape[-1])
  # Slices of the padded images, which take a fraction of the time of `conv_general_dilated_patches`.
  sides, params = kernel.shape[:-2], eqn.params
  names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
  # A common factor of all four only spreads the images out, as in `models.convolution`; divide by it.
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

  def shifted(offsets: tuple[int, ...]) -> Array:
    starts = [offset * dilation for offset, dilation in zip(offsets, rhs_dilation)]
    ends = [start + (number - 1) * stride + 1 for start, number, stride in zip(starts, outputs, strides)]
    return jax.lax.slice(padded, (0, *starts, 0), (len(x), *ends, x.shape[-1]), (1, *strides, 1))

  patches = jnp.stack([shifted(offsets) for offsets in itertools.product(*map(range, sides))], axis=-2)
  return patches.reshape(len(x), math.prod(outputs), -1)
