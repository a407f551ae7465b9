"""Three ways to compute the group softmax, with equal values and gradients but other time and memory.

Each is `(features [batch, D], kernel, bias, labels, groups, order, sizes, power) -> (loss, logits)`. `groups`
and `order` `[batch, D]` come from `groups_and_order` for these `sizes`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg._labels import is_target_of
from jaxreg._leaves import wide
from jaxreg.losses._softmax import softmax_cross_entropy
from jaxreg.typing import Array

KEPT = 2**24  # the most residuals that `gather` keeps for the backward pass; per call under `vmap`
CHUNK = 2**21  # the most group logits that `gather` holds at a time
UNROLL = 8  # rows that one pass adds
LANES = 16  # partial sums of one sum over the classes, for vector registers
PARTS = 64  # terms that one pass adds to each partial sum


def dense(features, kernel, bias, labels, groups, order, sizes, power) -> tuple[Array, Array]:
  """Computes all groups by one product with masked copies of the features; plain autodiff, forward mode too.

  `G` times the arithmetic of the softmax. Keeps masked features and group logits, `batch * G * (D + C)`.
  """
  member = groups[:, None, :] == _numbers(sizes, groups)[None, :, None]
  masked = jnp.where(member, features[:, None, :], 0)
  logits = _product(masked, kernel) + _shares(sizes, bias)[None]
  labels = jnp.broadcast_to(labels[:, None], logits.shape[:-1])
  return softmax_cross_entropy(power * logits, labels).sum(axis=1) / power, logits.sum(axis=1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def scan(features, kernel, bias, labels, groups, order, sizes, power) -> tuple[Array, Array]:
  """Computes one masked product after another, and recomputes them in the backward pass.

  `G` times the arithmetic of the softmax and a third more. Keeps the groups.
  """
  return _scan_forward(features, kernel, bias, labels, groups, order, sizes, power)[0]


def _scan_forward(features, kernel, bias, labels, groups, order, sizes, power):
  del order

  def one(total, group):
    masked = jnp.where(groups == group[0], features, 0)
    logits = _product(masked, kernel) + group[1][None]
    loss = softmax_cross_entropy(power * logits, labels)
    return (total[0] + loss / power, total[1] + logits), None

  start = _zeros(features, len(features)), _zeros(features, len(features), kernel.shape[1])
  result, _ = jax.lax.scan(one, start, (_numbers(sizes, groups), _shares(sizes, bias)))
  return result, (features, kernel, bias, labels, groups)


def _scan_backward(sizes, power, kept, cotangents):
  features, kernel, bias, labels, groups = kept
  # The logits are for inspection: no gradient flows through them.
  cotangent = cotangents[0][:, None]

  def one(total, group):
    number, share = group
    member = groups == number
    masked = jnp.where(member, features, 0)
    logits = _product(masked, kernel) + share[None]
    residual = cotangent * _residual(power * logits, labels)
    narrow = residual.astype(kernel.dtype)
    d_features = jnp.where(member, _product(narrow, kernel.T), 0)
    d_kernel = _product(masked.T, narrow)
    return (total[0] + d_features, total[1] + d_kernel), residual.sum(axis=0)

  start = _zeros(features, *features.shape), _zeros(features, *kernel.shape)
  (d_features, d_kernel), d_shares = jax.lax.scan(one, start, (_numbers(sizes, groups), _shares(sizes, bias)))
  return _cotangents(kept, d_features, d_kernel, _fractions(sizes, d_shares.dtype) @ d_shares)


scan.defvjp(_scan_forward, _scan_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def gather(features, kernel, bias, labels, groups, order, sizes, power) -> tuple[Array, Array]:
  """Sums the kernel rows of each example's groups; for CPUs, because it uses no matrix product.

  The arithmetic is that of the softmax for any `G`. Keeps `batch * G * C` residuals. If there are more than
  `KEPT`, it recomputes them in the backward pass, which adds a third to the arithmetic.
  """
  return _gather_parts(features, kernel, bias, labels, order, sizes, power, keep=False)[0]


def _gather_parts(features, kernel, bias, labels, order, sizes, power, *, keep):
  """Returns the result, and the residuals if `keep` is true."""

  def chunk(part):
    x, y, o = part
    logits = _gathered_logits(x, kernel, bias, o, sizes)
    labels = jnp.broadcast_to(y[:, None], logits.shape[:-1])
    loss = softmax_cross_entropy(power * logits, labels)
    result = loss.sum(axis=1) / power, logits.sum(axis=1)
    return result, _residual(power * logits, labels) if keep else ()

  parts = _chunks(kernel, sizes, wide(features), labels, order)
  (loss, logits), residuals = jax.lax.map(chunk, parts)

  def join(x):
    return x.reshape(-1, *x.shape[2:])[: len(features)]

  return (join(loss), join(logits)), residuals


def _gather_forward(features, kernel, bias, labels, groups, order, sizes, power):
  keep = len(features) * len(sizes) * kernel.shape[1] <= KEPT
  result, residuals = _gather_parts(features, kernel, bias, labels, order, sizes, power, keep=keep)
  return result, (features, kernel, bias, labels, groups, None if keep else order, residuals)


def _gather_backward(sizes, power, kept, cotangents):
  features, kernel, bias, labels, groups, order, residuals = kept
  x = wide(features)

  def chunk(total, part):
    x, y, g, cotangent, residual = part
    if order is not None:
      logits = _gathered_logits(x, kernel, bias, residual, sizes)
      residual = _residual(power * logits, jnp.broadcast_to(y[:, None], logits.shape[:-1]))
    residual = cotangent[:, None, None] * residual
    d_features = _gathered_products(residual, kernel, g)
    return (_add_outer(total[0], x, residual, g), total[1] + residual.sum(axis=0)), d_features

  start = _zeros(features, *kernel.shape), _zeros(features, len(sizes), kernel.shape[1])
  parts = _chunks(kernel, sizes, x, labels, groups, cotangents[0])
  parts += (residuals,) if order is None else _chunks(kernel, sizes, order)
  (d_kernel, d_shares), d_features = jax.lax.scan(chunk, start, parts)
  d_features = d_features.reshape(-1, features.shape[1])[: len(features)]
  return _cotangents(kept, d_features, d_kernel, _fractions(sizes, d_shares.dtype) @ d_shares)


gather.defvjp(_gather_forward, _gather_backward)


def _gathered_logits(x: Array, kernel: Array, bias: Array, order: Array, sizes: tuple[int, ...]) -> Array:
  """Computes the group logits `[chunk, G, C]`: adds the m-th member of every group, for each m."""
  longest = -(-max(sizes) // UNROLL) * UNROLL
  member = np.arange(longest)[None, :] < np.asarray(sizes)[:, None]
  position = np.where(member, np.cumsum(sizes)[:, None] - np.asarray(sizes)[:, None] + np.arange(longest), 0)
  order = order[:, position]  # [chunk, G, longest]
  values = jnp.take_along_axis(x, order.reshape(len(x), -1), axis=1).reshape(order.shape)
  values = jnp.where(member[None], values, 0)
  kernel = wide(kernel)

  def members(number, logits):
    def at(array, k):
      return jax.lax.dynamic_index_in_dim(array, number * UNROLL + k, axis=2, keepdims=False)

    terms = (at(values, k)[..., None] * _rows(kernel, at(order, k)) for k in range(UNROLL))
    return logits + sum(terms)

  start = _zeros(x, len(x), len(sizes), kernel.shape[1])
  return jax.lax.fori_loop(0, longest // UNROLL, members, start) + _shares(sizes, bias)[None]


def _gathered_products(residual: Array, kernel: Array, groups: Array) -> Array:
  """Multiplies the kernel's rows by the residuals of their groups: `[chunk, D]`, summed over the classes.

  XLA vectorises the `LANES` partial sums of each, but not one sum over the classes. `UNROLL` examples share a
  row of the kernel.
  """
  chunk, num_groups, num_classes = residual.shape
  vectors = -(-num_classes // LANES)
  blocks = -(-vectors // PARTS)
  width = -(-vectors // blocks) * LANES
  pad = blocks * width - num_classes
  residual = jnp.pad(residual, ((0, 0), (0, 0), (0, pad)))
  residual = residual.reshape(-1, UNROLL * num_groups, blocks, width).transpose(0, 2, 1, 3)
  kernel = jnp.pad(wide(kernel), ((0, 0), (0, pad))).reshape(-1, 1, blocks, width).transpose(2, 0, 1, 3)
  first = num_groups * jnp.arange(UNROLL, dtype=jnp.int32)[None, None]
  groups = groups.astype(jnp.int32).reshape(-1, UNROLL, groups.shape[1]).transpose(0, 2, 1) + first
  ones = jnp.ones(LANES, kernel.dtype)

  def examples(of):
    residual, groups = of

    def block(total, of):
      kernel, residual = of
      parts = (slice(at, at + LANES) for at in range(0, width, LANES))
      return total + sum(kernel[..., part] * _rows(residual[:, part], groups) for part in parts), None

    sums, _ = jax.lax.scan(block, jnp.zeros((*groups.shape, LANES), kernel.dtype), (kernel, residual))
    return (sums @ ones).T

  return jax.lax.map(examples, (residual, groups)).reshape(chunk, -1)


def _add_outer(d_kernel: Array, x: Array, residual: Array, groups: Array) -> Array:
  """Adds to `d_kernel` `[D, C]` each example's features times the residuals of their groups."""

  def examples(number, total):
    def at(array, k):
      return jax.lax.dynamic_index_in_dim(array, number * UNROLL + k, keepdims=False)

    return total + sum(at(x, k)[:, None] * _rows(at(residual, k), at(groups, k)) for k in range(UNROLL))

  return jax.lax.fori_loop(0, len(x) // UNROLL, examples, d_kernel)


def _chunks(kernel: Array, sizes: tuple[int, ...], *arrays: Array) -> Any:
  """Splits the examples into parts of equal size; zeros pad the last part."""
  batch = max(len(arrays[0]), 1)
  most = max(CHUNK // (len(sizes) * kernel.shape[1]) // UNROLL, 1) * UNROLL
  number = -(-batch // most)
  size = -(-batch // (number * UNROLL)) * UNROLL

  def pad(x):
    return jnp.pad(x, [(0, number * size - len(x))] + [(0, 0)] * (x.ndim - 1))

  return tuple(pad(x).reshape(number, size, *x.shape[1:]) for x in arrays)


def _rows(table: Array, rows: Array) -> Array:
  return table.at[rows.astype(jnp.int32)].get(mode="promise_in_bounds")


def _residual(logits: Array, labels: Array) -> Array:
  """Computes softmax minus one-hot; the target's entry is minus the sum of the others, to keep its digits
  near zero.

  The softmax is recomputed from the logits: a log-sum-exp kept from the forward pass has too few digits for
  large logits. A label out of range gives NaN, as it does by autodiff.
  """
  is_target = is_target_of(labels, logits)
  others = jnp.where(is_target, 0, jax.nn.softmax(logits))
  residual = jnp.where(is_target, -others.sum(axis=-1, keepdims=True), others)
  return jnp.where(is_target.any(axis=-1, keepdims=True), residual, jnp.nan)


def _cotangents(kept: Any, d_features: Array, d_kernel: Array, d_bias: Array) -> tuple[Any, ...]:
  features, kernel, bias, *_ = kept
  return (
    d_features.astype(features.dtype),
    d_kernel.astype(kernel.dtype),
    d_bias.astype(bias.dtype),
    None,
    None,
    None,
  )


def _numbers(sizes: tuple[int, ...], groups: Array) -> Array:
  return jnp.arange(len(sizes), dtype=groups.dtype)


def _fractions(sizes: tuple[int, ...], dtype: Any) -> Array:
  return jnp.asarray(np.asarray(sizes) / sum(sizes), dtype)


def _shares(sizes: tuple[int, ...], bias: Array) -> Array:
  """Computes each group's part of the bias, `[G, C]`, in proportion to its number of features."""
  bias = wide(bias)
  # A class excluded by -inf is excluded in every group, even in a group without features.
  excluded = jnp.isneginf(bias)
  shares = _fractions(sizes, bias.dtype)[:, None] * jnp.where(excluded, 0, bias)[None, :]
  return jnp.where(excluded[None, :], -jnp.inf, shares)


def _product(x: Array, y: Array) -> Array:
  return jnp.matmul(x, y, preferred_element_type=jnp.promote_types(x.dtype, jnp.float32))


def _zeros(like: Array, *shape: int) -> Array:
  return jnp.zeros_like(like, jnp.promote_types(like.dtype, jnp.float32), shape)
