"""What the step minimises: the mean of a method's terms over the weighted examples of a batch."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg.train.methods import Method
from jaxreg.train.metrics import weighted
from jaxreg.typing import ApplyFn, Array, Batch, Key, Objective, Params


def make_objective(
  apply_fn: ApplyFn,
  method: Method,
  loss_options: Mapping[str, Any],
  predict_options: Mapping[str, Any],
  augmentations: Sequence[Callable[[Key, Batch], Batch]] = (),
  penalties: Mapping[str, Callable[[Params], Array]] | None = None,
) -> Objective:
  """Builds `(params, state, batch, key) -> (loss, (model_state, metrics))`.

  A batch has `inputs` `[batch, ...]`, `labels` `[batch]` and `weights` `[batch]`; an example of weight 0 has
  no effect. Labels and weights of sequences are `[batch, length]`, and a label of weight 0 has no effect. The
  augmentations are applied to it in their order. The penalties, with their weights in them, are added to the
  mean over the examples. Every term is a metric, and the loss is their sum.
  """
  diagnose_options = {}
  if method.diagnose is not None:
    known = inspect.signature(method.diagnose).parameters
    diagnose_options = {name: value for name, value in loss_options.items() if name in known}

  def objective(params, state, batch, key):
    apply_key, loss_key, predict_key, augment_key = jax.random.split(key, 4)
    for number, augment in enumerate(augmentations):
      batch = augment(jax.random.fold_in(augment_key, number), batch)
    # What an example of weight 0 holds may be anything: it must not reach the gradient as 0 * NaN.
    weights = batch["weights"]
    counts = weights != 0
    labels = jnp.where(counts, batch["labels"], 0)
    present = counts.any(axis=tuple(range(1, counts.ndim)))
    inputs = jnp.where(jnp.expand_dims(present, tuple(range(1, batch["inputs"].ndim))), batch["inputs"], 0)
    outputs, model_state = apply_fn(params, state.model_state, inputs, key=apply_key, train=True)
    terms = method.loss(loss_key, labels=labels, **outputs, **loss_options)
    metrics = {name: weighted(term, weights) for name, term in terms.items()}
    count = weights.sum()
    # As if each example had it: so parts of a batch, and devices, add up to one penalty.
    for name, penalty in (penalties or {}).items():
      metrics[name] = (penalty(params) * count, count)
    total = sum((total for total, _ in metrics.values()), start=jnp.zeros_like(count))
    loss = total / jnp.where(count > 0, count, 1)
    metrics["loss"] = (total, count)
    log_probs = method.predict(predict_key, **outputs, **predict_options)
    metrics["accuracy"] = weighted(log_probs.argmax(axis=-1) == labels, weights)
    if method.diagnose is not None:
      # The loss's own key: what is reported is what the loss drew.
      same_key = jax.random.clone(loss_key)
      diagnostics = method.diagnose(same_key, labels=labels, **outputs, **diagnose_options)
      metrics |= {name: weighted(value, weights) for name, value in diagnostics.items()}
    return loss, (model_state, jax.lax.stop_gradient(metrics))

  return objective
