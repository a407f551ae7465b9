"""One training step, from a stored batch to the next state.

`make_objective` augments a batch, makes its examples, and evaluates the forward pass and the regularizers,
which are composed once. `make_train_step` differentiates it and updates the parameters.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxreg import objective as objectives
from jaxreg._sums import weighted
from jaxreg.train import keys
from jaxreg.train.step.batch import by_class, make_examples
from jaxreg.train.step.forward import Forward, Pass
from jaxreg.train.step.gradient import Gradient, combined, make_gradient
from jaxreg.train.step.state import Extras, TrainState
from jaxreg.train.step.targets import CLASSES, Target
from jaxreg.typing import Array, Batch, Key, Metrics, ModelState, Objective, Params


def make_objective(
  forward: Forward,
  regularizers: Mapping[str, Any] | None = None,
  *,
  augmentations: Sequence[Callable[[Key, Batch], Batch]] = (),
  extras: Extras | None = None,
  scale: float = 1.0,
  target: Target = CLASSES,
  class_weights: Array | None = None,
) -> Objective:
  """Builds `(params, state, batch, key) -> (loss, (model_state, metrics))`.

  A batch has stored `inputs` `[batch, ...]`, `labels` `[batch]` and perhaps `weights` `[batch]`. An example
  of weight 0 has no effect, but is an example of zeros for the statistics of batches. Label -1 means no
  label. Labels and weights of sequences are `[batch, length]`, and a label of weight 0 has no effect.

  The loss is the weighted mean of the forward pass's terms plus the `regularizers`. Every term is a metric.
  `scale` divides the inputs. `class_weights` `[classes]` multiply the weights of the examples in the loss.
  """
  loss_fn = objectives.compose(
    forward, regularizers or {}, has_aux=True, with_metrics=True, weights_fn=label_weights
  )

  def objective(
    params: Params, state: TrainState, batch: Batch, key: Key
  ) -> tuple[Array, tuple[ModelState, Metrics]]:
    # 1. Augment the stored batch.
    draws = keys.streams(key)
    with jax.named_scope("augment"):
      for number, augment in enumerate(augmentations):
        batch = augment(keys.numbered(draws.augmentation, number), batch)

      # 2. Make the examples: floating inputs, labels, weights.
      examples = make_examples(batch, scale, numbers=target.numbers)
    weights = examples.label_weights
    if class_weights is not None:
      examples = by_class(examples, class_weights)

    # 3. The forward pass with the method's terms, then the regularizers, which may run it again.
    loss_batch = {
      "inputs": examples.inputs,
      "examples": examples,
      "state": state,
      "model_state": state.model_state,
      "averaged": None if extras is None else extras.averaged(state),
      "loss_key": draws.loss,
      "predict_key": draws.prediction,
    }
    with jax.named_scope("loss"):  # the network inside is in the scope `forward`
      loss, (aux, metrics) = loss_fn(params, loss_batch, key=draws.network)

    # 4. What is only logged.
    passed: Pass = aux
    metrics |= target.in_units({name: weighted(value, weights) for name, value in passed.logged.items()})
    return loss, (passed.model_state, jax.lax.stop_gradient(metrics))

  return objective


def make_train_step(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  schedule: optax.Schedule,
  *,
  accumulate: int = 1,
  extras: Extras | None = None,
) -> Callable[..., tuple[TrainState, Metrics]]:
  """Builds `train_step(state, batch, *, axis_name=None, gather=..., scatter=...) -> (state, metrics)`.

  Under `jit` over a sharded batch, losses and noise belong to the whole batch, on any number of devices.
  Under `pmap` or `vmap` with `axis_name`, the batch is the device's own part. Gradients and metrics are then
  combined over the axis in proportion to the weights, and each device draws its own noise.

  With `accumulate`, the gradient is computed from `accumulate` parts of the batch, one after another. Losses
  still belong to the whole batch; each part has its own noise and its own BatchNorm moments.

  If the parameters of the state are split over devices, `gather(params)` lays them out for the objective, and
  `scatter(gradients)` lays the gradients out for the optimizer. Neither changes a value.
  """
  optimizer = optax.with_extra_args_support(optimizer)
  value_and_grad = make_gradient(objective, accumulate)

  def train_step(
    state: TrainState,
    batch: Batch,
    *,
    axis_name: str | None = None,
    gather: Callable[[Params], Params] = _same,
    scatter: Callable[[Params], Params] = _same,
  ) -> tuple[TrainState, Metrics]:
    # Seed and step determine every draw.
    key = keys.step(state.key, state.step)
    if axis_name is not None:
      key = keys.device(key, axis_name)

    # 1. The loss and its gradient.
    noise = key

    def gradient_at(params: Params) -> Gradient:
      value, grads = value_and_grad(gather(params), state, batch, keys.again(noise))
      grads = scatter(grads)
      return (value, grads) if axis_name is None else combined(value, grads, axis_name)

    (loss, (model_state, metrics)), grads = gradient_at(state.params)

    # 2. The update. Some optimizers evaluate other parameters, too, on the same batch with the same noise.
    def grad_fn(params: Params) -> Params:
      return gradient_at(params)[1]

    def value_fn(params: Params, grad_fn: object = None, key: Key | None = None) -> Array:
      del grad_fn, key  # Optax's line search passes the arguments of `update` on, by name.
      return objective(gather(params), state, batch, keys.again(noise))[0]

    with jax.named_scope("update"):
      updates, opt_state = optimizer.update(
        grads,
        state.opt_state,
        state.params,
        key=keys.optimizer(state.key, state.step),  # for noise in the update: the same on every device
        value=loss,
        grad=grads,
        grad_fn=grad_fn,
        value_fn=value_fn,
      )
      params = optax.apply_updates(state.params, updates)
      new = state.replace(step=state.step + 1, params=params, model_state=model_state, opt_state=opt_state)
      if extras is not None:
        new = extras.update(state, new)

    # 3. Metrics, as sums and counts.
    metrics |= {name: (norm, jnp.float32(1)) for name, norm in _gradient_norms(grads).items()}
    metrics["learning_rate"] = (jnp.asarray(schedule(state.step), jnp.float32), jnp.float32(1))
    return new, metrics

  return train_step


def label_weights(batch: Mapping[str, Any]) -> Array:
  """Returns the weights of the labels; an example without a label has weight 0."""
  return batch["examples"].label_weights


def _gradient_norms(grads: Params) -> dict[str, Array]:
  """Computes the norms of the gradient, and of its parts: the backbone and each layer of the head."""
  norms = {"grad_norm": optax.tree.norm(grads)}
  if isinstance(grads, Mapping) and set(grads) == {"backbone", "head"}:
    parts: dict[str, Params] = {"backbone": grads["backbone"], **grads["head"]}
    norms |= {f"grad_norm_{name}": optax.tree.norm(part) for name, part in parts.items()}
  return norms


def _same(params: Params) -> Params:
  return params
