"""The dense and convolutional layers of any function, as its computation shows them."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# JAX 0.12 has one class under both names, and its types export one of them.
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal  # pyright: ignore[reportPrivateImportUsage]

from jaxreg._analyses import num_examples
from jaxreg._leaves import wide
from jaxreg.typing import Array, Batch

# Calls whose inner function has the same arguments, and where that function is.
_CALLS = (
  "jit",
  "pjit",
  "closed_call",
  "core_call",
  "checkpoint",
  "remat",
  "custom_jvp_call",
  "custom_vjp_call",
)
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_SAME_LAYOUT = ("convert_element_type", "copy", "copy_p", "mesh_cast", "reshard", "sharding_constraint")
_LAYOUTS = (*_SAME_LAYOUT, "transpose", "reshape", "squeeze", "broadcast_in_dim")


class Part(NamedTuple):
  """A leaf in the matrix of its layer: transposed by `axes`, it is rows of the matrix."""

  number: int
  shape: tuple[int, ...]
  axes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Layer:
  """The matrix `[rows, units]` of a layer's parameters: the bias's row, then the kernel `[..., in, out]`."""

  kernel: int  # the number of the kernel's leaf, which may be outside of the matrix
  units: int
  parts: tuple[Part, ...]

  @property
  def numbers(self) -> list[int]:
    """The numbers of the leaves in the matrix, in the order of the tree."""
    return sorted(part.number for part in self.parts)

  def only(self, numbers: Iterable[int]) -> Layer:
    """Returns the matrix of the leaves that are among `numbers`."""
    return dataclasses.replace(self, parts=tuple(part for part in self.parts if part.number in numbers))

  def inputs(self, h: Array) -> Array:
    """Returns what multiplies the matrix, from the inputs of the kernel: a bias has the input 1."""
    ones = jnp.ones((*h.shape[:2], 1), h.dtype)
    return jnp.concatenate([h if part.number == self.kernel else ones for part in self.parts], axis=2)

  def join(self, leaves: Mapping[int, Array]) -> Array:
    """Joins leaves `[..., *shape]` into matrices `[..., rows, units]`."""
    rows = []
    for number, shape, axes in self.parts:
      x = leaves[number]
      first = x.ndim - len(shape)
      x = x.transpose(*range(first), *(first + axis for axis in axes))
      rows.append(x.reshape(*x.shape[:first], math.prod(shape) // self.units, self.units))
    return jnp.concatenate(rows, axis=-2)

  def spread(self, matrix: Array) -> dict[int, Array]:
    """Splits matrices `[..., rows, units]` into leaves `[..., *shape]`, by their numbers."""
    leaves, row, above = {}, 0, matrix.shape[:-2]
    for number, shape, axes in self.parts:
      rows = math.prod(shape) // self.units
      x = matrix[..., row : row + rows, :].reshape(*above, *(shape[axis] for axis in axes))
      leaves[number] = x.transpose(*range(len(above)), *(len(above) + np.argsort(axes)).astype(int))
      row += rows
    return leaves

  def from_vector(self, vector: Array) -> Array:
    """Turns vectors `[..., size]`, the leaves in the tree's order, into matrices `[..., rows, units]`."""
    shapes = {number: shape for number, shape, _ in self.parts}
    leaves, first = {}, 0
    for number in self.numbers:
      size = math.prod(shapes[number])
      leaves[number] = vector[..., first : first + size].reshape(*vector.shape[:-1], *shapes[number])
      first += size
    return self.join(leaves)

  def to_vector(self, matrix: Array) -> Array:
    """Turns matrices `[..., rows, units]` into vectors `[..., size]`."""
    leaves, above = self.spread(matrix), matrix.shape[:-2]
    return jnp.concatenate([leaves[number].reshape(*above, -1) for number in self.numbers], axis=-1)


def layers_in(
  outputs_fn: Callable[..., Array],
  leaves: list[Array],
  batch: Batch,
  taken: tuple[bool, ...],
) -> tuple[list[Layer], dict[int, str]]:
  """Finds the layers of the leaves that are `taken`, and why the others among these belong to no layer.

  A leaf is the kernel of a layer if it multiplies an input once, with the examples on the input's leading
  axis. A leaf is its bias if it is added to the layer's output, one entry for each unit, and nothing else
  uses that output.
  """
  numbers = [number for number, is_taken in enumerate(taken) if is_taken]
  layers, why = _find_layers(outputs_fn, leaves, batch)
  layers = [layer for layer in (layer.only(numbers) for layer in layers) if layer.parts]
  return layers, {number: why[number] for number in numbers if number in why}


