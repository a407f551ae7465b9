"""A convolution that is fast on a CPU, also in loops, with its derivatives of every order."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType

from jaxreg._cpu.onednn import uses_onednn
from jaxreg._errors import ArgumentError
from jaxreg._sharding import varying_like
from jaxreg.typing import Array

# Images [batch, height, width, channels] and kernels [height, width, channels, features].
_NUMBERS = lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))


def convolution(
  lhs: Array,
  rhs: Array,
  window_strides: Sequence[int],
  padding: str | Sequence[tuple[int, int]],
  lhs_dilation: Sequence[int] | None = None,
  rhs_dilation: Sequence[int] | None = None,
  dimension_numbers: Any = None,
  **options: Any,
) -> Array:
  r"""Convolves as `jax.lax.conv_general_dilated` does, in programs that are faster on a CPU.

  .. math:: y_{n, i, o} = \sum_{j, c} x_{n, s i + j - p, c}\, k_{j, c, o}

  A layer takes it in place of JAX's function. On an accelerator, and for integers, it is JAX's function. On a
  CPU:

  - XLA has fast programs for one order of axes, and the derivatives of JAX's function have others. XLA mends
    that outside loops only: in `scan`, `map` and `while_loop` gradients take 20 times as long, and with
    oneDNN 100 times. Here they are convolutions with the axes in that order.
  - XLA recomputes cheap operations for everything that reads them. The gradient of a kernel would so
    compute all residual blocks before it again. XLA computes a division once, so the input is divided by a
    one that XLA cannot see through.
  - If `XLA_FLAGS` asks for oneDNN, which JAX 0.12 has, the gradient of a kernel has the form that oneDNN
    computes fastest.

  The value and both derivatives are convolutions. So derivatives of every order, `vmap` and sharded batches
  work. On explicit axes the result is split as JAX's function splits it, and XLA chooses how to compute it.

  Args:
    lhs: images, `[batch, height, width, channels]` or as `dimension_numbers` says.
    rhs: the kernel, `[height, width, channels, features]` or as `dimension_numbers` says.
    padding: as in `jax.lax.conv_general_dilated`; an axis must not be padded at one end and cut at the other,
      for which XLA may return uninitialised memory.
    window_strides, lhs_dilation, rhs_dilation, dimension_numbers, options: as in
      `jax.lax.conv_general_dilated`.

  Returns:
    The images of features, as `jax.lax.conv_general_dilated` returns them.

  Example:
    >>> from flax import linen as nn
    >>> layer = nn.Conv(16, (3, 3), conv_general_dilated=convolution)
    >>> layer.init_with_output(jax.random.key(0), jnp.ones((2, 8, 8, 3)))[0].shape
    (2, 8, 8, 16)
  """
  plain = functools.partial(
    lax.conv_general_dilated,
    window_strides=window_strides,
    padding=padding,
    lhs_dilation=lhs_dilation,
    rhs_dilation=rhs_dilation,
    dimension_numbers=dimension_numbers,
    **options,
  )
  out = _shape(lhs, rhs, **plain.keywords)  # raises for wrong arguments
  if not isinstance(padding, str):
    for low, high in padding:
      if min(low, high) < 0 < max(low, high):
        raise ArgumentError(
          "padding",
          f"must not add at one end of an axis and cut at the other, got {(low, high)}; cut with a slice",
        )
  mesh = out.sharding.mesh
  explicit = tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types) if kind == AxisType.Explicit)
  if explicit:  # JAX's derivatives refuse most ways to split images and kernels
    automatic = functools.partial(convolution, **plain.keywords | {"out_sharding": None})
    split: Any = jax.sharding.auto_axes(automatic, axes=explicit, out_sharding=out.sharding)
    return split(lhs, rhs)
  empty = 0 in (*lhs.shape, *rhs.shape, *out.shape)
  if jax.default_backend() != "cpu" or empty or not jnp.issubdtype(lhs.dtype, jnp.floating):
    return plain(lhs, rhs)
  lhs = lhs / lax.optimization_barrier(jnp.ones((), lhs.dtype))
  grouped = any(options.get(name, 1) != 1 for name in ("feature_group_count", "batch_group_count"))
  wide = any(lhs.dtype == rhs.dtype == out.dtype == dtype for dtype in (jnp.float32, jnp.float64))
  symbolic = not all(isinstance(size, int) for size in (*lhs.shape, *rhs.shape))  # in `jax.export`
  if lhs.ndim != 4 or grouped or symbolic or not wide:
    return plain(lhs, rhs)
  lhs, rhs = varying_like(lhs, rhs), varying_like(rhs, lhs)

  axes = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)

  def ordered(spec, canonical):
    return [spec[canonical.index(axis)] for axis in range(4)]

  lhs = lax.transpose(lhs, ordered(axes.lhs_spec, _NUMBERS.lhs_spec))
  rhs = lax.transpose(rhs, ordered(axes.rhs_spec, _NUMBERS.rhs_spec))
  to_out = ordered(axes.out_spec, _NUMBERS.out_spec)
  lhs_dilation = (1, 1) if lhs_dilation is None else lhs_dilation
  rhs_dilation = (1, 1) if rhs_dilation is None else rhs_dilation
  if isinstance(padding, str):
    window = [(size - 1) * factor + 1 for size, factor in zip(rhs.shape[:2], rhs_dilation)]
    padding = lax.padtype_to_pads(lhs.shape[1:3], window, window_strides, padding)
  out = _convolve(
    lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, precision=options.get("precision")
  )
  return lax.transpose(out, [to_out.index(axis) for axis in range(4)])


def _convolve(
  lhs: Array,
  rhs: Array,
  window_strides: Sequence[int],
  padding: Any,
  lhs_dilation: Sequence[int] = (1, 1),
  rhs_dilation: Sequence[int] = (1, 1),
  *,
  precision: Any = None,
) -> Array:
  """Convolves images `[batch, height, width, channels]` with `[height, width, channels, features]`.

  XLA has fast programs for these axes alone. Here the transposes in both arguments reorder the arrays
  themselves, so that they are convolutions with these axes, too.
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
    dimension_numbers=_NUMBERS,
    feature_group_count=1,
    batch_group_count=1,
    precision=precision,
    out_sharding=None,
  )


