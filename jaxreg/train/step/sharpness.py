"""The sharpness along the update of a step, and the noise of its gradient."""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxreg import flatness
from jaxreg._sharding import placed_like
from jaxreg.train import keys
from jaxreg.train.step.gradient import combined, make_gradient
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Batch, Key, Metrics, Objective, Params


def make_sharpness_step(
  objective: Objective, train_step: Callable[..., tuple[TrainState, Metrics]], *, accumulate: int = 1
) -> Callable[..., tuple[TrainState, Metrics]]:
  """Builds `sharpness_step`, which takes the arguments of `train_step` and returns the state as it was.

  Its metrics belong to the step that `train_step` would make: `flatness.update_sharpness` along its update,
  on the step's batch with the step's noise, and the two estimates of `flatness.gradient_noise_scale` from
  the gradients of the batch's even and odd examples. The quotient of their means over steps is the scale.
  """
  value_and_grad = make_gradient(objective, accumulate)

  def sharpness_step(
    state: TrainState,
    batch: Batch,
    *,
    axis_name: str | None = None,
    gather: Callable[[Params], Params] = _same,
    scatter: Callable[[Params], Params] = _same,
  ) -> tuple[TrainState, Metrics]:
    new, _ = train_step(state, batch, axis_name=axis_name, gather=gather, scatter=scatter)
    update = jax.tree.map(jnp.subtract, new.params, state.params)
    noise = keys.step(state.key, state.step)
    if axis_name is not None:
      noise = keys.device(noise, axis_name)

    def loss_fn(params: Params, batch: Batch, *, key: Key | None) -> Array:
      del key
      own = gather(params), state, batch, keys.again(noise)
      loss, (_, metrics) = objective(*own) if accumulate == 1 else value_and_grad(*own)[0]
      return loss if axis_name is None else _mean(loss, metrics["loss"][1], axis_name)

    sharpness = flatness.update_sharpness(loss_fn, state.params, update, batch)

    gradients, counts = [], []
    for half in _halves(batch):
      value, grads = value_and_grad(gather(state.params), state, half, keys.again(noise))
      grads = scatter(grads)
      if axis_name is not None:
        value, grads = combined(value, grads, axis_name)
      gradients.append(grads)
      counts.append(value[1][1]["loss"][1])
    stacked = jax.tree.map(_stacked, *gradients)
    scale = flatness.gradient_noise_scale(stacked, jnp.stack(counts))

    one = jnp.float32(1)
    # If the examples of one half do not count, the step says nothing about the noise.
    both = (jnp.stack(counts) > 0).all()
    measured: Metrics = {
      "critical_sharpness": (sharpness.critical, one),
      "directional_sharpness": (sharpness.directional, one),
      "normalized_sharpness": (sharpness.normalized, one),
      "noise_trace": (jnp.where(both, scale.trace, 0), both.astype(jnp.float32)),
      "squared_gradient": (jnp.where(both, scale.squared_norm, 0), both.astype(jnp.float32)),
    }
    return state, measured

  return sharpness_step


def _halves(batch: Batch) -> list[Batch]:
  """Returns the batch twice: once only the even examples count, once only the odd ones."""
  labels = batch["labels"]
  weights = batch["weights"] if "weights" in batch else jnp.ones_like(labels, jnp.float32)
  odd = jnp.arange(len(labels)) % 2
  odd = placed_like(jnp.broadcast_to(odd.reshape(-1, *(1,) * (weights.ndim - 1)), weights.shape), weights)
  return [{**batch, "weights": jnp.where(odd == number, weights, 0)} for number in (0, 1)]


def _mean(loss: Array, count: Array, axis_name: str) -> Array:
  """Averages the losses of the devices' parts, weighted by their counts."""
  total = jax.lax.psum(count, axis_name)
  return jax.lax.psum(loss * count, axis_name) / jnp.where(total > 0, total, 1)


def _stacked(*leaves: Array) -> Array:
  return jnp.stack(leaves)


def _same(params: Params) -> Params:
  return params
