"""Samples of the noise of a gradient whose parts have independent noise."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from jaxreg.flatness._chunked import num_examples
from jaxreg.flatness._common import analysis, scalar_loss, widened
from jaxreg.flatness._subset import Where, selected, split
from jaxreg.typing import Array, Batch, Key, LossFn, Params, check_count, check_key, check_loss_fn


@analysis
def sample_noise_by_parts(
  loss_fn: LossFn, params: Params, parts: Sequence[Batch], *, key: Key, num: int, where: Where = "*"
) -> Array:
  r"""Samples the noise of the mean gradient of `m` parts of the data, each with noise of its own.

  .. math:: s_{jk} = \sqrt{\frac{K}{m (K - 1)}} \Big(g_{jk} - \frac1K \sum_l g_{jl}\Big), \qquad
    j = 1 \dots m, \quad k = 1 \dots K

  The gradient is :math:`\frac1m \sum_j g_j`, and its covariance a sum over the parts. So the mean of
  :math:`s s^\top` over all `m K` samples is an unbiased estimate of it, from `K` passes over the data: about
  as good as from `m (K - 1)` samples of the whole gradient, which take `m (K - 1)` passes. Parts may be the
  parts of an accumulated batch: BatchNorm then has moments of each part.

  The loop is on the host: on a CPU, XLA computes the gradient of a convolution in a compiled loop many times
  slower.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`, a mean over the examples, which draws noise from the key.
    params: any pytree.
    parts: batches with equal numbers of examples.
    key: a typed key; draw `k` of part `j` gets `fold_in(fold_in(key, k), j)`.
    num: `K`, draws for each part, at least 2.
    where: the parameters to keep the gradients of.

  Returns:
    `[num * parts, size]`, ordered by draws: `m` consecutive rows have one sample of each part.

  Raises:
    TypeError: if `key` is no typed key, `num` no integer or a selected leaf not floating.
    ValueError: if there are no parts or unequal ones, `where` selects nothing or `num` is below 2.

  Example:
    >>> loss = lambda params, batch, *, key: params @ (batch.mean() + jax.random.normal(key, (2,)))
    >>> parts = [jnp.zeros(3), jnp.ones(3), jnp.ones(3)]
    >>> sample_noise_by_parts(loss, jnp.ones(2), parts, key=jax.random.key(0), num=4).shape
    (12, 2)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, section 3.4.2, which samples whole
    gradients.
  """
  check_key(key)
  check_count(num, "num")
  if num < 2:
    raise ValueError(f"num must be at least 2, got {num}")
  sizes = [num_examples(part) for part in parts]
  if len(set(sizes)) != 1:
    raise ValueError(f"parts must be batches with equal numbers of examples, got {sizes}")
  return pooled(gradients_of_parts(loss_fn, params, parts, key, 0, num, where))


def gradients_of_parts(
  loss_fn: LossFn, params: Params, parts: Sequence[Batch], key: Key, first: int, num: int, where: Where
) -> Array:
  """The draws `first` to `first + num` of the gradient of each part, `[num, parts, size]`."""
  check_loss_fn(loss_fn)
  mask, params = selected(params, where), widened(params)
  draw = functools.partial(_gradient, loss_fn, mask, params)
  key_of = lambda number, part: jax.random.fold_in(jax.random.fold_in(jax.random.clone(key), number), part)
  rows = []
  for number in range(first, first + num):
    for j, part in enumerate(parts):
      rows.append(jax.block_until_ready(draw(widened(part), key_of(number, j))))
  return jnp.stack(rows).reshape(num, len(parts), -1)


@partial(jax.jit, static_argnums=(0, 1))
def _gradient(loss_fn, mask, params, batch, key):
  part = split(params, mask)
  return jax.grad(lambda flat: scalar_loss(loss_fn, part.merge(flat), batch, key))(part.flat)


def pooled(gradients: Array) -> Array:
  """The noise in draws of the gradients of parts, `[num, parts, size] -> [num * parts, size]`."""
  num, parts, size = gradients.shape
  scale = math.sqrt(num / (parts * (num - 1)))
  return (scale * (gradients - gradients.mean(axis=0, keepdims=True))).reshape(num * parts, size)
