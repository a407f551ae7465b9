# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""One pure training step."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax

from jaxreg.train import keys
from jaxreg.train.step.objective import Descent, make_gradient
from jaxreg.train.step.state import Extras, TrainState
from jaxreg.typing import Array, Batch, Key, Metrics, ModelState, Objective, Params


def _same(params: Params) -> Params:
  return params


def make_train_step(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  schedule: optax.Schedule,
  *,
  accumulate: int = 1,
  extras: Extras | None = None,
) -> Callable[..., tuple[TrainState, Metrics]]:
  """Builds `train_step(state, batch, *, axis_name=None, gather=..., scatter=...) -> (state, metrics)`.

  The metrics of the objective have `loss`, whose count says how much a part of the batch weighs.

  Under `jit` over a sharded batch, losses and noise belong to the whole batch, on any number of devices.
  Under `pmap` or `vmap` with `axis_name`, the batch is the device's own part. Gradients and metrics are then
  combined over the axis in proportion to the weights, and each device draws its own noise.

  With `accumulate`, the gradient is computed from `accumulate` parts of the batch, one after another. Losses
  still belong to the whole batch; each part has its own noise and its own BatchNorm moments.

  If the parameters of the state are split over devices, `gather(params)` lays them out for the objective, and
  `scatter(gradients)` lays the gradients out for the optimizer. Neither changes a value.
  """
  optimizer = optax.with_extra_args_support(optimizer)
  gradient = make_gradient(objective, accumulate)

  def train_step(
    state: TrainState,
    batch: Batch,
    *,
    axis_name: str | None = None,
    gather: Callable[[Params], Params] = _same,
    scatter: Callable[[Params], Params] = _same,
  ):
    key = keys.step(state.key, state.step)
    if axis_name is not None:
      key = keys.device(key, axis_name)

    def descent(params: Params, key: Key) -> Descent:
      """`((loss, (model state, metrics)), gradient)` of the batch."""
      value, grads = gradient(gather(params), state, batch, key)
      grads = scatter(grads)
      return (value, grads) if axis_name is None else _combined(value, grads, axis_name)

    noise = key  # for optimizers that evaluate other parameters, too: the same batch and the same noise

    def gradient_at(params: Params) -> Params:
      return descent(params, keys.again(noise))[1]

    def loss_at(params: Params, grad_fn: object = None, key: Key | None = None) -> Array:
      del grad_fn, key  # Optax's line search passes the arguments of `update` on.
      return objective(gather(params), state, batch, keys.again(noise))[0]

    (loss, (model_state, metrics)), grads = descent(state.params, key)
    updates, opt_state = optimizer.update(
      grads,
      state.opt_state,
      state.params,
      key=keys.optimizer(state.key, state.step),  # for noise in the update: the same on every device
      value=loss,
      grad=grads,
      grad_fn=gradient_at,
      value_fn=loss_at,
    )
    params = optax.apply_updates(state.params, updates)
    metrics |= {name: (norm, jnp.float32(1)) for name, norm in _gradient_norms(grads).items()}
    metrics["learning_rate"] = (jnp.asarray(schedule(state.step), jnp.float32), jnp.float32(1))
    changes = {"params": params, "model_state": model_state, "opt_state": opt_state}
    new = state.replace(step=state.step + 1, **changes)
    return (new if extras is None else extras.update(state, new)), metrics

  return train_step


def _combined(value: tuple[Array, tuple[ModelState, Metrics]], grads: Params, axis_name: str) -> Descent:
  """The value and the gradient of the whole batch, from those of the devices' parts."""
  loss, (model_state, metrics) = value
  # The sum comes after grad, not inside it: only this order is right under both pmap and vmap.
  count = metrics["loss"][1]
  total = jax.lax.psum(count, axis_name)
  share = count / jnp.where(total > 0, total, 1)

  def weighed(x: Array) -> Array:
    return x * share

  loss, grads = jax.lax.psum(jax.tree.map(weighed, (loss, grads)), axis_name)

  def mean(x: Array) -> Array:
    # Counts and flags of a state are the same everywhere.
    return jax.lax.pmean(x, axis_name) if jnp.issubdtype(x.dtype, jnp.inexact) else x

  return (loss, (jax.tree.map(mean, model_state), jax.lax.psum(metrics, axis_name))), grads


def _gradient_norms(grads: Params) -> dict[str, Array]:
  """The norm of the gradient, and the norms of its parts: the backbone and each layer of the head."""
  norms = {"grad_norm": optax.tree.norm(grads)}
  if isinstance(grads, Mapping) and set(grads) == {"backbone", "head"}:
    parts: dict[str, Params] = {"backbone": grads["backbone"], **grads["head"]}
    norms |= {f"grad_norm_{name}": optax.tree.norm(part) for name, part in parts.items()}
  return norms
