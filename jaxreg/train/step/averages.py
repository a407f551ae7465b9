"""The parameters that predict: the last ones, the best copy, a mean over the training, or draws around it."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg import averaging
from jaxreg._checks import check_choice, check_count, check_range
from jaxreg._errors import ArgumentError
from jaxreg.typing import Array, Key, Params, PyTree


def _no_state(params: Params) -> PyTree:
  del params
  return ()


def _current(state: PyTree, params: Params) -> Params:
  del state
  return params


def _keep(state: PyTree, *_: object) -> PyTree:
  return state


def _as_stored(mean: Array, param: Array) -> Array:
  """Casts the mean of a parameter, in the dtype of the parameter."""
  return mean.astype(param.dtype)


@dataclasses.dataclass(frozen=True)
class Averaging:
  """A state that is saved with the parameters, and the parameters that it gives for predictions.

  Attributes:
    init: `params -> state`; BatchNorm's statistics are among these parameters.
    params: `(state, params) -> params`, the parameters for predictions.
    step: `(state, params, step) -> state`, after each update of the parameters.
    evaluated: `(state, metric, params) -> state`, after each evaluation on the validation split, or None.
    stopped: `state -> bool`, whether the training is over.
    along: whether evaluations during the training use the parameters that `params` gives, too.
    draw: `(key, state, params) -> params`, a draw of the parameters for predictions, or None.
    samples: how many draws a prediction is the mean over, where there is a `draw`.
  """

  init: Callable[[Params], PyTree] = _no_state
  params: Callable[[PyTree, Params], Params] = _current
  step: Callable[[PyTree, Params, Array], PyTree] = _keep
  evaluated: Callable[[PyTree, Array, Params], PyTree] | None = None
  stopped: Callable[[PyTree], Array] | None = None
  along: bool = True
  draw: Callable[[Key, PyTree, Params], Params] | None = None
  samples: int = 0


def none() -> Averaging:
  """Predicts by the parameters themselves."""
  return Averaging()


def early_stopping(*, patience: int = 5, min_delta: float = 0.0) -> Averaging:
  """Keeps the copy with the best validation metric; `patience` evaluations without a better one end the run.

  Args:
    patience: the run ends after this many evaluations without a better one.
    min_delta: smaller gains of the metric do not count.
  """
  best = averaging.early_stopping(patience=patience, min_delta=min_delta)

  def evaluated(state: PyTree, metric: Array, params: Params) -> PyTree:
    return best.update(state, params, metric)

  def best_params(state: PyTree, params: Params) -> Params:
    del params
    return best.params(state)

  return Averaging(best.init, best_params, evaluated=evaluated, stopped=_should_stop, along=False)


def _should_stop(state: PyTree) -> Array:
  return state.should_stop


def swa(
  *,
  start: float = 0.75,
  every: int = 0,
  decay: Literal["linear", "cosine", "sqrt"] = "linear",
  num_steps: int,
  steps_per_epoch: int,
) -> Averaging:
  """Takes the mean of one iterate in `every` steps (0: an epoch), from the fraction `start` of the run on.

  Args:
    start: fraction of the run after which the mean begins.
    every: steps between the iterates of the mean; 0: an epoch.
    decay: decay of the learning rate from `start` on that the mean imitates; linear is the plain mean.
    num_steps: the length of the run.
    steps_per_epoch: the length of an epoch.
  """
  first, period = _collected(start, every, num_steps, steps_per_epoch)
  number = (num_steps - first - 1) // period + 1
  time = np.arange(1, number) / number
  rates = {"linear": None, "cosine": (1 + np.cos(np.pi * time)) / 2, "sqrt": 1 - np.sqrt(time)}
  check_choice(decay, "decay", (*rates,))
  average = averaging.swa(learning_rates=rates[decay])
  return _collecting(average, start, every, num_steps, steps_per_epoch)


def swag(
  *,
  start: float = 0.75,
  every: int = 0,
  rank: int = 20,
  samples: int = 30,
  scale: float = 1.0,
  num_steps: int,
  steps_per_epoch: int,
) -> Averaging:
  """Fits a Gaussian to the iterates that `swa` averages; a prediction averages `samples` draws.

  Args:
    start: fraction of the run after which iterates are collected.
    every: steps between the iterates; 0: an epoch.
    rank: how many of the last iterates give the low-rank part of the covariance.
    samples: draws of the parameters that a prediction averages over.
    scale: factor of the covariance.
    num_steps: the length of the run.
    steps_per_epoch: the length of an epoch.
  """
  check_count(samples, "samples")
  average = averaging.swag(rank=rank, scale=scale)
  collecting = _collecting(average, start, every, num_steps, steps_per_epoch)

  def draw(key: Key, kept: tuple[PyTree, Array], params: Params) -> Params:
    # Before the first iterate, the parameters themselves: all deviations are 0.
    state = kept[0]._replace(params=collecting.params(kept, params))
    return jax.tree.map(_as_stored, average.sample(key, state), params)

  return dataclasses.replace(collecting, along=False, draw=draw, samples=samples)


def _collected(start: float, every: int, num_steps: int, steps_per_epoch: int) -> tuple[int, int]:
  """Returns the step after which iterates are collected, and the steps between them."""
  check_range(start, "start", low=0, high=1, open_high=True)
  if every < 0:
    raise ArgumentError("every", f"must be at least 0, got {every}")
  return min(round(start * num_steps), num_steps - 1), every or steps_per_epoch


def _collecting(average: Any, start: float, every: int, num_steps: int, steps_per_epoch: int) -> Averaging:
  """Builds the averaging over some of the steps by `averaging.swa` or `swag`."""
  first, period = _collected(start, every, num_steps, steps_per_epoch)

  def step(kept: tuple[PyTree, Array], params: Params, number: Array) -> tuple[PyTree, Array]:
    old, length = kept
    # A run that was made longer starts its mean again: the old mean covers the end of the shorter run.
    zeros = functools.partial(jax.tree.map, jnp.zeros_like)
    state: PyTree = jax.lax.cond(length == num_steps, _keep, zeros, old)
    # Counted back from the end, so that the mean always includes the last iterate.
    takes = (number > first) & ((num_steps - number) % period == 0)
    return jax.lax.cond(takes, average.update, _keep, state, params), jnp.int32(num_steps)

  def mean(kept: tuple[PyTree, Array], params: Params) -> Params:
    state, _ = kept

    def averaged(mean: Array, param: Array) -> Array:
      return jnp.where(state.count > 0, _as_stored(mean, param), param)

    return jax.tree.map(averaged, state.params, params)

  def start_state(params: Params) -> tuple[PyTree, Array]:
    return average.init(params), jnp.int32(num_steps)

  return Averaging(start_state, mean, step)


def ema(*, decay: float = 0.999, warmup: float = 1.0, power: float = 1.0) -> Averaging:
  """Takes the exponential mean of the iterates, as `averaging.ema` explains it.

  Args:
    decay: decay of the exponential mean, per step, after its warm-up.
    warmup: in step t the decay is at most 1 - (1 + (t - 1) / warmup) ** -power.
    power: see `warmup`; with 1 and warmup 1, the mean begins as the plain mean.
  """
  average = averaging.ema(decay=decay, warmup=warmup, power=power)

  def step(state: PyTree, params: Params, _: Array) -> PyTree:
    return average.update(state, params)

  def mean(state: PyTree, params: Params) -> Params:
    return jax.tree.map(_as_stored, average.params(state), params)

  return Averaging(average.init, mean, step)


def power_ema(*, length: float = 0.1, snapshots: int = 8, num_steps: int) -> Averaging:
  """Takes an average whose length can be chosen after the training, as `averaging.power_ema` explains it.

  Evaluations during the training use the average of length 0.05.

  Args:
    length: length of the average at the end, as a share of the run; an evaluation may choose another one.
    snapshots: how often the two averages of the run are kept; the state has twice as many copies.
    num_steps: the length of the run.
  """
  check_count(snapshots, "snapshots")
  average = averaging.power_ema()
  steps = np.unique(np.linspace(0, num_steps, snapshots + 1).round()[1:].astype(np.int32))

  def start_state(params: Params) -> Snapshots:
    state = average.init(params)
    kept = jax.tree.map(functools.partial(_room, len(steps)), state.averages)
    return Snapshots(state, kept, jnp.zeros(len(steps), jnp.int32))

  def step(kept: Snapshots, params: Params, number: Array) -> Snapshots:
    state = average.update(kept.state, params)
    place = jnp.minimum(jnp.searchsorted(steps, number), len(steps) - 1)
    takes = jnp.asarray(steps)[place] == number
    return jax.lax.cond(takes, _stored, _keep, kept._replace(state=state), place, number)

  def params_of(kept: Snapshots, params: Params) -> Params:
    states = [
      kept.state._replace(averages=jax.tree.map(operator.itemgetter(place), kept.averages), count=time)
      for place, time in enumerate(steps.tolist())
    ]
    # A run that was made longer lacks snapshots, and predicts by the average that it tracks.
    whole = (kept.steps == steps).all()

    def chosen(new: Array, tracked: Array, param: Array) -> Array:
      return _as_stored(jnp.where(whole, new, tracked), param)

    wanted = average.reconstruct(states, length=length)
    return jax.tree.map(chosen, wanted, average.params(kept.state), params)

  return Averaging(start_state, params_of, step)


class Snapshots(NamedTuple):
  """The averages of `power_ema`, copies of them `[snapshots, ...]`, and the steps of these; 0: none yet."""

  state: Any
  averages: PyTree
  steps: Array


def _room(number: int, leaf: Array) -> Array:
  return jnp.zeros((number, *leaf.shape), leaf.dtype)


def _stored(kept: Snapshots, place: Array, number: Array) -> Snapshots:
  """Copies the averages of this step to their place."""

  def copied(copies: Array, leaf: Array) -> Array:
    return copies.at[place].set(leaf)

  averages = jax.tree.map(copied, kept.averages, kept.state.averages)
  return kept._replace(averages=averages, steps=kept.steps.at[place].set(number))
