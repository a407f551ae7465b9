"""Reads the metrics of each step one step late, so that the device never waits for the host."""

import math
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg.train.errors import RunError
from jaxreg.train.log import Log
from jaxreg.train.metrics import merge, summarize
from jaxreg.typing import Array


class Recorder:
  """Adds up the metrics of the steps and writes their means every so many steps.

  Queueing many steps without reading any result can also hang several simulated devices: another reason to
  stay exactly one step behind.
  """

  def __init__(self, log: Log, *, every: int, batch_size: int):
    self._log, self._every, self._batch_size = log, every, batch_size
    self._pending: tuple[int, Any] | None = None
    self._total: Any = None
    self._steps, self._since = 0, time.monotonic()

  def add(self, step: int, metrics: dict[str, Any]) -> None:
    """Takes the metrics of a step that was just dispatched, and reads those of the one before."""
    self.flush()
    self._pending = (step, metrics)

  def flush(self) -> None:
    """Reads what is pending.

    Raises:
      RunError: if the loss or the gradient of that step is not finite, naming the step and the terms.
    """
    if self._pending is None:
      return
    (step, metrics), self._pending = self._pending, None
    metrics = jax.device_get(metrics)
    check_finite(step, {name: total / count for name, (total, count) in metrics.items() if count})
    self._total = merge(self._total, metrics)
    self._steps += 1
    self._log.step()
    if step % self._every == 0:
      self.write(step)

  def write(self, step: int) -> None:
    """Writes the means since the last record, if there were steps since."""
    if self._steps:
      speed = self._steps * self._batch_size / (time.monotonic() - self._since)
      self._log.write(step, {**summarize(self._total, "train"), "train/examples_per_second": speed})
      self._total, self._steps, self._since = None, 0, time.monotonic()


@jax.jit
def largest(tree: Any) -> Array:
  """The largest absolute value in a tree; NaN or infinite if there is one such."""
  leaves = [jnp.abs(x).max().astype(jnp.float32) for x in jax.tree.leaves(tree) if jnp.size(x)]
  return jnp.max(jnp.stack(leaves)) if leaves else jnp.float32(0)


def check_finite(step: int, values: Mapping[str, Any]) -> None:
  """Stops the run if a value is NaN or infinite; the checkpoint before stays the last.

  Raises:
    RunError: naming the step and the values.
  """
  values = {name: float(value) for name, value in values.items()}
  if not all(math.isfinite(value) for value in values.values()):
    shown = ", ".join(f"{name} = {value:g}" for name, value in values.items() if not math.isfinite(value))
    raise RunError(
      f"step {step}: {shown}; stopped, the last good checkpoint is kept: "
      "a lower optimizer.learning_rate or optimizer.clip_norm may help"
    )
