"""Samples of training noise: gradients at one point, parts of gradients, or parameters along a trajectory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg._checks import check_count, check_key, check_loss_fn
from jaxreg._sharding import partitioned
from jaxreg._sums import Compensated, add, compensated, gram, total
from jaxreg.flatness._batches import num_examples
from jaxreg.flatness._common import analysis, widened
from jaxreg.flatness._subset import flat_loss, selected, split
from jaxreg.flatness._trace import check_samples
from jaxreg.typing import Array, Batch, Key, LossFn, Mask, Params


@partial(
  jax.tree_util.register_dataclass,
  data_fields=["state", "batch", "key", "first"],
  meta_fields=["num_samples", "size", "following"],
)
@dataclasses.dataclass(frozen=True)
class LazySamples:
  """Samples `[num_samples, size]` that are drawn where they are used; a pytree, so jit takes it."""

  state: Any
  batch: Batch
  key: Key
  first: Array | int
  num_samples: int
  size: int
  following: Callable[[Any, Batch, Key], tuple[Any, Array]]

  def __repr__(self) -> str:
    return f"LazySamples([{self.num_samples}, {self.size}])"

  def next(self, state: Any, number: Array) -> tuple[Any, Array]:
    """Returns the next state, and the sample of a number `[size]`, in float32 or wider."""
    state, sample = self.following(state, self.batch, jax.random.fold_in(self.key, self.first + number))
    return state, widened(sample)

  @property
  def dtype(self) -> Any:
    """The dtype of a sample."""
    return jax.eval_shape(self.next, self.state, 0)[1].dtype

  def fold(self, function: Callable[[Any, Array], Any], carry: Any) -> Any:
    """Adds one sample after the other to a carry, in compiled code."""

    def step(both: Any, number: Array) -> tuple[Any, None]:
      state, carry = both
      state, sample = self.next(state, number)
      return (state, function(carry, sample)), None

    return jax.lax.scan(step, (self.state, carry), jnp.arange(self.num_samples))[0][1]


@analysis
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
  lazy: bool = False,
) -> Any:
  r"""Samples gradients at fixed parameters under independent noise: the paper's random gradient data.

  .. math:: g_j = \nabla_\theta L(\theta, \eta_j), \qquad j = 1 \dots N

  Args:
    loss_fn, params, batch, mask: as in `hvp`; the loss draws its noise from its key.
    key: sample `j` gets `fold_in(key, j)`, so a larger number starts with the same samples.
    num_samples: `N`.
    first: number of the first sample, to split a long series.
    chunk_size: samples at once; 1 is fastest on a CPU.
    lazy: whether to leave the drawing, of the same numbers, to `projected_variance` and
      `hessian_variance_alignment`. They draw one at a time and need the memory of a few vectors.

  Returns:
    `[num_samples, size]`; if `lazy`, an object that stands for it.

  Example:
    >>> loss = lambda params, batch, *, key: params @ (batch + jax.random.normal(key, (2,)))
    >>> args, options = (loss, jnp.ones(2), jnp.zeros(2)), {"key": jax.random.key(0), "num_samples": 5}
    >>> sample_gradients(*args, **options).shape, sample_gradients(*args, **options, lazy=True)
    ((5, 2), LazySamples([5, 2]))

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, section 3.4.2.
  """
  check_key(key)
  check_loss_fn(loss_fn)
  check_count(num_samples, "num_samples")
  taken, params, batch = selected(params, mask), widened(params), widened(batch)
  size = split(params, taken).flat.size
  samples = LazySamples(params, batch, key, first, num_samples, size, _Gradient(loss_fn, taken))
  return samples if lazy else _drawn(chunk_size, samples)


@partial(jax.jit, static_argnums=0)
def _drawn(chunk_size: int, samples: LazySamples) -> Array:
  one = lambda number: samples.next(samples.state, number)[1]
  return jax.lax.map(one, jnp.arange(samples.num_samples), batch_size=chunk_size)


@analysis
def sample_trajectory(
  step_fn: Callable[..., Any],
  state: Any,
  batch: Batch,
  *,
  key: Key,
  num_samples: int,
  mask: Mask = "*",
  params_of: Callable[[Any], Params] = lambda state: state.params,
  lazy: bool = False,
) -> tuple[Any, Any]:
  """Samples parameters after each of some consecutive steps: the paper's random trajectory data.

  Args:
    step_fn: `(state, batch, *, key) -> state`.
    state, batch: the current state of the training, and what each step gets.
    key: step `j` gets `fold_in(key, j)`.
    num_samples: number of steps.
    mask: the parameters to keep.
    params_of: returns the parameters of a state.
    lazy: as in `sample_gradients`; each use repeats the training.

  Returns:
    The final state, and samples `[num_samples, size]`; if `lazy`, the state as given and an object that
    stands for the samples. Consecutive steps are correlated, and may drift.

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
  after = jax.eval_shape(lambda state, key: step_fn(state, batch, key=key), state, key)
  got, want = jax.tree.structure(after), jax.tree.structure(state)
  if got != want:
    raise ValueError(f"step_fn must return a state with the structure of state, {want}, got {got}")
  taken = selected(params_of(state), mask)
  size = split(params_of(state), taken).flat.size
  samples = LazySamples(state, batch, key, 0, num_samples, size, _Step(step_fn, params_of, taken))
  return (state, samples) if lazy else _trajectory(samples)


