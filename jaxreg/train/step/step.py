# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""One pure training step."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax

from jaxreg.train import keys
from jaxreg.train.step.extras import Extras
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Batch, Key, Metrics, ModelState, Objective, Params, PyTree

Descent = tuple[tuple[Array, tuple[ModelState, Metrics]], Params]  # of `jax.value_and_grad` of an objective
Gradient = Callable[..., Descent]


def _same(params: Params) -> Params:
  return params


def _scale(tree: PyTree, factor: Array) -> PyTree:
  def scaled(x: Array) -> Array:
    return x * factor

  return jax.tree.map(scaled, tree)


def _sum(tree: PyTree, axis_name: str) -> PyTree:
  return jax.lax.psum(tree, axis_name)


def _mean(tree: PyTree, axis_name: str) -> PyTree:
  def mean(x: Array) -> Array:
    # Counts and flags of a state are the same everywhere.
    return jax.lax.pmean(x, axis_name) if jnp.issubdtype(x.dtype, jnp.inexact) else x

  return jax.tree.map(mean, tree)


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
  gradient = jax.value_and_grad(objective, has_aux=True)
  if accumulate > 1:
    gradient = _accumulated(gradient, accumulate)

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
      (loss, (model_state, metrics)), grads = gradient(gather(params), state, batch, key)
      grads = scatter(grads)
      if axis_name is None:
        return (loss, (model_state, metrics)), grads
      # The sum comes after grad, not inside it: only this order is right under both pmap and vmap.
      count = metrics["loss"][1]
      total = _sum(count, axis_name)
      share = count / jnp.where(total > 0, total, 1)
      loss, grads = _sum(_scale((loss, grads), share), axis_name)
      return (loss, (_mean(model_state, axis_name), _sum(metrics, axis_name))), grads

    def gradient_at(params: Params) -> Params:
      return descent(params, keys.again(key))[1]

    (loss, (model_state, metrics)), grads = descent(state.params, key)
    updates, opt_state = optimizer.update(
      grads,
      state.opt_state,
      state.params,
      # For an optimizer that draws noise: the same key on every device.
      key=keys.optimizer(state.key, state.step),
      # For optimizers that evaluate other parameters, too: the same batch and the same noise.
      value=loss,
      grad=grads,
      grad_fn=gradient_at,
      value_fn=_value_fn(objective, gather, state, batch, key),
    )
    params = optax.apply_updates(state.params, updates)
    metrics |= {name: (norm, jnp.float32(1)) for name, norm in gradient_norms(grads).items()}
    metrics["learning_rate"] = (jnp.asarray(schedule(state.step), jnp.float32), jnp.float32(1))
    changes = {"params": params, "model_state": model_state, "opt_state": opt_state}
    new = state.replace(step=state.step + 1, **changes)
    return (new if extras is None else extras.update(state, new)), metrics

  return train_step


def gradient_norms(grads: Params) -> dict[str, Array]:
  """The norm of the gradient, and the norms of its parts: the backbone and each layer of the head."""
  norms = {"grad_norm": optax.tree.norm(grads)}
  if isinstance(grads, Mapping) and set(grads) == {"backbone", "head"}:
    parts: dict[str, Params] = {"backbone": grads["backbone"], **grads["head"]}
    norms |= {f"grad_norm_{name}": optax.tree.norm(part) for name, part in parts.items()}
  return norms


def _value_fn(
  objective: Objective, gather: Callable[[Params], Params], state: TrainState, batch: Batch, noise: Key
) -> Callable[..., Array]:
  def value_fn(params: Params, grad_fn: object = None, key: Key | None = None) -> Array:
    del grad_fn, key  # Optax's line search passes the arguments of `update` on.
    return objective(gather(params), state, batch, keys.again(noise))[0]

  return value_fn


def _accumulated(gradient: Gradient, parts: int) -> Gradient:
  """Accumulates `gradient` over `parts` microbatches, weighted by the examples' weights."""
  sums, means = optax.microbatching.AccumulationType.SUM, optax.microbatching.AccumulationType.MEAN

  def whole(params: Params, state: TrainState, batch: Batch, key: Key) -> Descent:
    number = len(batch["labels"])

    def one(batch: Batch, position: Array) -> tuple[PyTree, ModelState]:
      part_key = keys.numbered(key, position[0])
      (loss, (model_state, metrics)), grads = gradient(params, state, batch, part_key)
      count = metrics["loss"][1]
      return (_scale((loss, grads), count), metrics, count), jax.tree.map(_floating, model_state)

    loop = optax.microbatch(one, argnums=(0, 1), microbatch_size=number // parts, accumulator=(sums, means))
    ((loss, grads), metrics, count), model_state = loop(batch, jnp.arange(number))

    def divided(x: Array) -> Array:
      return x / jnp.where(count > 0, count, 1)

    loss, grads = jax.tree.map(divided, (loss, grads))
    return (loss, (jax.tree.map(_restored, model_state, state.model_state), metrics)), grads

  return whole


def _floating(x: Array) -> Array:
  # Counts and flags are the same after every part, so that their mean is exact.
  return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)


def _restored(mean: Array, old: Array) -> Array:
  return mean if jnp.issubdtype(old.dtype, jnp.inexact) else jnp.round(mean).astype(old.dtype)
