"""Samples of training noise: gradients at one point, parts of gradients, or parameters along a trajectory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg._analyses import full_precision, num_examples, widened
from jaxreg._checks import check_count, check_key, check_loss_fn
from jaxreg._sharding import partitioned
from jaxreg._sums import Compensated, add, compensated, gram, total
from jaxreg.flatness._subset import flat_loss, selected, split
from jaxreg.flatness._trace import check_samples
from jaxreg.typing import Array, Batch, Key, LossFn, Mask, Params


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
    return _gradient(loss_fn, mask, params, batch, jax.random.fold_in(key, first + number))

  return jax.lax.map(sample, jnp.arange(num_samples), batch_size=chunk_size)


def _gradient(loss_fn: LossFn, mask: tuple[bool, ...], params: Params, batch: Batch, key: Key) -> Array:
  flat, loss = flat_loss(loss_fn, params, mask, batch, key)
  return jax.grad(loss)(flat)


def _params(state: Any) -> Params:
  return state.params


@full_precision
def sample_trajectory(
  step_fn: Callable[..., Any],
  state: Any,
  batch: Batch,
  *,
  key: Key,
  num_samples: int,
  mask: Mask = "*",
  params_of: Callable[[Any], Params] = _params,
) -> tuple[Any, Array]:
  """Samples the parameters after each of `num_samples` steps: the paper's random trajectory data.

  Args:
    step_fn: `(state, batch, *, key) -> state`.
    state, batch: the current state of the training, and the batch of each step.
    key: step `j` gets `fold_in(key, j)`.
    num_samples: number of steps.
    mask: the parameters to keep.
    params_of: returns the parameters of a state; by default its attribute `params`.

  Returns:
    The final state, and samples `[num_samples, size]`. Consecutive steps are correlated, and may drift.

  Example:
    >>> step = lambda w, batch, *, key: w + batch * jax.random.normal(key, (2,))
    >>> options = {"key": jax.random.key(0), "num_samples": 5, "params_of": lambda w: w}
    >>> sample_trajectory(step, jnp.zeros(2), 0.1, **options)[1].shape
    (5, 2)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, section 3.4.1.
  """
  check_key(key)
  check_count(num_samples, "num_samples")
  after = jax.eval_shape(step_fn, state, batch, key=key)
  got, want = jax.tree.structure(after), jax.tree.structure(state)
  if got != want:
    raise ValueError(f"step_fn must return a state with the structure of state, {want}, got {got}")
  return _trajectory(step_fn, params_of, selected(params_of(state), mask), num_samples, state, batch, key)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _trajectory(step_fn, params_of, mask, num_samples, state, batch, key):
  def step(state: Any, number: Array) -> tuple[Any, Array]:
    state = step_fn(state, batch, key=jax.random.fold_in(key, number))
    return state, widened(split(params_of(state), mask).flat)

  return jax.lax.scan(step, state, jnp.arange(num_samples))


@full_precision
def sample_noise_by_parts(
  loss_fn: LossFn, params: Params, parts: Sequence[Batch], *, key: Key, num_samples: int, mask: Mask = "*"
) -> Array:
  r"""Samples the noise of the mean gradient of `m` parts of the data with independent noise.

  .. math:: s_{jk} = \sqrt{\frac{K}{m (K - 1)}} \Big(g_{jk} - \frac1K \sum_l g_{jl}\Big), \qquad
    j = 1 \dots m, \quad k = 1 \dots K

  The mean of :math:`s s^\top` over all `m K` samples is an unbiased estimate of the covariance of the
  gradient :math:`\frac1m \sum_j g_j`. It takes `K` passes over the data, and is about as accurate as from
  `m (K - 1)` samples of the whole gradient, which take `m (K - 1)` passes. Parts may be the microbatches of
  an accumulated batch, each with its own moments of BatchNorm. The loop is on the host, where the
  convolutions of a CPU are many times faster.

  Args:
    loss_fn, params, mask: as in `hvp`; the loss is a mean over examples and draws noise from its key.
    parts: batches with equal numbers of examples.
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
  check_samples(num_samples)
  sizes = [num_examples(part) for part in parts]
  if len(set(sizes)) != 1:
    raise ValueError(f"parts must be batches with equal numbers of examples, got {sizes}")
  return pooled(part_gradients(loss_fn, params, parts, key, 0, num_samples, mask))


def part_gradients(
  loss_fn: LossFn, params: Params, parts: Sequence[Batch], key: Key, first: int, num: int, mask: Mask
) -> Array:
  """Computes the draws `first` to `first + num` of the gradient of each part, `[num, parts, size]`."""
  check_loss_fn(loss_fn)
  taken, params = selected(params, mask), widened(params)
  rows = []
  for number in range(first, first + num):
    for j, part in enumerate(parts):
      part_key = jax.random.fold_in(jax.random.fold_in(jax.random.clone(key), number), j)
      gradient = _compiled_gradient(loss_fn, taken, params, widened(part), part_key)
      rows.append(jax.block_until_ready(gradient))
  return jnp.stack(rows).reshape(num, len(parts), -1)


_compiled_gradient = jax.jit(_gradient, static_argnums=(0, 1))


def pooled(gradients: Array) -> Array:
  """Scales the draws' deviations from their part's mean, `[num, parts, size] -> [num * parts, size]`."""
  num, parts, size = gradients.shape
  scale = math.sqrt(num / (parts * (num - 1)))
  return (scale * (gradients - gradients.mean(axis=0, keepdims=True))).reshape(num * parts, size)


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

  .. math:: \Sigma_g = \frac1{n^2} \sum_i \mathrm{Cov}_\eta(\nabla_\theta \ell_i)

  A few draws give an unbiased estimate of each example's covariance, and the sum averages over the data set.
  The number of draws does not limit the rank. For noise that examples share, or layers that couple them, use
  `sample_noise_by_parts`.

  Args:
    loss_fn, params, mask: as in `hvp`; the loss is called with batches of one example.
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
  check_samples(num_samples)
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

  def centred(number: Array) -> Array:
    def take(x: Array) -> Array:
      return x[jnp.minimum(number, examples - 1)][None]

    keys = jax.random.split(jax.random.fold_in(key, number), num_samples)
    gradient = partial(_gradient, loss_fn, mask, params, jax.tree.map(take, batch))
    gradients = jax.vmap(gradient)(keys)
    return jnp.where(number < examples, gradients - gradients.mean(axis=0, keepdims=True), 0)

  def add_chunk(running: Compensated, numbers: Array) -> tuple[Compensated, None]:
    return add(running, gram(jax.vmap(centred)(numbers).reshape(-1, flat.size))), None

  start = compensated(jnp.zeros((flat.size,) * 2, flat.dtype))
  return total(jax.lax.scan(add_chunk, start, index)[0]) / ((num_samples - 1) * float(examples) ** 2)
