"""The training loop: step, evaluate, save, until the end or a signal."""

import contextlib
import dataclasses
import itertools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxreg.train.build.program import Program
from jaxreg.train.build.setup import steps_per_dispatch
from jaxreg.train.config.fields import Config
from jaxreg.train.data.order import Order
from jaxreg.train.data.placement import Source
from jaxreg.train.data.stream import Feed
from jaxreg.train.devices.replicas import Loop, Vmap
from jaxreg.train.errors import NothingToSave
from jaxreg.train.run.checkpoint import Checkpoints
from jaxreg.train.run.collapse import Watch
from jaxreg.train.run.due import Minutes
from jaxreg.train.run.interrupt import Interrupt
from jaxreg.train.run.log import Log, Silent
from jaxreg.train.run.recorder import Recorder, check_finite, largest_parts
from jaxreg.train.run.watchdog import Watchdog
from jaxreg.train.step.metrics import averaged


class Interrupted(Exception):
  """The run was told to stop, and saved; `status` is what the shell expects of a program so stopped."""

  def __init__(self, signal_number: int | None, step: int):
    super().__init__(f"stopped at step {step} and saved; the same command continues from there")
    self.signal = signal.Signals(signal_number or signal.SIGTERM)
    self.status = 128 + self.signal


@dataclasses.dataclass(frozen=True)
class Run:
  """What is the same at every step.

  Attributes:
    data: the splits, on the devices or on their way there.
    order: which training examples make the batch of a step.
    evaluate: `(states, source, prefix, *, final) -> metrics`, or None once a signal has come.
  """

  config: Config
  program: Program
  replicas: Vmap | Loop
  data: dict[str, Source]
  order: Order
  interrupt: Interrupt
  evaluate: Callable[..., dict[str, np.ndarray] | None]

  @property
  def seeds(self) -> range:
    return range(self.config.seed, self.config.seed + self.config.replicas)


def train_steps(
  run: Run, step: int, states: Any, feed: Feed, saved: Checkpoints, log: Log | Silent, watchdog: Watchdog
) -> tuple[int, Any, dict[str, np.ndarray] | None]:
  """Trains from `step` to the last one, or to where all replicas have stopped early.

  Returns:
    The step, the states there, and what the last evaluation measured on the validation split, if one did.

  Raises:
    Interrupted: once a signal has come, after saving.
    RunError: for a loss or a state that is not finite, or a checkpoint that cannot be saved.
  """
  config, program = run.config, run.program
  eval_steps = config.eval_every * program.steps_per_epoch
  marks = [config.checkpoint.every * program.steps_per_epoch]
  if config.checkpoint.every_steps:
    marks.append(config.checkpoint.every_steps)
  minutes = Minutes(config.checkpoint.every_minutes, step)
  dispatch = _make_dispatch(run, feed)
  observe = program.extras.evaluated and run.replicas.make_update(program.extras.evaluated)
  over = observe is not None and _all_stopped(states)
  watch = Watch(
    log.say,
    steps=config.watch.steps,
    num_classes=program.model.head.num_classes,
    clipped=config.optimizer.clip_norm > 0,
  )
  examples = config.batch_size * len(run.seeds)
  recorder = Recorder(log, every=config.log_every, examples=examples, watch=watch)
  val = None
  ahead = dispatches(step, program.num_steps, steps_per_dispatch(config), (eval_steps, *marks))
  if step and not saved.measured and (step % eval_steps == 0 or step == program.num_steps):
    ahead = itertools.chain([range(0)], ahead)  # stopped in an evaluation, it begins with that one
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
      evaluates = step % eval_steps == 0 or last
      saves = last or not steps or any(step % mark == 0 for mark in marks) or minutes.due(step)
      if not (evaluates or saves or stop):
        continue

      recorder.flush()
      check_finite(step, largest_parts(states))
      if last:
        recorder.write(step)
      values = None  # none were measured at this step
      if evaluates:
        watchdog.alive()
        val = None if stop else run.evaluate(states, run.data["val"], "val", final=False)
        stop = val is None
      if evaluates and val is not None:
        check_finite(step, val)
        values = averaged(val)
        log.write(step, values)
        if observe is not None:
          states = observe(states, val[config.checkpoint.best].astype(np.float32))
          over = _all_stopped(states)
      if saves or over or stop:
        watchdog.alive()
        saved.save(step, run.replicas.pack(states), values)
        minutes.saved(step)
        if config.checkpoint.wait:
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
    log.say(f"stopped early at step {step}: {config.checkpoint.best} has not improved")
  return step, states, val


def _rescue(run: Run, step: int, states: Any, saved: Checkpoints) -> None:
  """Saves what an exception of the loop has left, if it is whole; of several processes one alone cannot."""
  alive = not any(leaf.is_deleted() for leaf in jax.tree.leaves(states))
  if not step or not alive or jax.process_count() > 1:
    return
  with contextlib.suppress(Exception):  # The error of the loop is what is told.
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
  """The steps of each dispatch: `size` of them, or one where a multiple of a mark, or the end, lies between.

  A function of the step alone, so that a run that is resumed makes the same ones.
  """
  step = start
  while step < total:
    end = step + size
    whole = step % size == 0 and end <= total and all(step // mark == (end - 1) // mark for mark in marks)
    steps = range(step + 1, (end if whole else step + 1) + 1)
    yield steps
    step = steps[-1]


def _all_stopped(states: Any) -> bool:
  """Whether early stopping has come to an end in every replica."""
  each = states if isinstance(states, tuple) else (states,)
  return all(bool(np.all(jax.device_get(state.extras["average"].should_stop))) for state in each)