def _cut(lhs: Array, axis: int, ends: tuple[int, int], dilation: int) -> tuple[Array, tuple[int, int]]:
  """Cuts an axis where `ends` are negative; returns the rest and its padding, of at least 0."""
  low, high = (-(min(end, 0) // dilation) for end in ends)  # entries to cut, counted before the dilation
  rest = lax.slice_in_dim(lhs, low, lhs.shape[axis] - high, axis=axis)
  return rest, (ends[0] + low * dilation, ends[1] + high * dilation)


def _shape(*operands: Any, **window: Any) -> Any:
  # Unlike `jax.eval_shape`, this keeps the sharding and the manual axes of the result.
  return jax.make_jaxpr(functools.partial(lax.conv_general_dilated, **window))(*operands).out_avals[0]


def _to_images(cotangent: Array, lhs: Any, rhs: Array, **window: Any) -> Array:
  """Computes the transpose in the images: a convolution of the cotangent with the turned kernel."""
  padding = []
  for image, kernel, result, window_at in _axes(lhs.aval.shape, rhs.shape, cotangent.shape, window):
    low = kernel - window_at - 1
    padding.append((low, image + kernel - 1 - result - low))
  turned = lax.transpose(lax.rev(rhs, (0, 1)), (0, 1, 3, 2))
  return _convolve(
    cotangent,
    turned,
    window["lhs_dilation"],
    padding,
    window["window_strides"],
    window["rhs_dilation"],
    precision=window["precision"],
  )


def _to_kernel(cotangent: Array, lhs: Array, rhs: Any, **window: Any) -> Array:
  """Computes the transpose in the kernel: a convolution whose channels are the images of the batch."""
  padding = []
  for image, kernel, result, low in _axes(lhs.shape, rhs.aval.shape, cotangent.shape, window):
    padding.append((low, result - image + kernel - low - 1))
  float32 = lhs.dtype == rhs.aval.dtype == jnp.float32
  undilated = window["lhs_dilation"] == window["rhs_dilation"] == (1, 1)
  if uses_onednn() and float32 and undilated:
    return _to_kernel_by_onednn(cotangent, lhs, rhs.aval.shape, padding, window)
  product = _convolve(
    lax.transpose(lhs, (3, 1, 2, 0)),
    lax.transpose(cotangent, (1, 2, 0, 3)),
    window["rhs_dilation"],
    padding,
    window["lhs_dilation"],
    window["window_strides"],
    precision=window["precision"],
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
    return _convolve(
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
  if None not in axes:
    return jax.vmap(functools.partial(lax.conv_general_dilated, **window), axes)(lhs, rhs), 0
  if of_lhs is None:  # many kernels are more features
    kernels = jnp.moveaxis(rhs, of_rhs, -1)
    merged = kernels.reshape(*kernels.shape[:3], -1)
    out = _convolution.bind(lhs, merged, **window)
    return out.reshape(*out.shape[:3], *kernels.shape[3:]), 4
  images = jnp.moveaxis(lhs, of_lhs, 0)  # many batches are more images
  out = _convolution.bind(images.reshape(-1, *images.shape[2:]), rhs, **window)
  return out.reshape(*images.shape[:2], *out.shape[1:]), 0


# It has the name and the parameters of JAX's own, so that what reads a computation finds a convolution.
_convolution = Primitive("conv_general_dilated")
_convolution.def_impl(lax.conv_general_dilated)
_convolution.def_abstract_eval(_shape)
mlir.register_lowering(_convolution, mlir.lower_fun(lax.conv_general_dilated, multiple_results=False))
ad.defbilinear(_convolution, _to_images, _to_kernel)
batching.primitive_batchers[_convolution] = _batched