@jax.jit
def _trajectory(samples: LazySamples) -> tuple[Any, Array]:
  return jax.lax.scan(samples.next, samples.state, jnp.arange(samples.num_samples))


@dataclasses.dataclass(frozen=True)
class _Gradient:
  loss_fn: LossFn
  mask: tuple[bool, ...]

  def __call__(self, params: Params, batch: Batch, key: Key) -> tuple[Params, Array]:
    flat, loss = flat_loss(self.loss_fn, params, self.mask, batch, key)
    return params, jax.grad(loss)(flat)


@dataclasses.dataclass(frozen=True)
class _Step:
  step_fn: Callable[..., Any]
  params_of: Callable[[Any], Params]
  mask: tuple[bool, ...]

  def __call__(self, state: Any, batch: Batch, key: Key) -> tuple[Any, Array]:
    state = self.step_fn(state, batch, key=key)
    return state, split(self.params_of(state), self.mask).flat


@analysis
def sample_noise_by_parts(
  loss_fn: LossFn, params: Params, parts: Sequence[Batch], *, key: Key, num_samples: int, mask: Mask = "*"
) -> Array:
  r"""Samples the noise of the mean gradient of `m` parts of the data, each with noise of its own.

  .. math:: s_{jk} = \sqrt{\frac{K}{m (K - 1)}} \Big(g_{jk} - \frac1K \sum_l g_{jl}\Big), \qquad
    j = 1 \dots m, \quad k = 1 \dots K

  The mean of :math:`s s^\top` over all `m K` samples is an unbiased estimate of the covariance of the
  gradient :math:`\frac1m \sum_j g_j`, from `K` passes over the data: about as good as from `m (K - 1)`
  samples of the whole gradient, which take `m (K - 1)` passes. Parts may be those of an accumulated batch:
  BatchNorm then has moments of each part. The loop is on the host, where the convolutions of a CPU are many
  times faster.

  Args:
    loss_fn, params, mask: as in `hvp`; the loss is a mean over examples and draws noise from its key.
    parts: batches with equal numbers of examples.
    key: draw `k` of part `j` gets `fold_in(fold_in(key, k), j)`.
    num_samples: `K`, draws for each part, at least 2.

  Returns:
    `[num_samples * parts, size]`, ordered by draws: `m` consecutive rows have one sample of each part.

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
  return pooled(gradients_of_parts(loss_fn, params, parts, key, 0, num_samples, mask))


def gradients_of_parts(
  loss_fn: LossFn, params: Params, parts: Sequence[Batch], key: Key, first: int, num: int, mask: Mask
) -> Array:
  """The draws `first` to `first + num` of the gradient of each part, `[num, parts, size]`."""
  check_loss_fn(loss_fn)
  gradient, params = _Gradient(loss_fn, selected(params, mask)), widened(params)
  key_of = lambda number, part: jax.random.fold_in(jax.random.fold_in(jax.random.clone(key), number), part)
  rows = []
  for number in range(first, first + num):
    for j, part in enumerate(parts):
      rows.append(jax.block_until_ready(_gradient(gradient, params, widened(part), key_of(number, j))))
  return jnp.stack(rows).reshape(num, len(parts), -1)


_gradient = jax.jit(lambda gradient, params, batch, key: gradient(params, batch, key)[1], static_argnums=0)


def pooled(gradients: Array) -> Array:
  """Scaled deviations of the draws from each part's mean, `[num, parts, size] -> [num * parts, size]`."""
  num, parts, size = gradients.shape
  scale = math.sqrt(num / (parts * (num - 1)))
  return (scale * (gradients - gradients.mean(axis=0, keepdims=True))).reshape(num * parts, size)


@analysis
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
  The number of draws does not limit the rank. For noise after a dense layer, `DenseLayer.noise_covariance` is
  much faster. For noise that examples share, or layers that couple them, see `sample_noise_by_parts`.

  Args:
    loss_fn, params, mask: as in `hvp`; the loss is called with batches of one example.
    batch: `n` examples along the leading axis of its leaves.
    key: draws the noise.
    num_samples: draws per example, at least 2.
    chunk_size: examples at once, whose draws are in memory, `[chunk_size, num_samples, size]`.

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
  compute = partial(_covariance, _Gradient(loss_fn, taken), num_samples, chunk_size)
  return partitioned(compute, params, batch, key, kept=slice(0))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _covariance(gradient, num_samples, chunk_size, params, batch, key):
  flat = split(params, gradient.mask).flat
  examples = num_examples(batch)
  chunk_size = min(chunk_size, examples)
  chunks = -(-examples // chunk_size)
  # Examples of weight 0 fill up the last chunk.
  index = jnp.arange(chunks * chunk_size).reshape(chunks, chunk_size)

  def centred(number: Array) -> Array:
    one = jax.tree.map(lambda x: x[jnp.minimum(number, examples - 1)][None], batch)
    keys = jax.random.split(jax.random.fold_in(key, number), num_samples)
    drawn = jax.vmap(lambda key: gradient(params, one, key)[1])(keys)
    return jnp.where(number < examples, drawn - drawn.mean(axis=0, keepdims=True), 0)

  def add_chunk(running: Compensated, numbers: Array) -> tuple[Compensated, None]:
    drawn = jax.vmap(centred)(numbers).reshape(-1, flat.size)
    return add(running, gram(drawn)), None

  start = compensated(jnp.zeros((flat.size,) * 2, flat.dtype))
  return total(jax.lax.scan(add_chunk, start, index)[0]) / ((num_samples - 1) * float(examples) ** 2)