def _find_layers(
  outputs_fn: Callable[..., Array], leaves: list[Array], batch: Batch
) -> tuple[list[Layer], dict[int, str]]:
  """Finds all layers, and why the other leaves belong to none."""
  size = num_examples(batch)
  # The leading axis may be as long as the batch by chance, so another number of examples is traced, too.
  other = 2 if size != 2 else 3
  lengths = _search(outputs_fn, leaves, batch, size, biases=False).lengths
  search = _search(outputs_fn, leaves, batch, other, biases=True)
  for number in list(search.layers):
    if (lengths.get(number), search.lengths[number]) != (size, other):
      search.reject(number, "belongs to a layer without the examples on the leading axis of its input")
  layers = []
  for number, layer in search.layers.items():
    if number in search.why:
      search.why |= {
        n: "is the bias of a kernel without a factor" for n in layer.numbers if n not in search.why
      }
    else:
      layers.append(layer.only(set(layer.numbers) - set(search.why)))
  known = {number for layer in layers for number in layer.numbers} | set(search.why)
  unused = dict.fromkeys(set(range(len(leaves))) - known, "is used by no layer")
  return layers, search.why | unused


def _search(
  outputs_fn: Callable[..., Array],
  leaves: list[Array],
  batch: Batch,
  size: int,
  *,
  biases: bool,
) -> _Search:
  """Looks for layers in the computation of the outputs of `size` examples."""
  search = _Search([jnp.shape(x) for x in leaves], biases)

  def trace(leaves: list[Array], batch: Batch) -> None:
    traced = jax.make_jaxpr(partial(outputs_fn, batch=batch))(leaves)
    held = {x: Held(number) for number, x in enumerate(traced.jaxpr.invars)}
    for one in _run(traced, leaves, held, search)[1]:
      if one is not None and not one.is_output:
        search.reject(one.number, "is an output")

  def resized(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype)

  jax.eval_shape(trace, leaves, jax.tree.map(resized, batch))
  return search


def tapped(
  function: Callable[[list[Array]], Array], leaves: list[Array], layers: list[Layer]
) -> Callable[[dict[int, Array]], tuple[Array, dict[int, Array], dict[int, Array]]]:
  """Traces a function of leaves, and adds taps to the outputs of the layers.

  Returns a function of the taps, which computes the function's value, the kernels' inputs
  `[n, positions, inputs]`, and zeros like the layers' outputs `[n, positions, units]`, all by the number of
  the kernel. A missing tap is 0; the gradient in a tap is the gradient in the layer's output.
  """
  traced = jax.make_jaxpr(function)(leaves)
  held = {traced.jaxpr.invars[layer.kernel]: Held(layer.kernel) for layer in layers}

  def run(taps: dict[int, Array]) -> tuple[Array, dict[int, Array], dict[int, Array]]:
    visits = _Taps(taps)
    values, _ = _run(traced, leaves, held, visits)
    return values[0], visits.inputs, visits.zeros

  return run


class Held(NamedTuple):
  """What a variable holds: a leaf, or the output of a layer by its kernel, in another layout."""

  number: int
  is_output: bool = False
  start: Any = None  # of an output: which unit each entry belongs to
  steps: tuple[tuple[str, Any], ...] = ()  # names and options of the changes of layout

  def axes(self, ndim: int) -> tuple[int, ...] | None:
    """Returns by which axes the leaf was transposed; None if something else happened to it."""
    axes = tuple(range(ndim))
    for name, params in self.steps:
      if name == "transpose":
        axes = tuple(axes[axis] for axis in params["permutation"])
      elif name not in _SAME_LAYOUT:
        return None
    return axes

  def index(self, start: np.ndarray) -> np.ndarray:
    """Applies the changes of layout to an array."""
    for name, params in self.steps:
      if name == "transpose":
        start = start.transpose(params["permutation"])
      elif name == "broadcast_in_dim":
        places = dict(zip(params["broadcast_dimensions"], start.shape, strict=True))
        spread = start.reshape([places.get(axis, 1) for axis in range(len(params["shape"]))])
        start = np.broadcast_to(spread, params["shape"])
      elif name == "reshape":
        start = start.reshape(params["new_sizes"])
      elif name == "squeeze":
        start = start.squeeze(tuple(params["dimensions"]))
    return start


