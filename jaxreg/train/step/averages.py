"""What is predicted with: the last parameters, the best copy, or a mean over the training."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg import averaging
from jaxreg.typing import Array, Params, check_count, check_range

AVERAGES = ("none", "early_stopping", "swa", "ema")


def _keep(state: Any, *_: Any) -> Any:
  return state


@dataclasses.dataclass(frozen=True)
class Averaging:
  """A state beside the parameters, saved with them, and the parameters that it gives.

  Attributes:
    init: `params -> state`; BatchNorm's statistics are among these parameters.
    params: `(state, params) -> params`, to predict with.
    step: `(state, params, step) -> state`, after each update of the parameters.
    evaluated: `(state, metric, params) -> state`, after each evaluation on the validation split, or None.
    stopped: `state -> bool`, whether the training is over.
    along: whether evaluations along the training are of those parameters, too.
  """

  init: Callable[[Params], Any] = lambda params: ()
  params: Callable[[Any, Params], Params] = lambda state, params: params
  step: Callable[[Any, Params, Array], Any] = _keep
  evaluated: Callable[[Any, Array, Params], Any] | None = None
  stopped: Callable[[Any], Array] | None = None
  along: bool = True


def early_stopping(*, patience: int = 5, min_delta: float = 0.0) -> Averaging:
  """The copy with the best validation metric; the run ends when it has not improved for `patience`
  evaluations."""
  # Now, and not at the first evaluation.
  check_count(patience, "patience")
  check_range(min_delta, "min_delta", low=0)

  def evaluated(state: averaging.EarlyStoppingState, metric: Array, params: Params) -> Any:
    return averaging.early_stopping_update(state, params, metric, patience=patience, min_delta=min_delta)

  best = lambda state, params: state.params
  stopped = lambda state: state.should_stop
  return Averaging(averaging.early_stopping_init, best, evaluated=evaluated, stopped=stopped, along=False)


def swa(*, start: float = 0.75, every: int = 0, num_steps: int, steps_per_epoch: int) -> Averaging:
  """The mean of the iterates from the fraction `start` of the run on, one in `every` steps; 0: an epoch."""
  if not 0 <= start < 1:
    raise ValueError(f"average.swa.start must lie in [0, 1), got {start}")
  if every < 0:
    raise ValueError(f"average.swa.every must be at least 0, got {every}")
  first, period = min(round(start * num_steps), num_steps - 1), every or steps_per_epoch

  def init(params: Params) -> tuple[averaging.SWAState, Array]:
    return averaging.swa_init(params), jnp.int32(num_steps)

  def step(
    kept: tuple[averaging.SWAState, Array], params: Params, number: Array
  ) -> tuple[averaging.SWAState, Array]:
    state, length = kept
    # A run that is made longer begins again: what it has so far is of another's last part.
    own = (length == num_steps) & (number > first)
    state = jax.tree.map(lambda x: jnp.where(own, x, 0), state)
    # The last one counts, wherever the first was.
    takes = (number > first) & ((num_steps - number) % period == 0)
    return jax.lax.cond(takes, averaging.swa_update, _keep, state, params), jnp.int32(num_steps)

  def mean(kept: tuple[averaging.SWAState, Array], params: Params) -> Params:
    state, _ = kept
    return jax.tree.map(lambda m, p: jnp.where(state.count > 0, m.astype(p.dtype), p), state.params, params)

  return Averaging(init, mean, step)


def ema(*, decay: float = 0.999) -> Averaging:
  """The exponential mean of the iterates; of the first `1 / (1 - decay)` of them the plain mean."""

  def step(state: averaging.EMAState, params: Params, _: Array) -> averaging.EMAState:
    return averaging.ema_update(state, params, decay=decay)

  def mean(state: averaging.EMAState, params: Params) -> Params:
    return jax.tree.map(lambda m, p: m.astype(p.dtype), state.params, params)

  return Averaging(averaging.ema_init, mean, step)


def make_average(name: str, *, num_steps: int, steps_per_epoch: int, **options: Any) -> Averaging:
  """By its name; `none` predicts with the parameters themselves."""
  if name == "none":
    return Averaging()
  if name == "swa":
    options |= {"num_steps": num_steps, "steps_per_epoch": steps_per_epoch}
  return {"early_stopping": early_stopping, "swa": swa, "ema": ema}[name](**options)
