"""Stochastic weight averaging: the mean of the iterates, and its BatchNorm statistics."""

import functools
from collections.abc import Iterable

import jax
import jax.numpy as jnp

from jaxreg._analyses import num_examples
from jaxreg._checks import check_range, check_wide
from jaxreg.averaging._average import Average, Mean, check_like, is_averaged, kept_params, start, wide
from jaxreg.typing import ApplyFn, Array, Key, ModelState, Params


def swa() -> Average:
  r"""Builds the mean of the iterates: update it, for instance, at the end of an epoch.

  .. math:: \bar\theta \leftarrow \bar\theta + \frac{\theta - \bar\theta}{n + 1}

  The averaged network needs its own BatchNorm statistics: `batch_norm_statistics`. `ema` is the
  exponential average, which forgets old iterates.

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
  """
  return Average(start, update_mean, kept_params)


def update_mean(state: Mean, params: Params) -> Mean:
  """Adds one iterate to the mean."""
  params = check_like(params, state.params)
  count = state.count + 1

  def step(mean: Array, leaf: Array) -> Array:
    if not is_averaged(leaf):
      return leaf
    # The copy at the start does not count as an iterate.
    return jnp.where(state.count > 0, mean + (leaf - mean) / count, leaf)

  return Mean(jax.tree.map(step, state.params, wide(params)), count)


def batch_norm_statistics(
  apply_fn: ApplyFn,
  params: Params,
  model_state: ModelState,
  batches: Iterable[Array],
  *,
  momentum: float = 0.99,
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
      default is 0.99; PyTorch's momentum is `1 - mu`.
    key: key of the model's noise, with the batch's number folded in; with None, `apply_fn` gets None.

  Returns:
    A pytree like `model_state`, in its dtypes.

  Raises:
    ValueError: for no batches.

  Example:
    >>> def apply_fn(params, mean, x, *, key, train):  # a running mean with momentum 0.9
    ...   return x, 0.9 * mean + 0.1 * x.mean()
    >>> batches = [jnp.array([1.0, 3.0]), jnp.array([4.0, 8.0])]
    >>> batch_norm_statistics(apply_fn, None, jnp.array(7.0), batches, momentum=0.9).round(3)
    Array(4., dtype=float32)

  References:
    Izmailov et al., `Averaging Weights Leads to Wider Optima and Better Generalization`, 2018, section 3.
  """
  check_range(momentum, "momentum", low=0, high=1, open_high=True)
  jax.tree.map(lambda leaf: check_wide(leaf, "model_state"), model_state)
  # Starting from 0 there is nothing to subtract, so nothing is lost to rounding.
  zeros = jax.tree.map(jnp.zeros_like, model_state)
  means, count = wide(zeros), 0
  for number, x in enumerate(batches, 1):
    noise = None if key is None else jax.random.fold_in(key, number)
    _, moved = apply_fn(params, zeros, x, key=noise, train=True)
    count += num_examples(x)
    moved = check_like(moved, model_state, "the model state of apply_fn")
    of_batch = jax.tree.map(lambda leaf: leaf / (1 - momentum), moved)
    means = jax.tree.map(functools.partial(_toward, num_examples(x) / count), means, of_batch)
  if not count:
    raise ValueError("batches must hold at least one batch, got none")
  return jax.tree.map(lambda mean, old: mean.astype(old.dtype), means, model_state)


def _toward(share: float, mean: Array, leaf: Array) -> Array:
  """Moves a mean by a share of its distance from a leaf."""
  return mean + share * (leaf - mean)