class View(NamedTuple):
  """A matrix product or convolution as a layer: its transposed input, kernel and output."""

  inputs: tuple[int, ...]  # the axes of the input as [n, ..., in]
  kernel: tuple[int, ...]  # of the kernel as [..., in, out]
  outputs: tuple[int, ...]  # of the output as [n, ..., out]
  units: tuple[int, ...]  # the shape of the units

  def from_rows(self, rows: Array, like: Array) -> Array:
    """Returns `[n, positions, units]` in the layout of the output."""
    shape = [like.shape[axis] for axis in self.outputs]
    return rows.reshape(shape).transpose(np.argsort(self.outputs))


class _Search:
  """Collects layers while a function is traced, and why other leaves belong to none."""

  def __init__(self, shapes: list[tuple[int, ...]], biases: bool) -> None:
    self.shapes, self.tracks_outputs = shapes, biases
    self.layers: dict[int, Layer] = {}
    self.lengths: dict[int, int] = {}
    self.why: dict[int, str] = {}
    self.used: set[int] = set()

  def reject(self, number: int, why: str) -> None:
    """Marks a leaf that belongs to no layer."""
    self.why.setdefault(number, why)

  def _use(self, number: int) -> None:
    if number in self.used:
      self.reject(number, "is used more than once")
    self.used.add(number)

  def layer(self, held: Held, place: int, eqn: Any, operands: list[Array], result: Array) -> Any:
    """Records a layer; returns its output, and what the output's variable holds."""
    number, shape = held.number, self.shapes[held.number]
    self._use(number)
    axes = held.axes(len(shape))
    view = _view(eqn, place, operands) if axes is not None else "is used in another shape"
    if isinstance(view, str):
      self.reject(number, view)
      return result, None
    assert axes is not None
    units = math.prod(view.units)
    part = Part(number, shape, tuple(axes[axis] for axis in view.kernel))
    self.layers[number] = Layer(number, units, (part,))
    self.lengths[number] = operands[1 - place].shape[view.inputs[0]]
    if not self.tracks_outputs:
      return result, None
    straight = [result.shape[axis] for axis in view.outputs]
    index = np.broadcast_to(np.arange(units).reshape(view.units), straight)
    return result, Held(number, True, index.transpose(np.argsort(view.outputs)))

  def add(self, output: Held, leaf: Held, shape: tuple[int, ...]) -> None:
    """Records a leaf that is added to the output of a layer."""
    self._use(leaf.number)
    layer, own = self.layers[output.number], self.shapes[leaf.number]
    units = output.index(output.start)
    if math.prod(own) == layer.units and units.shape == shape and len(layer.parts) == 1:
      index = leaf.index(np.arange(layer.units).reshape(own))
      if np.array_equal(units, np.broadcast_to(index, shape)):
        parts = (Part(leaf.number, own, tuple(range(len(own)))), *layer.parts)
        self.layers[output.number] = dataclasses.replace(layer, parts=parts)
        return
    self.reject(leaf.number, "is added to a layer, but not as one number for each unit")


class _Taps:
  """Adds taps to the outputs of layers while a function is run, and collects their inputs."""

  tracks_outputs = False

  def __init__(self, taps: dict[int, Array]) -> None:
    self.taps = taps
    self.inputs: dict[int, Array] = {}
    self.zeros: dict[int, Array] = {}

  def reject(self, number: int, why: str) -> None:
    """Does nothing: the search has left out all leaves that belong to no layer."""

  def layer(self, held: Held, place: int, eqn: Any, operands: list[Array], result: Array) -> Any:
    """Records a layer, and returns its output with the tap."""
    view, number = _view(eqn, place, operands), held.number
    assert isinstance(view, View)
    h = wide(_inputs(eqn, operands[1 - place].transpose(view.inputs), operands[place], view))
    self.inputs[number] = h
    self.zeros[number] = jnp.zeros((*h.shape[:2], math.prod(view.units)), h.dtype)
    if number in self.taps:
      result = result + view.from_rows(self.taps[number], result).astype(result.dtype)
    return result, None


