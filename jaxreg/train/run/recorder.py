"""Reads the metrics of each dispatch one dispatch late, so that the device never waits for the host."""

import collections
import functools
import time
from typing import Any

import jax
import numpy as np

from jaxreg.calibration import merge
from jaxreg.train.run.health import CollapseGuard, check_finite
from jaxreg.train.run.log import Log, Silent
from jaxreg.train.sealed_tables import Json
from jaxreg.train.step.metrics import InUnits, Values, summarize, to_host
from jaxreg.typing import PyTree


class Recorder:
  """Adds up the metrics of the steps and writes their means at every multiple of `every` steps.

  It stays exactly one dispatch behind for a second reason: many queued steps whose results nobody reads can
  hang several simulated devices.
  """

  def __init__(
    self,
    log: Log | Silent,
    *,
    every: int,
    examples: int,
    utilization: float | None = None,
    guard: CollapseGuard | None = None,
    sums: Any = None,
  ):
    """Continues the record whose `sums` were saved with a checkpoint, if any.

    `examples` is their number in a step, `utilization` the MFU of a step that takes a second, if it is known.
    """
    self._log, self._every, self._examples, self._guard = log, every, examples, guard
    self._utilization = utilization
    self._pending: tuple[range, PyTree] | None = None
    # The sums of the steps since the last record, and the number of these steps.
    self._total, self._recorded = (None, 0) if sums is None else (_to_arrays(sums["sums"]), sums["steps"])
    # The sums of the latest steps, for people: means over fewer steps than a record has would jump.
    self._latest: collections.deque[PyTree] = collections.deque(maxlen=every)
    self.step: int | None = None  # the last one that is in the total, and in its record if one was due
    # The time when the last steps were done; unknown at first, so that the speed leaves out compilation.
    self._since: float | None = None
    self._steps, self._seconds = 0, 0.0

  def add(self, steps: range, metrics: PyTree) -> None:
    """Takes the metrics of the steps just dispatched, and reads the metrics of the previous dispatch."""
    self.flush()
    self._pending = (steps, metrics)

  def sums(self) -> Json:
    """Returns the sums since the last record, without pending metrics, as JSON for a checkpoint."""
    if self._total is None:
      return None
    return {"steps": self._recorded, "sums": {name: _to_json(pair) for name, pair in self._total.items()}}

  def is_busy(self) -> bool:
    """Tells whether the devices are still at work on the steps dispatched last."""
    return self._pending is not None and not jax.tree.leaves(self._pending[1])[0].is_ready()

  def restart_timing(self) -> None:
    """Restarts the timing of steps: the time since the last step was not spent on training."""
    self._since = time.monotonic()

  def flush(self) -> None:
    """Reads the pending metrics."""
    if self._pending is None:
      return
    (steps, metrics), self._pending = self._pending, None
    metrics = to_host(metrics)
    before, self._since = self._since, time.monotonic()
    for position, step in enumerate(steps):
      # In a dispatch of several steps, the step axis follows the replica axis.
      at = (slice(None), position) if len(steps) > 1 else slice(None)
      of_step = jax.tree.map(lambda x, at=at: x[at], metrics)
      counted = {name: (total, count) for name, (total, count) in of_step.items() if count.all()}
      check_finite(step, {name: total / count for name, (total, count) in counted.items()})
      self._total = merge(self._total, of_step)
      self._latest.append(of_step)
      self._recorded += 1
      if before is not None:
        self._steps += 1
        self._seconds += (self._since - before) / len(steps)
      self._log.step()
      if step % self._every == 0:
        self.write(step)
      self.step = step

  def show(self, step: int) -> None:
    """Shows the means over as many steps as a record has, without a record: an evaluation follows."""
    if self._latest:
      self._log.show(step, self._with_speed(summarize(functools.reduce(merge, self._latest), "train")))

  def _with_speed(self, of_replicas: Values) -> Values:
    if not self._steps:
      return of_replicas
    speed = self._steps / self._seconds
    values = {**of_replicas, "train/examples_per_second": speed * self._examples}
    return values if self._utilization is None else {**values, "train/mfu": speed * self._utilization}

  def write(self, step: int) -> None:
    """Writes the means since the last record, of each replica."""
    if self._total is None:
      return
    of_replicas = summarize(self._total, "train")
    self._log.write(step, self._with_speed(of_replicas))
    if self._guard is not None:
      self._guard.observe(self._recorded, of_replicas)
    self._total, self._recorded, self._steps, self._seconds = None, 0, 0, 0.0


def _to_json(pair: tuple[np.ndarray, np.ndarray] | InUnits) -> list[Json]:
  """Makes JSON of a sum and a count, `[replicas]` each, and of their unit, if any; its numbers are exact."""
  unit = [pair.unit] if isinstance(pair, InUnits) else []
  return [*(part.tolist() for part in pair), *unit]


def _to_arrays(sums: dict[str, list[Any]]) -> PyTree:
  """Reads the JSON of `_to_json` by metric."""
  return {name: _to_pair(*parts) for name, parts in sums.items()}


def _to_pair(
  total: list[float], count: list[float], unit: float | None = None
) -> tuple[np.ndarray, np.ndarray] | InUnits:
  pair = np.asarray(total, np.float64), np.asarray(count, np.float64)
  return pair if unit is None else InUnits(*pair, unit)
