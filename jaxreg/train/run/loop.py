"""The training loop: step, evaluate, save, until the end or a signal."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable

import jax
import numpy as np

from jaxreg.train.data.batches import Feed, Order, Source
from jaxreg.train.devices.flops import count_flops
from jaxreg.train.devices.replicas import Loop, Vmap
from jaxreg.train.errors import NothingToSave
from jaxreg.train.run.checkpoint import Checkpoints
from jaxreg.train.run.dispatch import Intervals, SaveClock, dispatches
from jaxreg.train.run.goodput import Times
from jaxreg.train.run.health import CollapseGuard, Watchdog, check_finite, largest_parts
from jaxreg.train.run.interrupt import Interrupt, Interrupted
from jaxreg.train.run.log import Log, Silent
from jaxreg.train.run.profile import Profile, Window
from jaxreg.train.run.recorder import Recorder
from jaxreg.train.sealed_tables import Json
from jaxreg.train.step.metrics import Sums, chosen_metric, summarize, to_host
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import States
from jaxreg.typing import PyTree


@dataclasses.dataclass(frozen=True)
class Run:
  """The parts of a run that stay the same at every step."""

  program: Program
  replicas: Vmap | Loop
  seeds: range  # one for each replica
  batch_size: int
  eval_batch_size: int
  data: dict[str, Source]  # the splits
  order: Order
  interrupt: Interrupt
  evaluate: Callable[..., Sums | None]  # what `make_evaluate` builds
  every: Intervals
  best: str  # the metric of the validation split that chooses a checkpoint
  wait: bool  # until a checkpoint is on disk
  guard: Callable[[Callable[[str], None]], CollapseGuard]  # of a function that shows a line
  profile: Window
  peak: float  # FLOP/s of all devices; 0: not known


def train_steps(
  run: Run,
  step: int,
  states: States,
  unrecorded: Json,
  feed: Feed,
  saved: Checkpoints,
  log: Log | Silent,
  watchdog: Watchdog,
  times: Times,
  profile: Profile,
) -> tuple[int, States, dict[str, np.ndarray] | None]:
  """Trains to the last step or early stopping; returns the step, its states and its validation metrics.

  `states` are of `step`, and so are the sums of the steps that no record has yet, `unrecorded`.
  """
  every, num_steps = run.every, run.program.num_steps
  clock = SaveClock(every.save_minutes, step)
  guard = run.guard(log.say)
  recorder = Recorder(
    log,
    every=every.log,
    examples=run.batch_size * len(run.seeds),
    utilization=1 / steps_at_peak(run) if run.peak else None,
    guard=guard,
    sums=unrecorded,
  )
  dispatch = _make_dispatch(run, feed, recorder, log, times, profile)
  early_stopping = run.program.extras.evaluated and run.replicas.make_update(run.program.extras.evaluated)
  over = early_stopping is not None and _all_stopped(states)
  val = None
  ahead = dispatches(step, num_steps, every.dispatch, (every.evaluate, *every.save), every.sharpness)
  if step and not saved.measured and (step % every.evaluate == 0 or step == num_steps):
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
        times.step(step)
        if profile.ends(step):
          recorder.flush()
          profile.stop()
      stop, last = run.interrupt.stops(steps), step == num_steps
      evaluates = last or step % every.evaluate == 0
      saves = last or not steps or any(step % number == 0 for number in every.save) or clock.due(step)
      if not (evaluates or saves or stop):
        continue

      recorder.flush()
      check_finite(step, largest_parts(states))
      unrecorded = recorder.sums()
      if last and steps:
        recorder.write(step)
      values = None  # the metrics of this step, if it is evaluated
      if evaluates:
        recorder.show(step)
        watchdog.alive()
        with times.phase("evaluate"):
          sums = None if stop else run.evaluate(states, run.data["val"], final=False)
        stop, val = sums is None, None if sums is None else summarize(sums, "val")
      if evaluates and val is not None:
        check_finite(step, val)
        values = val
        log.write(step, values)
        if "val/nll" in val:
          guard.observe_evaluation(val["val/nll"], last=last)
        if early_stopping is not None:
          states = early_stopping(states, val[chosen_metric(run.best, val)].astype(np.float32))
          over = _all_stopped(states)
      if saves or over or stop:
        watchdog.alive()
        with times.phase("save"):
          log.flush()
          saved.save(step, run.replicas.pack(states), values, unrecorded)
          clock.saved(step)
          if run.wait:
            saved.wait()
        times.saved()
        stop = stop or run.interrupt.requested()
      if stop:
        with times.phase("save"):
          saved.wait()
        raise Interrupted(run.interrupt.received, step)
      if steps:
        recorder.restart_timing()
  except (Interrupted, NothingToSave):
    raise
  except Exception:
    _rescue(run, step, states, recorder, log, saved)
    raise
  if over and step < num_steps:
    log.say(f"stopped early at step {step}: {chosen_metric(run.best, val or {})} has not improved")
  return step, states, val


def _rescue(
  run: Run, step: int, states: States, recorder: Recorder, log: Log | Silent, saved: Checkpoints
) -> None:
  """Saves the states after an exception in the loop, if they are whole; one of several processes cannot."""
  alive = not any(leaf.is_deleted() for leaf in jax.tree.leaves(states))
  if not step or not alive or jax.process_count() > 1:
    return
  with contextlib.suppress(Exception):  # The loop's own error is the one to report.
    recorder.flush()
    check_finite(step, largest_parts(states))
    if recorder.step == step:  # otherwise a record could not be written; the last checkpoint makes it again
      log.flush()
      saved.save(step, run.replicas.pack(states), None, recorder.sums())
      saved.wait()


def steps_at_peak(run: Run) -> float:
  """Computes how many steps of all replicas the devices would make in a second at their peak."""
  train = run.data["train"]
  indices = run.order(0)[0]
  inputs = train.split.inputs
  batch = {
    "inputs": jax.ShapeDtypeStruct((len(indices), *inputs.shape[1:]), inputs.dtype),
    **train.targets(indices),
  }
  return run.peak / (len(run.seeds) * count_flops(run.program.train_step, run.program.abstract, batch))


def _make_dispatch(
  run: Run, feed: Feed, recorder: Recorder, log: Log | Silent, times: Times, profile: Profile
) -> Callable[[States, range], tuple[States, PyTree]]:
  """Builds `dispatch(states, steps) -> (states, metrics)`: one step, or several in one program.

  The sharpness is measured by a program of its own, so that it changes no bit of the training.
  """
  one = run.replicas.make_step(run.program.train_step)
  several = run.replicas.make_step(run.program.train_step, scan=True)
  sharpness, _ = run.replicas.make_step(run.program.sharpness_step)
  arrays = run.data["train"].arrays

  def dispatch(states: States, steps: range) -> tuple[States, PyTree]:
    make, place_batch = one if len(steps) == 1 else several
    with profile.step(steps):
      # While the devices are at work on the step before, nothing waits for the input.
      with times.phase("input", hidden=recorder.is_busy):
        batch = place_batch(feed(steps))
      # Without `jit`, as for debugging, each constant of the step is a transfer of its own.
      with jax.transfer_guard("allow" if jax.config.jax_disable_jit else "disallow"):  # type: ignore
        if run.every.sharpness and steps[-1] % run.every.sharpness == 0:
          recorder.flush()
          states, measured = sharpness(states, arrays, batch)
          log.record(steps[-1], summarize(to_host(measured), "update"))
          recorder.restart_timing()
        return make(states, arrays, batch)

  return dispatch


def _all_stopped(states: States) -> bool:
  """Tells whether early stopping has stopped every replica."""
  each = states if isinstance(states, tuple) else (states,)
  return all(bool(np.all(jax.device_get(state.extras["average"].should_stop))) for state in each)
