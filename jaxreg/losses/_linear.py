"""Losses of features and a kernel, without the logits of all examples at once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._by_chunks import by_chunks
from jaxreg._checks import (
  check_array,
  check_count,
  check_floating,
  check_function,
  check_key,
  check_labels,
  check_wide,
)
from jaxreg._errors import ArgumentError
from jaxreg._sharding import partitioned
from jaxreg._where import check_where, zero_elsewhere
from jaxreg.typing import Array, Key


def linear(
  loss: Callable[..., Array],
  features: ArrayLike | tuple[ArrayLike, ...],
  kernel: ArrayLike | tuple[ArrayLike, ...],
  *labels: ArrayLike,
  bias: ArrayLike | tuple[ArrayLike, ...] | None = None,
  where: ArrayLike | None = None,
  key: Key | None = None,
  chunk_size: int = 256,
  class_axis: str | None = None,
) -> Array:
  r"""Computes a loss of the last layer's logits, for a chunk of examples at a time.

  .. math:: \ell_i = \mathrm{loss}(h_i W + b, y_i)

  Only the logits of `chunk_size` examples are in memory at once: the backward pass recomputes each chunk.
  Derivatives of any order equal the derivatives of the loss of all logits. Products and sums are in float32
  or wider, even for bfloat16 features and kernels. Chunk `c` of `k` has the examples `c, c + k, c + 2k, ...`,
  so that examples that are split over devices are split in every chunk; the rest make a last, smaller chunk.

  Args:
    loss: `([key,] logits, *labels) -> [examples]`, any loss of this module or your own that treats each
      example alone; `functools.partial` sets its options. An option that differs between examples is one of
      `labels`: `lambda z, y, s: label_smoothing(z, y, smoothing=s)`.
    features: `h`, `[..., features]`, floating; or a tuple, one for each kernel.
    kernel: `W`, `[features, classes]`; a tuple gives the loss one array of logits per kernel: three for
      `dropmax`, or the student's and the teacher's for `distillation`.
    *labels: the arguments of the loss after the logits, each `[...]` or `[..., classes]`; none for a term
      such as `z_loss`.
    bias: `b`, `[classes]`; a tuple if `kernel` is one.
    where: `[...]`, bool: which examples count.
    key: for a random loss; each chunk uses its own key.
    chunk_size: number of examples at once. Smaller needs less memory, larger fewer passes over the kernel.
    class_axis: inside `shard_map`, the axis over which the classes of `kernel` and `bias` are split; features
      and labels are whole. Outside of `shard_map` JAX knows the axis from the arrays.

  Returns:
    `[...]`, float32 or wider.

  Example:
    >>> from jaxreg.losses import softmax_cross_entropy
    >>> features, kernel = jnp.ones((4, 8)), jnp.zeros((8, 2))
    >>> linear(softmax_cross_entropy, features, kernel, jnp.zeros(4, int), chunk_size=2)
    Array([0.6931472, 0.6931472, 0.6931472, 0.6931472], dtype=float32)

  References:
    Chen et al., `Training Deep Nets with Sublinear Memory Cost`, 2016, section 3, on recomputation.
  """
  check_count(chunk_size, "chunk_size")
  kernels = tuple(_kernel(w) for w in (kernel if isinstance(kernel, tuple) else (kernel,)))
  inputs: tuple[ArrayLike, ...] = features if isinstance(features, tuple) else (features,)
  if not kernels:
    raise ValueError("kernel must be an array or a tuple of at least one, got ()")
  if len(inputs) not in (1, len(kernels)):
    raise ValueError(f"features must be 1 or as many as the {len(kernels)} kernels, got {len(inputs)}")
  rows: tuple[Array, ...] = tuple(check_floating(x, "features") for x in inputs)
  lead = rows[0].shape[:-1]
  for x, w in zip(rows * (len(kernels) // len(rows)), kernels, strict=True):
    if x.ndim < 2 or x.shape != (*lead, w.shape[0]):
      expected = ", ".join(map(str, (*lead, w.shape[0]))) if lead else f"..., {w.shape[0]}"
      hint = (
        "; an embedding is [classes, features], so give its transpose" if x.shape[-1] == w.shape[1] else ""
      )
      raise ValueError(f"features must have shape ({expected}) for kernel {w.shape}, got {x.shape}{hint}")
  biases = None
  if bias is not None:
    raw_biases = bias if isinstance(bias, tuple) else (bias,)
    if len(raw_biases) != len(kernels):
      raise ValueError(
        f"bias must have one array for each of the {len(kernels)} kernels, got {len(raw_biases)}"
      )
    biases = tuple(check_wide(b, "bias", shape=w.shape[1:]) for b, w in zip(raw_biases, kernels, strict=True))
  if key is not None:
    check_key(key)
  takes = ["key"] * (key is not None) + ["logits"] * len(kernels) + ["labels"] * len(labels)
  or_key = "" if key is not None else ", or get a key if it is random, by key="
  or_none = ", and no labels if it is of the logits alone" if labels else ""
  form = f"({', '.join(takes)}) -> [examples]{or_key}{or_none}"
  check_function(loss, "loss", form, takes=len(takes))
  loss = loss if where is None or _takes_where(loss) else _masked(loss)
  classes = kernels[0].shape[1]
  if where is not None:
    where = jnp.asarray(check_where(where, lead))
    labels = tuple(_counting(y, where) for y in labels)
  taken = tuple(_labels(y, rows[0], classes, class_axis) for y in labels)

  def whole(rows, kernels, biases, taken, where, key):
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(lead) :]), (rows, taken, where))

    def chunk_loss(number, part, weights):
      own = () if key is None else (jax.random.fold_in(key, number),)
      return _chunk_loss(loss, own, part, weights, class_axis)

    return by_chunks(chunk_loss, flat, (kernels, biases), chunk_size).reshape(lead)

  return partitioned(whole, rows, kernels, biases, taken, where, key, kept=slice(-1))


def _each(values: Array, size: int) -> Array:
  """Returns the losses if there is one for each example."""
  if jnp.shape(values) != (size,):
    raise ArgumentError("loss", f"must return [examples], here [{size}], got shape {jnp.shape(values)}")
  return values


def _takes_where(loss: Callable[..., Array]) -> bool:
  try:
    return "where" in inspect.signature(loss).parameters
  except ValueError:  # some built-in functions have no signature
    return False


def _masked(loss: Callable[..., Array]) -> Callable[..., Array]:
  return lambda *args, where: zero_elsewhere(where, _each(loss(*args), where.size))


def _kernel(kernel: ArrayLike) -> Array:
  kernel = check_wide(kernel, "kernel")
  if kernel.ndim != 2:
    raise ValueError(f"kernel must be [features, classes], got {kernel.shape}")
  return kernel


def _counting(labels: ArrayLike, where: Array) -> ArrayLike:
  """Returns harmless labels for examples that do not count, whose labels may be anything, even NaN."""
  array = check_array(labels, "labels")
  if array.shape[: where.ndim] != where.shape:
    return array  # refused below
  # A loss of one's own may divide by a float, such as a temperature, or take its logarithm.
  return zero_elsewhere(where, array, 0.5 if jnp.issubdtype(array.dtype, jnp.floating) else 0)


def _labels(labels: ArrayLike, features: Array, classes: int, class_axis: str | None) -> Array:
  """Returns labels as an array; integer labels are checked here, where their values may be known."""
  array = check_array(labels, "labels")
  if jnp.issubdtype(array.dtype, jnp.integer):
    classes *= 1 if class_axis is None else jax.lax.axis_size(class_axis)
    return check_labels(labels, features, "features", num_classes=classes)
  if array.shape[: features.ndim - 1] != features.shape[:-1]:
    raise ValueError(
      f"labels must have the leading axes {features.shape[:-1]} of features, got {array.shape}"
    )
  return array


def _chunk_loss(loss, key, part, weights, class_axis):
  (rows, labels, where), (kernels, biases) = part, weights
  size = rows[0].shape[0]
  devices = 1 if class_axis is None else jax.lax.axis_size(class_axis)
  if where is not None:
    # A NaN in the features of an example that does not count would reach the kernel's gradient.
    rows = jax.tree.map(functools.partial(zero_elsewhere, where), rows)
  padded = -size % devices

  def pad(x):
    return jnp.pad(x, ((0, padded), *[(0, 0)] * (x.ndim - 1))) if padded else x

  rows, labels, where = jax.tree.map(pad, (rows, labels, where))
  rows = rows * (len(kernels) // len(rows))
  logits = [x.astype(w.dtype) @ w for x, w in zip(rows, kernels, strict=True)]
  if biases is not None:
    logits = [z + b[None] for z, b in zip(logits, biases, strict=True)]
  options = {} if where is None else {"where": where}
  if class_axis is None:
    return _each(loss(*key, *logits, *labels, **options), size)
  # Exchanges a part of the classes of all examples for all classes of a part of the examples.
  index = jax.lax.axis_index(class_axis)
  logits = [jax.lax.all_to_all(z, class_axis, 0, 1, tiled=True) for z in logits]
  share = (size + padded) // devices

  def own(x):
    return jax.lax.dynamic_slice_in_dim(x, index * share, share)

  key = tuple(jax.random.fold_in(k, index) for k in key)
  values = _each(loss(*key, *logits, *jax.tree.map(own, labels), **jax.tree.map(own, options)), share)
  # A sum, not a gather: JAX then knows that the values are the same on all devices.
  slots = jnp.where(jnp.arange(devices)[:, None] == index, values[None], 0)
  return jax.lax.psum(slots, class_axis).reshape(-1)[:size]
