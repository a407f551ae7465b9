"""A convolution whose derivatives of every order have the order of axes for which XLA has fast programs."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxreg._onednn import uses_onednn
from jaxreg.typing import Array

NUMBERS = lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))


def canonical_convolution(
  lhs: Array,
  rhs: Array,
  window_strides: tuple[int, ...],
  padding: Any,
  lhs_dilation: tuple[int, ...] = (1, 1),
  rhs_dilation: tuple[int, ...] = (1, 1),
  *,
  precision: Any = None,
  out_sharding: NamedSharding | None = None,
) -> Array:
  """Convolves images `[batch, height, width, channels]` with `[height, width, channels, features]`.

  XLA has fast programs for these axes alone. The derivatives of JAX's function have other orders, which XLA
  mends outside `scan`, `map` and `while_loop` only. Here the transposes reorder the arrays themselves.
  """
  # XLA may return uninitialised memory if it adds at one end of an axis and cuts at the other. The gradient
  # of images that are padded by more than a kernel does both.
  padding = [tuple(ends) for ends in padding]
  for axis, ends in enumerate(padding, 1):
    if min(ends) < 0 < max(ends):
      lhs, padding[axis - 1] = _cut(lhs, axis, ends, lhs_dilation[axis - 1])
  return _convolution.bind(
    lhs,
    rhs,
    window_strides=tuple(window_strides),
    padding=tuple(padding),
    lhs_dilation=tuple(lhs_dilation),
    rhs_dilation=tuple(rhs_dilation),
    precision=precision,
    out_sharding=out_sharding,
  )


def _cut(lhs: Array, axis: int, ends: tuple[int, int], dilation: int) -> tuple[Array, tuple[int, int]]:
  """Cuts an axis where `ends` are negative; returns the rest and its padding, of at least 0."""
  low, high = (-(min(end, 0) // dilation) for end in ends)  # entries to cut, counted before the dilation
  rest = lax.slice_in_dim(lhs, low, lhs.shape[axis] - high, axis=axis)
  return rest, (ends[0] + low * dilation, ends[1] + high * dilation)


def _by_lax(lhs: Array, rhs: Array, **window: Any) -> Array:
  return lax.conv_general_dilated(lhs, rhs, dimension_numbers=NUMBERS, **window)


def _shape(*operands: Any, **window: Any) -> Any:
  # Unlike `jax.eval_shape`, this keeps the sharding and the manual axes of the result.
  return jax.make_jaxpr(functools.partial(_by_lax, **window))(*operands).out_avals[0]


def _to_images(cotangent: Array, lhs: Any, rhs: Array, **window: Any) -> Array:
  """Computes the transpose in the images: a convolution of the cotangent with the turned kernel."""
  padding = []
  for image, kernel, result, window_at in _axes(lhs.aval.shape, rhs.shape, cotangent.shape, window):
    low = kernel - window_at - 1
    padding.append((low, image + kernel - 1 - result - low))
  turned = lax.transpose(lax.rev(rhs, (0, 1)), (0, 1, 3, 2))
  return canonical_convolution(
    cotangent,
    turned,
    window["lhs_dilation"],
    padding,
    window["window_strides"],
    window["rhs_dilation"],
    precision=window["precision"],
    out_sharding=_sharding(lhs.aval, (0, 1, 2, 3)),
  )


def _to_kernel(cotangent: Array, lhs: Array, rhs: Any, **window: Any) -> Array:
  """Computes the transpose in the kernel: a convolution whose channels are the images of the batch."""
  padding = []
  for image, kernel, result, low in _axes(lhs.shape, rhs.aval.shape, cotangent.shape, window):
    padding.append((low, result - image + kernel - low - 1))
  float32 = lhs.dtype == rhs.aval.dtype == jnp.float32
  undilated = window["lhs_dilation"] == window["rhs_dilation"] == (1, 1)
  if uses_onednn() and float32 and undilated and not _is_explicit(rhs.aval):
    return _to_kernel_by_onednn(cotangent, lhs, rhs.aval.shape, padding, window)
  product = canonical_convolution(
    lax.transpose(lhs, (3, 1, 2, 0)),
    lax.transpose(cotangent, (1, 2, 0, 3)),
    window["rhs_dilation"],
    padding,
    window["lhs_dilation"],
    window["window_strides"],
    precision=window["precision"],
    out_sharding=_sharding(rhs.aval, (2, 0, 1, 3)),
  )
  return lax.transpose(product, (1, 2, 0, 3))


def _to_kernel_by_onednn(
  cotangent: Array, lhs: Array, kernel: Sequence[int], padding: Any, window: Any
) -> Array:
  """Computes `_to_kernel` with up to 16 channels of the images side by side in a row.

  oneDNN takes long for few results in a row. Images of few channels are taken 16 at a time, as fit a cache;
  on several devices the slices would move them.
  """
  batch, height, width, channels = lhs.shape
  together = max(number for number in range(1, 17) if channels % number == 0)
  strides = window["window_strides"]
  rows, (low, high) = padding
  images = lhs.reshape(batch, height, width, -1, together)
  small = channels <= 64 and batch % 16 == 0 and batch <= 256 and jax.device_count() == 1
  parts = batch // 16 if small else 1

  def part(images: Array, cotangent: Array) -> Array:
    return canonical_convolution(
      lax.transpose(images, (3, 1, 2, 4, 0)).reshape(-1, height, width * together, len(images)),
      lax.transpose(cotangent, (1, 2, 0, 3)),
      (1, 1),
      (rows, (low * together, high * together)),
      (1, 1),
      (strides[0], strides[1] * together),
      precision=window["precision"],
    )

  each = map(part, jnp.split(images, parts), jnp.split(cotangent, parts))
  product = functools.reduce(jnp.add, each).reshape(-1, *kernel[:2], together, kernel[3])
  return lax.transpose(product, (1, 2, 0, 3, 4)).reshape(kernel)


def _sharding(aval: Any, axes: tuple[int, ...]) -> NamedSharding | None:
  """Returns the sharding of a cotangent on an explicit mesh: its primal's, with the axes in another order."""
  mesh, spec = aval.sharding.mesh, aval.sharding.spec
  return NamedSharding(mesh, PartitionSpec(*(spec[axis] for axis in axes))) if _is_explicit(aval) else None


