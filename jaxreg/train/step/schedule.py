"""Learning rates over a run, from options."""

import collections

import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg.typing import Array

SCHEDULES = ("constant", "step", "cosine", "noam")


def make_schedule(
  name: str,
  learning_rate: float,
  *,
  steps_per_epoch: int,
  num_steps: int,
  warmup_epochs: float = 0.0,
  boundaries: tuple[float, ...] = (),
  factor: float = 0.1,
  relative: bool = False,
  final: float = 0.0,
  d_model: int = 50,
  warmup_steps: int = 4000,
) -> optax.Schedule:
  """The learning rate as a function of the step.

  Args:
    name: `constant`, `step`, `cosine` or `noam`, which is
      `learning_rate * d_model**-0.5 * min(t**-0.5, t * warmup_steps**-1.5)` at `t = step + 1`.
    learning_rate: the peak of the schedule; for `noam`, a factor.
    steps_per_epoch: translates epochs into steps.
    num_steps: the length of the run.
    warmup_epochs: the epochs of a linear increase from 0, before the rest of the schedule.
    boundaries: for `step`, the epochs at which the rate is multiplied by `factor`; with `relative`, the
      fractions of the run.
    factor: for `step`, the factor of the rate at each boundary.
    relative: for `step`, whether boundaries are fractions of the run.
    final: for `cosine`, the last learning rate as a fraction of the peak.
    d_model: for `noam`, the width of the model.
    warmup_steps: for `noam`, the steps of its linear increase, instead of `warmup_epochs`.

  Returns:
    An Optax schedule, `step -> learning rate`.

  References:
    Vaswani et al., `Attention Is All You Need`, 2017, Eq. 3 (`noam`).
  """
  warmup = round(warmup_epochs * steps_per_epoch)
  if name == "constant":
    schedule = optax.constant_schedule(learning_rate)
  elif name == "cosine":
    schedule = optax.cosine_decay_schedule(learning_rate, max(num_steps - warmup, 1), alpha=final)
  elif name == "noam":
    schedule = _noam(learning_rate * d_model**-0.5, warmup_steps)
  else:
    unit = num_steps if relative else steps_per_epoch
    # The joined schedule below starts counting after the warm-up; boundaries may coincide in short runs.
    at = collections.Counter(round(boundary * unit) - warmup for boundary in boundaries)
    scales = {boundary: factor**times for boundary, times in at.items()}
    schedule = optax.piecewise_constant_schedule(learning_rate, scales)
  if not warmup:
    return schedule
  return optax.join_schedules([optax.linear_schedule(0.0, learning_rate, warmup), schedule], [warmup])


def _noam(scale: float, warmup_steps: int) -> optax.Schedule:
  def schedule(step: ArrayLike) -> Array:
    t = jnp.asarray(step, jnp.float32) + 1
    return scale * jnp.minimum(t**-0.5, t * warmup_steps**-1.5)

  return schedule
