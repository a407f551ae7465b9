"""The mesh of devices, and the rules that split parameters over it."""

import dataclasses
import fnmatch
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg.paths import leaf_names
from jaxreg.train.errors import RunError
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Params

# The rules that have a name. The classes are the last dimension of a head's kernels and biases.
RULES = {"head": ("head/*", -1, "model"), "fsdp": ("*", "largest", "data")}

Layout = NamedSharding | TrainState  # one sharding, or a tree of shardings
_AXES = (("data",), ("model",), ("data", "model"))


@dataclasses.dataclass(frozen=True)
class Rule:
  """The parameters whose whole paths match `glob` are split along one dimension, over axes of the mesh."""

  text: str  # the rule for messages
  glob: str
  dimension: int | None  # None: the largest one that the number of devices divides, if any
  axes: tuple[str, ...]

  def spec(self, name: str, shape: tuple[int, ...], mesh: jax.sharding.Mesh, min_size: int) -> P:
    """Returns how the parameter of this name and shape is split."""
    parts = math.prod(mesh.shape[axis] for axis in self.axes)
    if self.dimension is None:
      # Of equal dimensions, the last one, whose entries are contiguous.
      fit = [(size, d) for d, size in enumerate(shape) if size % parts == 0]
      if not fit or math.prod(shape) < min_size:
        return P()
      dimension = max(fit)[1]
    else:
      if not -len(shape) <= self.dimension < len(shape):
        raise RunError(f"mesh.shard: {self.text!r} needs a dimension that {name} {shape} does not have")
      dimension = self.dimension % len(shape)
      if shape[dimension] % parts:
        raise RunError(
          f"mesh.shard: {self.text!r} cannot split the {shape[dimension]} of {name} {shape} over {parts} "
          "devices; give another mesh.model, or another rule"
        )
    axis, *more = self.axes
    return P(*[None] * dimension, self.axes if more else axis)


def make_mesh(
  model: int = 1, axes: str = "auto", *, slices: int = 1, devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
  """Arranges all devices in two axes: `data`, which splits batches, and `model`, of `model` devices.

  With several slices, `slice` is the first axis. It splits batches, too, and no parameters: so only sums of
  gradients cross the network between slices. With `axes="explicit"`, JAX keeps the sharding of every array in
  its type, and guesses none.
  """
  number = jax.device_count() if devices is None else len(devices)
  if number % slices:
    raise RunError(f"mesh.slices: must divide the number of devices, {number}, got {slices}")
  if number // slices % model:
    within = f"the number of devices{' of a slice' if slices > 1 else ''}, {number // slices}"
    raise RunError(f"mesh.model: must divide {within}, got {model}")
  kind = AxisType.Explicit if axes == "explicit" else AxisType.Auto
  shape = (number // slices // model, model)
  if slices == 1:
    return jax.make_mesh(shape, ("data", "model"), axis_types=(kind,) * 2, devices=devices)
  arranged = _arranged(jax.devices() if devices is None else devices, slices, shape)
  return jax.sharding.Mesh(arranged, ("slice", "data", "model"), axis_types=(kind,) * 3)


def _arranged(devices: Sequence[Any], slices: int, shape: tuple[int, int]) -> np.ndarray:
  """Arranges devices as `[slices, *shape]`; JAX knows the slice of a TPU, and the node of a GPU."""
  there = len({getattr(device, "slice_index", 0) for device in devices})
  if there == 1:  # simulated: JAX's order
    return np.array(devices).reshape(slices, *shape)
  if there != slices:
    raise RunError(f"mesh.slices: must be the number of slices that there are, {there}, got {slices}")
  return mesh_utils.create_hybrid_device_mesh((1, *shape), (slices, 1, 1), devices)


def num_parts(mesh: jax.sharding.Mesh) -> int:
  """Returns the number of parts into which a batch is split."""
  return mesh.shape.get("slice", 1) * mesh.shape["data"]


def parse(rule: object) -> Rule:
  """Reads a rule: a name in `RULES`, `(glob, dimension, axis)` or `(glob, dimension, axis, axis)`."""
  parts = RULES.get(rule) if isinstance(rule, str) else rule
  glob, dimension, *axes = parts if isinstance(parts, list | tuple) and len(parts) > 2 else ("", 0)
  if (
    not isinstance(glob, str)
    or tuple(axes) not in _AXES
    or not (dimension == "largest" or type(dimension) is int)
  ):
    raise RunError(
      f"mesh.shard: rules are {', '.join(RULES)} or 'GLOB: DIMENSION=AXIS', with a number or largest, and "
      f"data, model or data+model, as in 'head/*: -1=model'; got {rule!r}"
    )
  text = rule if isinstance(rule, str) else f"{glob}: {dimension}={'+'.join(axes)}"
  return Rule(text, glob, None if dimension == "largest" else dimension, tuple(axes))


def make_layout(state: TrainState, mesh: jax.sharding.Mesh, shard: Sequence[object], min_size: int) -> Layout:
  """Returns where the state of one replica lies: a copy on each device, or split by rules.

  If several rules match a parameter, the first counts. Other arrays in the state, such as a momentum or a
  mean, lie as a parameter does. They have its shape, and their path ends in its path. Rules for the largest
  dimension leave parameters below `min_size` whole.
  """
  whole = NamedSharding(mesh, P())
  if not shard:
    return whole
  rules = list(map(parse, shard))
  names = leaf_names(state.params)
  shapes = dict(zip(names, (x.shape for x in jax.tree.leaves(state.params)), strict=True))
  specs: dict[str, P] = {}
  for rule in rules:
    matches = fnmatch.filter(names, rule.glob)
    if not matches:
      raise RunError(f"mesh.shard: {rule.text!r} fits no parameter; there are {', '.join(names)}")
    for name in matches:
      if name not in specs:
        specs[name] = rule.spec(name, shapes[name], mesh, min_size)

  def sharding(path: str, leaf: Array) -> NamedSharding:
    # "opt_state/0/mu/head/classifier/kernel" ends in the path of a parameter; the longest such end counts.
    segments = path.split("/")
    ends = ("/".join(segments[start:]) for start in range(len(segments)))
    name = next((end for end in ends if shapes.get(end) == leaf.shape), None)
    return NamedSharding(mesh, specs.get(name, P())) if name else whole

  leaves, structure = jax.tree.flatten(state)
  return structure.unflatten([sharding(*pair) for pair in zip(leaf_names(state), leaves, strict=True)])


def stacked_layout(layout: Layout) -> Layout:
  """Adds a leading axis of replicas to a layout."""
  return jax.tree.map(lambda x: NamedSharding(x.mesh, P(None, *x.spec)), layout)


def lay_out(tree: Params, layout: Params) -> Params:
  """Lays out a tree, inside or outside of a compiled function."""
  explicit = AxisType.Explicit in jax.tree.leaves(layout)[0].mesh.axis_types
  # A constraint is for axes that JAX splits as it likes.
  return (jax.sharding.reshard if explicit else jax.lax.with_sharding_constraint)(tree, layout)


def gathered(params: Params, layout: Params) -> Params:
  """Gathers parameters over the data axis, as a forward pass reads them."""
  # Asked for explicitly, because the compiler might otherwise move activations of the whole batch.
  return lay_out(params, gathered_layout(layout))


def gathered_layout(layout: Params) -> Params:
  """Returns the layout without splits over the data axis."""
  without = {"data": None, ("data", "model"): "model"}

  def gather(sharding: NamedSharding) -> NamedSharding:
    return NamedSharding(sharding.mesh, P(*(without.get(entry, entry) for entry in sharding.spec)))

  return jax.tree.map(gather, layout)