def _run(traced: Any, args: Any, held: dict[Any, Held], visits: Any) -> tuple[list[Any], list[Held | None]]:
  """Evaluates a jaxpr whose variables hold leaves; returns the results, and what they hold."""
  jaxpr, consts = traced.jaxpr, traced.consts
  values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
  operands_of = (x for eqn in jaxpr.eqns for x in eqn.invars)
  uses = collections.Counter(
    x for x in itertools.chain(operands_of, jaxpr.outvars) if not isinstance(x, Literal)
  )
  # Something else than a bias may use an output that is used twice.
  held = {x: one for x, one in held.items() if not one.is_output or uses[x] == 1}
  for eqn in jaxpr.eqns:
    operands = [values[x] if not isinstance(x, Literal) else x.val for x in eqn.invars]
    here = {place: held[x] for place, x in enumerate(eqn.invars) if not isinstance(x, Literal) and x in held}
    name = eqn.primitive.name
    if name == "stop_gradient":  # its result is a constant, not the kernel
      here = {}
    after: list[Held | None] = [None] * len(eqn.outvars)
    inner = next((eqn.params[key] for key in _INNER if key in eqn.params), None) if name in _CALLS else None
    if here and isinstance(inner, ClosedJaxpr | Jaxpr):
      inner = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
      results, after = _run(inner, operands, {inner.jaxpr.invars[n]: x for n, x in here.items()}, visits)
    else:
      # Older versions of JAX also return the functions of a primitive.
      params = eqn.primitive.get_bind_params(eqn.params)
      functions, params = params if isinstance(params, tuple) else ((), params)
      results = eqn.primitive.bind(*functions, *operands, **params)
      results = list(results) if eqn.primitive.multiple_results else [results]
      leaves = {place: x for place, x in here.items() if not x.is_output}
      outputs = [x for x in here.values() if x.is_output]
      if name in _LAYOUTS and list(here) == [0]:
        after = [here[0]._replace(steps=(*here[0].steps, (name, eqn.params)))]
      elif name in ("dot_general", "conv_general_dilated") and len(leaves) == 1:
        ((place, leaf),) = leaves.items()
        results[0], after[0] = visits.layer(leaf, place, eqn, operands, results[0])
      elif name == "add" and len(leaves) == len(outputs) == 1:
        visits.add(outputs[0], *leaves.values(), results[0].shape)
      else:
        for leaf in leaves.values():
          visits.reject(leaf.number, f"is used by {name}")
    values.update(zip(eqn.outvars, results, strict=True))
    new = zip(eqn.outvars, after, strict=True)
    held |= {x: one for x, one in new if one is not None and (not one.is_output or uses[x] == 1)}
  results = [x.val if isinstance(x, Literal) else values[x] for x in jaxpr.outvars]
  return results, [None if isinstance(x, Literal) else held.get(x) for x in jaxpr.outvars]


def _view(eqn: Any, place: int, operands: list[Array]) -> View | str:
  """Returns a matrix product or convolution as a layer, or why it is not one; `place` is the kernel's."""
  x, kernel = operands[1 - place], operands[place]
  if eqn.primitive.name == "dot_general":
    contracted, batched = eqn.params["dimension_numbers"]
    free, units = (
      [axis for axis in range(array.ndim) if axis not in contracted[side]]
      for side, array in ((1 - place, x), (place, kernel))
    )
    if any(map(len, batched)) or not free:
      return "is the kernel of a matrix product with another kernel for each group"
    first = len(units) if place == 0 else 0  # of the axes of the input in the output
    rest = range(len(units)) if place == 0 else range(len(free), len(free) + len(units))
    return View(
      (*free, *contracted[1 - place]),
      (*contracted[place], *units),
      (*range(first, first + len(free)), *rest),
      tuple(kernel.shape[axis] for axis in units),
    )
  if place != 1:
    return "is the input of a convolution"
  if eqn.params["feature_group_count"] != 1 or eqn.params["batch_group_count"] != 1:
    return "is the kernel of a convolution in groups"
  numbers = eqn.params["dimension_numbers"]
  lhs, rhs, out = ((spec[0], *spec[2:], spec[1]) for spec in numbers)
  return View(lhs, (*rhs[1:-1], rhs[-1], rhs[0]), out, (kernel.shape[rhs[0]],))


def _inputs(eqn: Any, x: Array, kernel: Array, view: View) -> Array:
  """Returns a layer's inputs `[n, positions, inputs]`: of a convolution, patches in the kernel's order."""
  if eqn.primitive.name == "dot_general":
    inputs = len(view.kernel) - len(view.units)
    places = x.shape[1 : x.ndim - inputs]
    return x.reshape(len(x), math.prod(places), math.prod(x.shape[x.ndim - inputs :]))
  # Slices of the padded images, which take a fraction of the time of `conv_general_dilated_patches`.
  sides, params = [kernel.shape[axis] for axis in view.kernel[:-2]], eqn.params
  names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
  strides, padding, lhs_dilation, rhs_dilation = (params[name] for name in names)
  padding = [(low, high, dilation - 1) for (low, high), dilation in zip(padding, lhs_dilation)]
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
