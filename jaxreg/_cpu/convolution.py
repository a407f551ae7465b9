"""A convolution that is fast on every CPU, with its derivatives."""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxreg._errors import ArgumentError
from jaxreg._onednn import uses_onednn
from jaxreg._sharding import varying_like
from jaxreg.models._canonical_convolution import NUMBERS, canonical_convolution
from jaxreg.typing import Array


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

  A layer takes it in place of JAX's function. On an accelerator it is JAX's function. On a CPU:

  - XLA recomputes cheap operations for everything that reads them. The gradient of a kernel would so
    compute all residual blocks before it again. XLA computes a division once, so the input is divided by a
    one that XLA cannot see through.
  - XLA gives float32 convolutions over two axes to YNNPACK. On most CPUs with AVX2, that takes longer for
    the gradient of a kernel than Eigen, and one thread for everything in JAX 0.10. YNNPACK takes no
    dilated input. So a factor of 2 is put into both dilations, the stride and the padding of the first axis:
    the sums stay the same, and Eigen computes them.
  - On the same CPUs, the gradient of the images of a strided or unpadded convolution leaves out zeros.
  - If `XLA_FLAGS` asks for oneDNN, which JAX 0.12 has, only the gradient of a kernel has a form of its own.
  - XLA has fast programs for one order of axes, and the derivatives of JAX's function have others. XLA mends
    that outside loops only: in `scan`, `map` and `while_loop` gradients take 20 times as long. Here they are
    convolutions with the axes in that order.

  The value and both derivatives are convolutions. So derivatives of every order, `vmap` and sharded batches
  work, and each of the three has the form that is fastest for it.

  Args:
    lhs: images, `[batch, height, width, channels]` or as `dimension_numbers` says, floating.
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
  if not isinstance(padding, str):
    for low, high in padding:
      if min(low, high) < 0 < max(low, high):
        raise ArgumentError(
          "padding",
          f"must not add at one end of an axis and cut at the other, got {(low, high)}; cut with a slice",
        )
  convolve = functools.partial(lax.conv_general_dilated, dimension_numbers=dimension_numbers, **options)
  plain = functools.partial(
    convolve,
    window_strides=window_strides,
    padding=padding,
    lhs_dilation=lhs_dilation,
    rhs_dilation=rhs_dilation,
  )
  if jax.default_backend() != "cpu":
    return plain(lhs, rhs)
  out = jax.eval_shape(plain, lhs, rhs)  # raises for wrong arguments
  first = lax.stop_gradient(rhs)[(0,) * rhs.ndim]
  lhs = lhs / jnp.exp(jnp.fmin(jnp.abs(first), 0)).astype(lhs.dtype)
  grouped = any(options.get(name, 1) != 1 for name in ("feature_group_count", "batch_group_count"))
  special = grouped or options.get("out_sharding") is not None
  float32, float64 = (lhs.dtype == rhs.dtype == out.dtype == dtype for dtype in (jnp.float32, jnp.float64))
  # Elsewhere float32 in this order would be YNNPACK's, which was measured on CPUs with AVX2 alone.
  symbolic = not all(isinstance(size, int) for size in (*lhs.shape, *rhs.shape))  # in `jax.export`
  if lhs.ndim != 4 or special or symbolic or not (float64 or (float32 and _has_avx2())):
    return plain(lhs, rhs)
  lhs, rhs = varying_like(lhs, rhs), varying_like(rhs, lhs)

  axes = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)

  def ordered(spec, canonical):
    return [spec[canonical.index(axis)] for axis in range(4)]

  lhs = lax.transpose(lhs, ordered(axes.lhs_spec, NUMBERS.lhs_spec))
  rhs = lax.transpose(rhs, ordered(axes.rhs_spec, NUMBERS.rhs_spec))
  to_out = ordered(axes.out_spec, NUMBERS.out_spec)
  batch, *images, channels = lhs.shape
  kernel, features = rhs.shape[:2], rhs.shape[-1]
  results = [out.shape[axis] for axis in to_out[1:3]]
  strides = tuple(window_strides)
  of_lhs, of_rhs = tuple(lhs_dilation or (1, 1)), tuple(rhs_dilation or (1, 1))
  if isinstance(padding, str):
    window = [(size - 1) * factor + 1 for size, factor in zip(kernel, of_rhs)]
    padding = lax.padtype_to_pads(images, window, strides, padding)
  (low, high), *rest = padding

  def twice(values):
    return (2 * values[0], values[1])

  convolve = functools.partial(canonical_convolution, precision=options.get("precision"))
  plain = functools.partial(
    convolve, window_strides=strides, padding=padding, lhs_dilation=of_lhs, rhs_dilation=of_rhs
  )
  to_out = [to_out.index(axis) for axis in range(4)]
  if float64 or uses_onednn():
    return lax.transpose(plain(lhs, rhs), to_out)  # never YNNPACK's
  dilated = functools.partial(
    convolve,
    window_strides=twice(strides),
    padding=[(2 * low, 2 * high), *rest],
    lhs_dilation=twice(of_lhs),
    rhs_dilation=twice(of_rhs),
  )

  # The dilated form is for what XLA would give to YNNPACK, except with few input channels, where YNNPACK is
  # faster. For everything else the plain form is faster, whichever library computes it.
  wide = max(features, channels) > 16 and channels >= 8

  def no_larger(new, old):
    return all(a <= b for a, b in zip(new, old))

  of_values = dilated if wide and of_lhs == (1, 1) and no_larger(results, images) else plain
  image_gradient = dilated if wide and strides == (1, 1) and no_larger(images, results) else plain
  mostly_zeros = of_lhs == of_rhs == (1, 1) and math.prod(images) > 1.5 * math.prod(results)
  if mostly_zeros and 0 < kernel[1] * results[1] <= 4 * images[1]:
    # The plain gradient convolves images that are more than a third zeros, from dilation or padding. Here
    # the columns of the window are channels, so zeros come only between and around rows, and the columns are
    # sums of shifted images. That takes up to four times the memory of the images.
    def image_gradient(lhs: Array, rhs: Array) -> Array:
      margins = [(0, 0, 0), (0, 0, 0), (*padding[1], 0), (0, 0, 0)]

      def cut(x, axes, stop, step):
        return lax.concatenate(
          [lax.slice_in_dim(x, i, i + stop, step, axes[0]) for i in range(kernel[1])], axes[1]
        )

      lhs = lax.pad(lhs, jnp.zeros((), lhs.dtype), margins)
      lhs = cut(lhs, (2, 3), (results[1] - 1) * strides[1] + 1, strides[1])
      return convolve(lhs, cut(rhs, (1, 2), 1, 1), (strides[0], 1), [padding[0], (0, 0)])

  # In the gradient of a kernel the images of the batch are the channels.
  kernel_gradient = dilated if max(batch, features) > 16 and batch >= 8 else plain
  if max(channels, features) <= 16 < batch <= 256 and batch % 16 == 0 and jax.device_count() == 1:
    # 16 images are also too few for YNNPACK. On several devices, the slices would move images between them.
    def kernel_gradient(lhs: Array, rhs: Array) -> Array:
      parts = jnp.split(lhs, batch // 16)
      return lax.concatenate([plain(part, rhs) for part in parts], 0)

  differentiable = jax.custom_jvp(of_values)

  @functools.partial(differentiable.defjvp, symbolic_zeros=True)
  def _(primals: Any, tangents: Any) -> Any:
    (lhs, rhs), (lhs_dot, rhs_dot) = primals, tangents
    # The transpose of each form is what a backward pass computes.
    terms = [] if isinstance(lhs_dot, SymbolicZero) else [image_gradient(lhs_dot, rhs)]
    terms += [] if isinstance(rhs_dot, SymbolicZero) else [kernel_gradient(lhs, rhs_dot)]
    return differentiable(lhs, rhs), sum(terms[1:], terms[0])

  return lax.transpose(differentiable(lhs, rhs), to_out)


@functools.cache
def _has_avx2() -> bool:
  """Tells whether the CPU has AVX2 (AVX-512 includes it); False without `/proc/cpuinfo`."""
  path = Path("/proc/cpuinfo")
  return path.exists() and "avx2" in path.read_text().split()
