"""Samples of training noise: gradients at one point, or parts of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from jaxreg._analyses import (
  example_count,
  full_precision,
  mean_and_count,
  num_examples,
  times_count,
  widened,
)
from jaxreg._checks import check_count, check_key, check_loss_fn
from jaxreg._sharding import partitioned
from jaxreg._sums import Compensated, add, compensated, gram, total
from jaxreg.flatness._subset import flat_loss, selected, split
from jaxreg.typing import Array, Batch, Key, LossFn, Mask, Params

# The sum over chunks of a matrix, and of counts.
Running = tuple[Compensated, Compensated]


@full_precision
def sample_gradients(
  loss_fn: LossFn,
  params: Params,
  batch: Batch,
  *,
  key: Key,
  num_samples: int,
  first: int = 0,
  mask: Mask = "*",
  chunk_size: int = 1,
) -> Array:
  r"""Samples gradients at fixed parameters under independent noise: the paper's random gradient data.

  .. math:: g_j = \nabla_\theta L(\theta, \eta_j), \qquad j = 1 \dots N

  Args:
    loss_fn, params, batch, mask: as in `hvp`; the loss draws its noise from its key.
    key: sample `j` gets `fold_in(key, j)`, so a larger number starts with the same samples.
    num_samples: `N`.
    first: number of the first sample, to split a long series.
    chunk_size: how many samples to compute at a time; 1 is fastest on a CPU.

  Returns:
    `[num_samples, size]`.

  Example:
    >>> loss = lambda params, batch, *, key: params @ (batch + jax.random.normal(key, (2,)))
    >>> sample_gradients(loss, jnp.ones(2), jnp.zeros(2), key=jax.random.key(0), num_samples=5).shape
    (5, 2)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, section 3.4.2.
  """
  check_key(key)
  check_loss_fn(loss_fn)
  check_count(num_samples, "num_samples")
  taken, params, batch = selected(params, mask), widened(params), widened(batch)
  return _gradients(loss_fn, taken, num_samples, chunk_size, params, batch, key, first)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _gradients(loss_fn, mask, num_samples, chunk_size, params, batch, key, first):
  def sample(number: Array) -> Array:
    flat, loss = flat_loss(loss_fn, params, mask, batch, jax.random.fold_in(key, first + number))
    return jax.grad(loss)(flat)

  return jax.lax.map(sample, jnp.arange(num_samples), batch_size=chunk_size)


@full_precision
def sample_noise_by_parts(
  loss_fn: LossFn, params: Params, parts: Sequence[Batch], *, key: Key, num_samples: int, mask: Mask = "*"
) -> Array:
  r"""Samples the noise of the mean gradient of `m` parts of the data with independent noise.

  .. math:: s_{jk} = \frac{n_j}{n} \sqrt{\frac{m K}{K - 1}} \Big(g_{jk} - \frac1K \sum_l g_{jl}\Big), \qquad
    j = 1 \dots m, \quad k = 1 \dots K

  The mean of :math:`s s^\top` over all `m K` samples is an unbiased estimate of the covariance of the
  gradient :math:`\frac1n \sum_j n_j g_j`. It takes `K` passes over the data, and is about as accurate as from
  `m (K - 1)` samples of the whole gradient, which take `m (K - 1)` passes. Parts may be the microbatches of
  an accumulated batch, each with its own moments of BatchNorm. The loop is on the host, where the
  convolutions of a CPU are many times faster.

  Args:
    loss_fn, params, mask: as in `hvp`; the loss is a mean over examples and draws noise from its key. It may
      return `(mean, count)`, as for `Curvature`; `n_j` is the count, else the number of examples.
    parts: batches, of one size or several.
    key: draw `k` of part `j` gets `fold_in(fold_in(key, k), j)`.
    num_samples: `K`, how many draws per part, at least 2.

  Returns:
    `[num_samples * parts, size]`, ordered by draws: `m` consecutive rows are one sample of each part.

  Example:
    >>> loss = lambda params, batch, *, key: params @ (batch.mean() + jax.random.normal(key, (2,)))
    >>> parts = [jnp.zeros(3), jnp.ones(3), jnp.ones(3)]
    >>> sample_noise_by_parts(loss, jnp.ones(2), parts, key=jax.random.key(0), num_samples=4).shape
    (12, 2)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, section 3.4.2, for whole gradients.
  """
  check_key(key)
  check_count(num_samples, "num_samples", least=2)
  check_loss_fn(loss_fn)
  if not len(parts):
    raise ValueError("parts must be at least one batch, got none")
  taken, params = selected(params, mask), widened(params)
  rows, counts = [], []
  for number in range(num_samples):
    for j, part in enumerate(parts):
      part_key = jax.random.fold_in(jax.random.fold_in(jax.random.clone(key), number), j)
      gradient, count = _summed_gradient(loss_fn, taken, params, widened(part), part_key)
      rows.append(jax.block_until_ready(gradient))
      counts.append(count)
  # `[num_samples, parts, size]`, times the counts `n_j`
  gradients = jnp.stack(rows).reshape(num_samples, len(parts), -1)
  scale = jnp.sqrt(len(parts) * num_samples / (num_samples - 1)) / jnp.stack(counts[: len(parts)]).sum()
  noise = scale.astype(gradients.dtype) * (gradients - gradients.mean(axis=0, keepdims=True))
  return noise.reshape(-1, gradients.shape[-1])


@partial(jax.jit, static_argnums=(0, 1))
def _summed_gradient(loss_fn, mask, params, batch, key):
  """Computes the gradient times the count, and the count."""
  part = split(params, mask)

  def loss_at(flat: Array) -> tuple[Array, Array]:
    loss, count = mean_and_count(loss_fn, part.merge(flat), batch, key)
    return loss, example_count(count, batch, flat.dtype)

  gradient, count = jax.grad(loss_at, has_aux=True)(part.flat)
  return times_count(gradient, count), count


@full_precision
def per_example_noise_covariance(
  loss_fn: LossFn,
  params: Params,
  batch: Batch,
  *,
  key: Key,
  num_samples: int = 2,
  mask: Mask = "*",
  chunk_size: int = 64,
) -> Array:
  r"""Estimates the covariance of the full-batch gradient under noise that is independent between examples.

  .. math:: \Sigma_g = \frac{\sum_i n_i^2 \, \mathrm{Cov}_\eta(\nabla_\theta \ell_i)}{(\sum_i n_i)^2}

  A few draws give an unbiased estimate of each example's covariance, and the sum averages over the data set.
  The number of draws does not limit the rank. For noise that examples share, or layers that couple them, use
  `sample_noise_by_parts`.

  Args:
    loss_fn, params, mask: as in `hvp`; the loss is called with batches of one example. It may return
      `(mean, count)`, as for `Curvature`; `n_i` is the count, else 1.
    batch: `n` examples along the leading axis of its leaves.
    key: draws the noise.
    num_samples: how many draws per example, at least 2.
    chunk_size: how many examples to process at a time; memory holds `[chunk_size, num_samples, size]`.

  Returns:
    `[size, size]`, float32 or wider.

  Example:
    >>> sign = lambda key: jax.random.rademacher(key, (1,), float)
    >>> loss = lambda params, batch, *, key: (params * sign(key)).sum() + batch.sum()
    >>> noise = per_example_noise_covariance(
    ...   loss, jnp.ones(1), jnp.zeros(4000), key=jax.random.key(0), chunk_size=1000
    ... )
    >>> (4000 * noise).round(1)  # of one sign
    Array([[1.]], dtype=float32)
  """
  check_key(key)
  check_count(num_samples, "num_samples", least=2)
  check_count(chunk_size, "chunk_size")
  num_examples(batch)
  taken, params, batch = selected(params, mask), widened(params), widened(batch)
  compute = partial(_covariance, loss_fn, taken, num_samples, chunk_size)
  return partitioned(compute, params, batch, key, kept=slice(0))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _covariance(loss_fn, mask, num_samples, chunk_size, params, batch, key):
  flat = split(params, mask).flat
  examples = num_examples(batch)
  chunk_size = min(chunk_size, examples)
  chunks = -(-examples // chunk_size)
  # Examples of weight 0 pad the last chunk.
  index = jnp.arange(chunks * chunk_size).reshape(chunks, chunk_size)

  def centred(number: Array) -> tuple[Array, Array]:
    def take(x: Array) -> Array:
      return x[jnp.minimum(number, examples - 1)][None]

    keys = jax.random.split(jax.random.fold_in(key, number), num_samples)
    gradient = partial(_summed_gradient, loss_fn, mask, params, jax.tree.map(take, batch))
    gradients, counts = jax.vmap(gradient)(keys)
    inside = number < examples
    deviations = gradients - gradients.mean(axis=0, keepdims=True)
    return jnp.where(inside, deviations, 0), jnp.where(inside, counts[0], 0)

  def add_chunk(running: Running, numbers: Array) -> tuple[Running, None]:
    matrix, count = running
    deviations, counts = jax.vmap(centred)(numbers)
    return (add(matrix, gram(deviations.reshape(-1, flat.size))), add(count, counts.sum())), None

  start = compensated(jnp.zeros((flat.size,) * 2, flat.dtype)), compensated(jnp.zeros((), flat.dtype))
  matrix, count = map(total, jax.lax.scan(add_chunk, start, index)[0])
  return matrix / ((num_samples - 1) * count**2)
