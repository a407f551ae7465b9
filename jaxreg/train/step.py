"""One pure training step and one pure evaluation step."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxreg.train.methods import Method
from jaxreg.train.metrics import prediction_metrics
from jaxreg.train.state import TrainState
from jaxreg.typing import ApplyFn, Array, Batch, Key, Objective


def make_train_step(
  objective: Objective, optimizer: optax.GradientTransformation, schedule: optax.Schedule
) -> Callable[..., tuple[TrainState, dict[str, Any]]]:
  """Builds `train_step(state, batch, *, axis_name=None) -> (state, metrics)`.

  Under `jit` over a sharded batch, losses and noise are those of the whole batch, on any number of devices.
  Under `pmap` or `vmap` with `axis_name` the batch is the device's own part: gradients and metrics are
  combined over the axis in proportion to the weights, and each device draws its own noise.
  """

  def train_step(state: TrainState, batch: Batch, *, axis_name: str | None = None):
    key = jax.random.fold_in(state.key, state.step)
    if axis_name is not None:
      key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
    gradient = jax.value_and_grad(objective, has_aux=True)
    (_, (model_state, metrics)), grads = gradient(state.params, state, batch, key)

    if axis_name is not None:
      # After grad, not inside it: the one order that is right under pmap and vmap alike.
      count = batch["weights"].sum()
      total = jax.lax.psum(count, axis_name)
      share = count / jnp.where(total > 0, total, 1)
      grads = jax.lax.psum(jax.tree.map(lambda g: g * share, grads), axis_name)
      model_state = jax.lax.pmean(model_state, axis_name)
      metrics = jax.lax.psum(metrics, axis_name)

    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    metrics["grad_norm"] = (optax.tree.norm(grads), jnp.float32(1))
    metrics["learning_rate"] = (jnp.asarray(schedule(state.step), jnp.float32), jnp.float32(1))
    state = state.replace(step=state.step + 1, params=params, model_state=model_state, opt_state=opt_state)
    return state, metrics

  return train_step


def prediction_key(state: TrainState, number: Array) -> Key:
  """The key of the predictions for batch `number`: none that a training step derives, of any step."""
  key = jax.random.fold_in(state.key, jnp.uint32(2**32 - 1))
  return jax.random.fold_in(jax.random.fold_in(key, state.step), number)


def make_eval_step(
  apply_fn: ApplyFn, method: Method, predict_options: Mapping[str, Any]
) -> Callable[[TrainState, Batch, Array], dict[str, Any]]:
  """Builds `eval_step(state, batch, number) -> metrics`; `number` of the batch varies sampled predictions."""

  def eval_step(state: TrainState, batch: Batch, number: Array) -> dict[str, Any]:
    key = prediction_key(state, number)
    outputs, _ = apply_fn(state.params, state.model_state, batch["inputs"], key=None, train=False)
    log_probs = method.predict(key, **outputs, **predict_options)
    return prediction_metrics(log_probs, batch["labels"], batch["weights"])

  return eval_step