def _is_explicit(aval: Any) -> bool:
  return AxisType.Explicit in aval.sharding.mesh.axis_types


def _axes(images: Any, kernel: Any, results: Any, window: dict[str, Any]) -> Any:
  """Returns for each spatial axis the sizes with their dilation, and the padding before the image."""

  def dilated(sizes, factors):
    return [(size - 1) * factor + 1 for size, factor in zip(sizes, factors)]

  return zip(
    dilated(images[1:3], window["lhs_dilation"]),
    dilated(kernel[:2], window["rhs_dilation"]),
    dilated(results[1:3], window["window_strides"]),
    [low for low, _ in window["padding"]],
  )


def _batched(operands: Any, axes: Any, **window: Any) -> tuple[Array, int]:
  """Computes `vmap`: one convolution if only one operand has the axis, else JAX's form by groups."""
  (lhs, rhs), (of_lhs, of_rhs) = operands, axes
  if None not in axes or any(_is_explicit(jax.typeof(each)) for each in operands):
    return jax.vmap(functools.partial(_by_lax, **window), axes)(lhs, rhs), 0
  if of_lhs is None:  # many kernels are more features
    kernels = jnp.moveaxis(rhs, of_rhs, -1)
    merged = kernels.reshape(*kernels.shape[:3], -1)
    out = canonical_convolution(lhs, merged, **window)
    return out.reshape(*out.shape[:3], *kernels.shape[3:]), 4
  images = jnp.moveaxis(lhs, of_lhs, 0)  # many batches are more images
  out = canonical_convolution(images.reshape(-1, *images.shape[2:]), rhs, **window)
  return out.reshape(*images.shape[:2], *out.shape[1:]), 0


_convolution = Primitive("canonical_convolution")
_convolution.def_impl(_by_lax)
_convolution.def_abstract_eval(_shape)
mlir.register_lowering(_convolution, mlir.lower_fun(_by_lax, multiple_results=False))
ad.defbilinear(_convolution, _to_images, _to_kernel)
batching.primitive_batchers[_convolution] = _batched
