"""The training loop: step, evaluate, save, until the end or a signal."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxreg.train.data.batches import Feed, Order
from jaxreg.train.data.placement import Source
from jaxreg.train.devices.replicas import Loop, Vmap
from jaxreg.train.errors import NothingToSave
from jaxreg.train.run.checkpoint import Checkpoints
from jaxreg.train.run.collapse import CollapseGuard
from jaxreg.train.run.due import Minutes
from jaxreg.train.run.finite import check_finite, largest_parts
from jaxreg.train.run.interrupt import Interrupt, Interrupted
from jaxreg.train.run.log import Log, Silent
from jaxreg.train.run.recorder import Recorder
from jaxreg.train.run.watchdog import Watchdog
from jaxreg.train.step.metrics import averaged
from jaxreg.train.step.program import Program


@dataclasses.dataclass(frozen=True)
class Intervals:
  """How often a run evaluates, saves, logs and dispatches.

  Attributes:
    evaluate: steps between evaluations on the validation split.
    save: the run saves at the multiples of each of these numbers of steps.
    save_minutes: the run also saves when this time has passed; 0 for never.
    log: steps between records.
    dispatch: steps that one dispatch makes.
  """

  evaluate: int
  save: tuple[int, ...]
  save_minutes: float
  log: int
  dispatch: int


@dataclasses.dataclass(frozen=True)
class Run:
  """The parts of a run that stay the same at every step.

  Attributes:
    seeds: one seed for each replica.
    batch_size, eval_batch_size: in examples.
    data: the splits, on the devices or as sources of batches for them.
    order: which training examples make the batch of a step.
    evaluate: `(states, source, prefix, *, final) -> metrics`, or None once a signal has come.
    best: the metric of the validation split that chooses a checkpoint.
    wait: whether the training waits until a checkpoint is on disk.
    guard: `warn -> CollapseGuard`; the guard calls `warn` if the run does not learn.
  """

  program: Program
  replicas: Vmap | Loop
  seeds: range
  batch_size: int
  eval_batch_size: int
  data: dict[str, Source]
  order: Order
  interrupt: Interrupt
  evaluate: Callable[..., dict[str, np.ndarray] | None]
  every: Intervals
  best: str
  wait: bool
  guard: Callable[[Callable[[str], None]], CollapseGuard]


def train_steps(
  run: Run, step: int, states: Any, feed: Feed, saved: Checkpoints, log: Log | Silent, watchdog: Watchdog
) -> tuple[int, Any, dict[str, np.ndarray] | None]:
  """Trains from `step` to the last step, or until all replicas have stopped early.

  Returns:
    The step, the states at that step, and the validation metrics of the last evaluation, or None.
  """
  program, every = run.program, run.every
  minutes = Minutes(every.save_minutes, step)
  dispatch = _make_dispatch(run, feed)
  observe = program.extras.evaluated and run.replicas.make_update(program.extras.evaluated)
  over = observe is not None and _all_stopped(states)
  examples = run.batch_size * len(run.seeds)
  guard = run.guard(log.say)
  recorder = Recorder(log, every=every.log, examples=examples, guard=guard)
  val = None
  ahead = dispatches(step, program.num_steps, every.dispatch, (every.evaluate, *every.save))
  if step and not saved.measured and (step % every.evaluate == 0 or step == program.num_steps):
    ahead = itertools.chain([range(0)], ahead)  # a run stopped in an evaluation begins with that evaluation
  try:
    for steps in ahead:
      if over:
        break
      watchdog.alive()
      if steps:
        states, metrics = dispatch(states, steps)
        step = steps[-1]
        recorder.add(steps, metrics)
      last = step == program.num_steps
      stop = run.interrupt.stops(steps)
      evaluates = step % every.evaluate == 0 or last
      saves = last or not steps or any(step % steps == 0 for steps in every.save) or minutes.due(step)
      if not (evaluates or saves or stop):
        continue

      recorder.flush()
      check_finite(step, largest_parts(states))
      if last:
        recorder.write(step)
      if evaluates:
        recorder.show(step)
      values = None  # the metrics of this step, if it is evaluated
      if evaluates:
        watchdog.alive()
        val = None if stop else run.evaluate(states, run.data["val"], "val", final=False)
        stop = val is None
      if evaluates and val is not None:
        check_finite(step, val)
        values = averaged(val)
        log.write(step, values)
        guard.see_evaluation(val["val/nll"], last=last)
        if observe is not None:
          states = observe(states, val[run.best].astype(np.float32))
          over = _all_stopped(states)
      if saves or over or stop:
        watchdog.alive()
        saved.save(step, run.replicas.pack(states), values)
        minutes.saved(step)
        if run.wait:
          saved.wait()
        stop = stop or run.interrupt.told()
      if stop:
        saved.wait()
        raise Interrupted(run.interrupt.received, step)
      if steps:
        recorder.restart()
  except (Interrupted, NothingToSave):
    raise
  except Exception:
    _rescue(run, step, states, saved)
    raise
  if over and step < program.num_steps:
    log.say(f"stopped early at step {step}: {run.best} has not improved")
  return step, states, val


def _rescue(run: Run, step: int, states: Any, saved: Checkpoints) -> None:
  """Saves the states after an exception in the loop, if they are whole; one of several processes cannot."""
  alive = not any(leaf.is_deleted() for leaf in jax.tree.leaves(states))
  if not step or not alive or jax.process_count() > 1:
    return
  with contextlib.suppress(Exception):  # The loop's own error is the one to report.
    check_finite(step, largest_parts(states))
    saved.save(step, run.replicas.pack(states), None)
    saved.wait()


def _make_dispatch(run: Run, feed: Feed) -> Callable[[Any, range], tuple[Any, Any]]:
  """Builds `dispatch(states, steps) -> (states, metrics)`: one step, or several in one program."""
  one = run.replicas.make_step(run.program.train_step)
  several = run.replicas.make_step(run.program.train_step, scan=True)
  arrays = run.data["train"].arrays

  def dispatch(states: Any, steps: range) -> tuple[Any, Any]:
    make, place_batch = one if len(steps) == 1 else several
    batch = place_batch(feed(steps))
    with jax.transfer_guard("disallow"):
      return make(states, arrays, batch)

  return dispatch


def dispatches(start: int, total: int, size: int, marks: tuple[int, ...]) -> Iterator[range]:
  """The steps of each dispatch: `size` steps, or one step if `size` steps would cross a mark or the end.

  A mark stands at each multiple of the numbers in `marks`. The dispatches depend on the step alone, so that a
  resumed run makes the same ones.
  """
  step = start
  while step < total:
    end = step + size
    whole = step % size == 0 and end <= total and all(step // mark == (end - 1) // mark for mark in marks)
    steps = range(step + 1, (end if whole else step + 1) + 1)
    yield steps
    step = steps[-1]


def _all_stopped(states: Any) -> bool:
  """Whether early stopping has stopped every replica."""
  each = states if isinstance(states, tuple) else (states,)
  return all(bool(np.all(jax.device_get(state.extras["average"].should_stop))) for state in each)
