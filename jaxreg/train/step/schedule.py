"""Learning rates over a run: their shapes, and the warm-up before them."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import collections

import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg.train.entries import Chosen
from jaxreg.typing import Array


def constant(learning_rate: float) -> optax.Schedule:
  """Keeps the rate at every step."""
  return optax.constant_schedule(learning_rate)


def step(
  learning_rate: float,
  *,
  warmup: int,
  num_steps: int,
  steps_per_epoch: int,
  boundaries: tuple[float, ...] = (),
  factor: float = 0.1,
  relative: bool = False,
) -> optax.Schedule:
  """Lowers the rate at each boundary.

  Args:
    boundaries: epochs at which the rate falls.
    factor: factor of the rate at each boundary.
    relative: boundaries are fractions of the run instead of epochs.
  """
  unit = num_steps if relative else steps_per_epoch
  # The joined schedule starts counting after the warm-up; boundaries may coincide in short runs.
  at = collections.Counter(round(boundary * unit) - warmup for boundary in boundaries)
  return optax.piecewise_constant_schedule(
    learning_rate, {start: factor**times for start, times in at.items()}
  )


def cosine(learning_rate: float, *, warmup: int, num_steps: int, final: float = 0.0) -> optax.Schedule:
  """Lowers the rate to the end of the run along half a cosine.

  Args:
    final: the last rate, as a fraction of the largest.
  """
  return optax.cosine_decay_schedule(learning_rate, max(num_steps - warmup, 1), alpha=final)


def noam(learning_rate: float, *, d_model: int = 50, warmup_steps: int = 4000) -> optax.Schedule:
  """Computes `learning_rate * d_model**-0.5 * min(t**-0.5, t * warmup_steps**-1.5)` at `t = step + 1`.

  Args:
    d_model: width of the transformer, which scales the rate.
    warmup_steps: steps of the linear warm-up.

  References:
    Vaswani et al., `Attention Is All You Need`, 2017, Eq. 3.
  """
  scale = learning_rate * d_model**-0.5

  def schedule(step: ArrayLike) -> Array:
    t = jnp.asarray(step, jnp.float32) + 1
    return scale * jnp.minimum(t**-0.5, t * warmup_steps**-1.5)

  return schedule


def make_schedule(
  shape: Chosen, learning_rate: float, *, steps_per_epoch: int, num_steps: int, warmup_epochs: float = 0.0
) -> optax.Schedule:
  """Makes the learning rate a function of the step: a linear warm-up from 0, then the shape.

  `shape` is one of the functions above with its options. `learning_rate` is its peak, or
  the factor of `noam`.
  """
  warmup = round(warmup_epochs * steps_per_epoch)
  known = {"warmup": warmup, "num_steps": num_steps, "steps_per_epoch": steps_per_epoch}
  schedule = shape.bound(**known)(learning_rate)
  if not warmup:
    return schedule
  return optax.join_schedules([optax.linear_schedule(0.0, learning_rate, warmup), schedule], [warmup])
