"""The gradient of an objective, whole or from parts of the batch, and its combination over devices."""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from jaxreg.train import keys
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Batch, Key, Metrics, ModelState, Objective, Params, PyTree

Value = tuple[Array, tuple[ModelState, Metrics]]  # what an objective returns
Gradient = tuple[Value, Params]


def make_gradient(objective: Objective, parts: int = 1) -> Callable[..., Gradient]:
  """Builds an objective's value and gradient over `parts` microbatches, weighted by example weights."""
  value_and_grad = jax.value_and_grad(objective, has_aux=True)
  if parts == 1:
    return value_and_grad
  sums, means = optax.microbatching.AccumulationType.SUM, optax.microbatching.AccumulationType.MEAN

  def whole(params: Params, state: TrainState, batch: Batch, key: Key) -> Gradient:
    number = len(batch["labels"])

    def part(batch: Batch, position: Array) -> tuple[PyTree, ModelState]:
      part_key = keys.numbered(key, position[0])
      (loss, (model_state, metrics)), grads = value_and_grad(params, state, batch, part_key)
      count = metrics["loss"][1]

      def weighed(x: Array) -> Array:
        return x * count

      return (jax.tree.map(weighed, (loss, grads)), metrics, count), jax.tree.map(_floating, model_state)

    loop = optax.microbatch(part, argnums=(0, 1), microbatch_size=number // parts, accumulator=(sums, means))
    ((loss, grads), metrics, count), model_state = loop(batch, jnp.arange(number))

    def divided(x: Array) -> Array:
      return x / jnp.where(count > 0, count, 1)

    loss, grads = jax.tree.map(divided, (loss, grads))
    return (loss, (jax.tree.map(_restored, model_state, state.model_state), metrics)), grads

  return whole


def combined(value: Value, grads: Params, axis_name: str) -> Gradient:
  """Combines the values and gradients of the devices' parts into the whole batch's."""
  loss, (model_state, metrics) = value
  # The sum comes after grad, not inside it: only this order is right under both pmap and vmap.
  count = metrics["loss"][1]
  total = jax.lax.psum(count, axis_name)
  share = count / jnp.where(total > 0, total, 1)

  def weighed(x: Array) -> Array:
    return x * share

  def mean(x: Array) -> Array:
    # Counts and flags of a state are the same everywhere.
    return jax.lax.pmean(x, axis_name) if jnp.issubdtype(x.dtype, jnp.inexact) else x

  loss, grads = jax.lax.psum(jax.tree.map(weighed, (loss, grads)), axis_name)
  return (loss, (jax.tree.map(mean, model_state), jax.lax.psum(metrics, axis_name))), grads


def _floating(x: Array) -> Array:
  # Counts and flags are the same after every part, so that their mean is exact.
  return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)


def _restored(mean: Array, old: Array) -> Array:
  return mean if jnp.issubdtype(old.dtype, jnp.inexact) else jnp.round(mean).astype(old.dtype)
