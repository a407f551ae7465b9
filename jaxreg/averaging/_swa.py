"""Stochastic weight averaging: the mean of the iterates, and its BatchNorm statistics."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._analyses import num_examples
from jaxreg._checks import check_range, check_wide
from jaxreg._errors import ArgumentError
from jaxreg._leaves import rebuilt
from jaxreg.averaging._average import Average, Mean, check_like, is_averaged, kept_params, start, wide
from jaxreg.typing import ApplyFn, Array, Key, ModelState, Params


def swa(*, learning_rates: ArrayLike | None = None) -> Average:
  r"""Builds the mean of the iterates: update it, for instance, at the end of an epoch.

  .. math:: \bar\theta \leftarrow \bar\theta + \frac{\theta - \bar\theta}{n + 1}

  With `learning_rates` :math:`w_1, \dots, w_k`, the mean of `k + 1` iterates with weights `c` imitates a
  learning rate that decays after the first of them, while the training keeps its rate:

  .. math:: \bar\theta = \sum_{j=0}^k c_j \theta_j = \theta_0 + \sum_{i=1}^k w_i\, (\theta_i - \theta_{i-1}),
    \qquad c_0 = 1 - w_1, \quad c_j = w_j - w_{j+1}, \quad c_k = w_k

  The equality is exact. A training with the decayed rate ends there if its gradients are the same; otherwise
  the two differ in the second order of the rate. The plain mean imitates the linear decay
  :math:`w_i = 1 - i / (k + 1)`. Before the last iterate, the mean imitates the decay so
  far, moved to end in 0.

  The averaged network needs its own BatchNorm statistics: `batch_norm_statistics`. `ema` is the
  exponential average, which forgets old iterates.

  Args:
    learning_rates: `w` `[k]`, relative to the rate of the training: in [0, 1] and not increasing, such as
      `optax.cosine_decay_schedule(1.0, k + 1)(np.arange(1, k + 1))`. Iterates after the first `k + 1` have no
      weight. None is the plain mean of any number of iterates.

  Returns:
    `init`, `update` and `params`, as `jaxreg.averaging` explains. `init` copies the parameters, in float32 or
    wider, with weight 0: the first update replaces the copy. Leaves that are not floating, such as counters,
    are the newest ones.

  Example:
    >>> average = swa()
    >>> state = average.init(jnp.zeros(2))
    >>> for params in (jnp.array([1.0, 2.0]), jnp.array([3.0, 6.0])):
    ...   state = average.update(state, params)
    >>> average.params(state)
    Array([2., 4.], dtype=float32)

  References:
    Izmailov et al., `Averaging Weights Leads to Wider Optima and Better Generalization`, 2018, algorithm 1.
    Tian et al., `WSM: Decay-Free Learning Rate Schedule via Checkpoint Merging for LLM Pre-training`, 2025,
    for the weights.
  """
  if learning_rates is None:
    return Average(start, update_mean, kept_params)
  return Average(start, functools.partial(update_mean, shares=_shares(learning_rates)), kept_params)


def _shares(learning_rates: ArrayLike) -> np.ndarray:
  """Computes the share of each iterate in the mean so far."""
  rates = np.asarray(learning_rates, np.float64)
  weights = -np.diff(np.concatenate([[1.0], rates.ravel(), [0.0]]))
  if rates.ndim != 1 or not (weights >= 0).all():  # NaN is no weight either
    raise ArgumentError("learning_rates", f"must be [k], in [0, 1] and not increasing, got {learning_rates}")
  so_far = weights.cumsum()
  # While nothing has a weight, the mean is the newest iterate.
  return np.divide(weights, so_far, out=np.ones_like(weights), where=so_far > 0)


def update_mean(state: Mean, params: Params, *, shares: np.ndarray | None = None) -> Mean:
  """Adds one iterate to the mean, with the weight of all others or with its own share."""
  params = check_like(params, state.params)
  count = state.count + 1
  if shares is not None:
    share = jnp.where(state.count < len(shares), jnp.asarray(shares)[state.count], 0)

  def step(mean: Array, leaf: Array) -> Array:
    if not is_averaged(leaf):
      return leaf
    moved = mean + ((leaf - mean) / count if shares is None else share.astype(mean.dtype) * (leaf - mean))
    # The copy at the start does not count as an iterate.
    return jnp.where(state.count > 0, moved, leaf)

  return Mean(jax.tree.map(step, state.params, wide(params)), count)


def batch_norm_statistics(
  apply_fn: ApplyFn,
  params: Params,
  model_state: ModelState,
  batches: Iterable[Array],
  *,
  momentum: float | None = 0.99,
  key: Key | None = None,
) -> ModelState:
  r"""Computes BatchNorm statistics of the given parameters: the mean over batches of batch statistics.

  .. math:: \hat s = \frac{\sum_b n_b s_b}{\sum_b n_b}, \qquad s_b = \frac{s' - \mu s}{1 - \mu}

  The model in training mode returns :math:`s' = \mu s + (1 - \mu) s_b`, from which `s_b` is recovered. The
  value of `s` has no effect. The variance lacks the variance of the batch means, like every running average
  of variances.

  Args:
    apply_fn: `(params, model_state, x, *, key, train) -> (outputs, model_state)`; called with `train=True`.
      For speed give it compiled, `jax.jit(apply_fn, static_argnames="train")`.
    params: for instance the mean that `swa` gives.
    model_state: all leaves must be running averages; bind other state in `apply_fn`.
    batches: inputs, batch by batch, with `n_b` examples along the leading axis.
    momentum: `mu` in [0, 1), the share of its averages that the model's BatchNorm keeps in one step: Linen's
      default is 0.99; PyTorch's momentum is `1 - mu`. None measures it for each leaf, to five digits, by a
      second pass of the first batch.
    key: key of the model's noise, with the batch's number folded in; with None, `apply_fn` gets None.

  Returns:
    A pytree like `model_state`, in its dtypes.

  Raises:
    ValueError: for no batches, or if a leaf whose momentum is measured is no running average.

  Example:
    >>> def apply_fn(params, mean, x, *, key, train):  # a running mean with momentum 0.9
    ...   return x, 0.9 * mean + 0.1 * x.mean()
    >>> batches = [jnp.array([1.0, 3.0]), jnp.array([4.0, 8.0])]
    >>> batch_norm_statistics(apply_fn, None, jnp.array(7.0), batches, momentum=0.9).round(3)
    Array(4., dtype=float32)

  References:
    Izmailov et al., `Averaging Weights Leads to Wider Optima and Better Generalization`, 2018, section 3.
  """
  if momentum is not None:
    check_range(momentum, "momentum", low=0, high=1, open_high=True)
  jax.tree.map(lambda leaf: check_wide(leaf, "model_state"), model_state)
  # Starting from 0 there is nothing to subtract, so nothing is lost to rounding.
  zeros = jax.tree.map(jnp.zeros_like, model_state)
  means, count = wide(zeros), 0
  momenta = jax.tree.map(lambda leaf: momentum, model_state)
  for number, x in enumerate(batches, 1):
    noise = None if key is None else jax.random.fold_in(key, number)
    _, moved = apply_fn(params, rebuilt(zeros), x, key=noise, train=True)
    count += num_examples(x)
    moved = check_like(moved, model_state, "the model state of apply_fn")
    if number == 1 and momentum is None:
      _, again = apply_fn(params, rebuilt(moved), x, key=noise, train=True)
      momenta = jax.tree.map(_momentum, moved, again)
    batch_statistics = jax.tree.map(lambda leaf, kept: leaf / (1 - kept), moved, momenta)
    means = jax.tree.map(functools.partial(_toward, num_examples(x) / count), means, batch_statistics)
  if not count:
    raise ValueError("batches must hold at least one batch, got none")
  return jax.tree.map(lambda mean, old: mean.astype(old.dtype), means, model_state)


def _toward(share: float, mean: Array, leaf: Array) -> Array:
  """Moves a mean by a share of its distance from a leaf."""
  return mean + share * (leaf - mean)


def _momentum(first: Array, second: Array) -> float:
  """Measures `mu` of a leaf: from 0, two passes of one batch give `(1 - mu) s` and `(1 - mu) (1 + mu) s`."""
  once, twice = np.asarray(first, np.float64), np.asarray(second, np.float64)
  size = np.square(once).sum()
  momentum = float(np.round(((twice - once) * once).sum() / size, 5)) if size else 0.0
  fits = np.allclose(twice, (1 + momentum) * once, rtol=1e-3, atol=1e-4 * np.sqrt(size))
  if not (0 <= momentum < 1 and fits):
    raise ArgumentError("model_state", "must hold running averages only, and a leaf is none")
  return momentum
