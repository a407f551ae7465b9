"""What the step minimises: the mean of a method's terms over the weighted examples of a batch."""

import functools
import inspect
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg.train.averages import Average
from jaxreg.train.methods import Method
from jaxreg.train.metrics import weighted
from jaxreg.train.terms import View
from jaxreg.train.toolbox import Term
from jaxreg.typing import ApplyFn, Array, Batch, Key, Objective, Params


def make_objective(
  apply_fn: ApplyFn,
  method: Method,
  loss_options: Mapping[str, Any],
  predict_options: Mapping[str, Any],
  augmentations: Sequence[Callable[[Key, Batch], Batch]] = (),
  penalties: Mapping[str, Callable[[Params, dict[str, Any]], Array]] | None = None,
  terms: Mapping[str, Term] | None = None,
  *,
  features_fn: ApplyFn | None = None,
  average: Average | None = None,
  scale: float = 1.0,
) -> Objective:
  """Builds `(params, state, batch, key) -> (loss, (model_state, metrics))`.

  A batch has `inputs` `[batch, ...]`, `labels` `[batch]` and `weights` `[batch]`; an example of weight 0 has
  no effect, one of label -1 is without a label. Labels and weights of sequences are `[batch, length]`, and a
  label of weight 0 has no effect. The augmentations are applied to it in their order; after one that mixes
  examples, the loss is the mean over the labels of the two, by their shares. The penalties
  `(params, extras) -> scalar` and the `terms`, which see the inputs divided by `scale` and what `features_fn`
  gives, are added to the mean over the examples. Every term is a metric, and the loss is their sum.
  """
  diagnose_options = {}
  if method.diagnose is not None:
    known = inspect.signature(method.diagnose).parameters
    diagnose_options = {name: value for name, value in loss_options.items() if name in known}

  def method_terms(key: Key, labels: Array, shares: Array | None, outputs: Mapping[str, Any]) -> Any:
    loss = functools.partial(method.loss, key, **outputs, **loss_options)
    if shares is None:
      return loss(labels=labels)
    each = jax.vmap(lambda labels: loss(labels=labels), in_axes=1, out_axes=1)(labels)
    return jax.tree.map(lambda values: (shares * values).sum(axis=1), each)

  def objective(params, state, batch, key):
    apply_key, loss_key, predict_key, augment_key = jax.random.split(key, 4)
    for number, augment in enumerate(augmentations):
      batch = augment(jax.random.fold_in(augment_key, number), batch)
    labels, shares = batch["labels"], None
    # What an example of weight 0 holds may be anything: it must not reach the gradient as 0 * NaN.
    weights = all_weights = batch["weights"]
    if jnp.issubdtype(labels.dtype, jnp.floating):
      shares, labels = jax.lax.top_k(labels, 2)
    else:
      weights = jnp.where(labels >= 0, weights, 0)
      labels = jnp.where(weights != 0, labels, 0)
    present = (all_weights != 0).any(axis=tuple(range(1, all_weights.ndim)))
    inputs = jnp.where(jnp.expand_dims(present, tuple(range(1, batch["inputs"].ndim))), batch["inputs"], 0)
    outputs, model_state = apply_fn(params, state.model_state, inputs, key=apply_key, train=True)
    values = method_terms(loss_key, labels, shares, outputs)
    metrics = {name: weighted(value, weights) for name, value in values.items()}
    count = weights.sum()
    # As if each example had it: so parts of a batch, and devices, add up to one penalty.
    for name, penalty in (penalties or {}).items():
      metrics[name] = (penalty(params, state.extras) * count, count)
    if terms:
      view = make_view(params, state, inputs, labels, shares, all_weights, outputs, apply_key, loss_key)
      for name, term in terms.items():
        term_key = jax.random.fold_in(augment_key, zlib.crc32(name.encode()))
        value = term.weight * term.function(term_key, view)
        if value.ndim:
          # A mean over its own examples, with the count of those that have labels.
          total, number = weighted(value, weights if term.needs_labels else all_weights)
          metrics[name] = (total * (count / jnp.where(number > 0, number, 1)), count)
        else:
          metrics[name] = (value * count, count)
    total = sum((total for total, _ in metrics.values()), start=jnp.zeros_like(count))
    loss = total / jnp.where(count > 0, count, 1)
    metrics["loss"] = (total, count)
    first = labels if shares is None else labels[:, 0]
    log_probs = method.predict(predict_key, **outputs, **predict_options)
    metrics["accuracy"] = weighted(log_probs.argmax(axis=-1) == first, weights)
    if method.diagnose is not None:
      # The loss's own key: what is reported is what the loss drew.
      same_key = jax.random.clone(loss_key)
      diagnostics = method.diagnose(same_key, labels=first, **outputs, **diagnose_options)
      metrics |= {name: weighted(value, weights) for name, value in diagnostics.items()}
    return loss, (model_state, jax.lax.stop_gradient(metrics))

  def make_view(params, state, inputs, labels, shares, weights, outputs, apply_key, loss_key) -> View:
    def outputs_fn(params: Params, x: Array, noise: Key | None) -> Any:
      return apply_fn(params, state.model_state, x * scale, key=noise, train=noise is not None)[0]

    def loss_fn(x: Array, noise: Key | None) -> Array:
      same_key = jax.random.clone(loss_key)
      values = method_terms(same_key, labels, shares, outputs_fn(params, x, noise))
      return sum(values.values(), start=jnp.zeros(()))

    def log_probs_fn(x: Array, noise: Key | None, params: Params = params) -> Array:
      # Drawn as the loss draws, if the prediction draws at all.
      same_key = jax.random.clone(loss_key)
      return method.predict(same_key, **outputs_fn(params, x, noise), **predict_options)

    features = None
    if features_fn is not None:
      # The pass of the loss once more, which the compiler makes once.
      same_key = jax.random.clone(apply_key)
      features, _ = features_fn(params, state.model_state, inputs, key=same_key, train=True)
    teacher_fn = None
    if average is not None:
      kept = {"params": params, "model_state": state.model_state}
      teacher = average.params(state.extras["average"], kept)["params"]
      teacher_fn = lambda x: jax.lax.stop_gradient(log_probs_fn(x, None, teacher))
    return View(
      inputs=inputs / scale,
      weights=weights,
      log_probs=method.predict(jax.random.clone(loss_key), **outputs, **predict_options),
      features=features,
      noise=None if state.model_state else jax.random.clone(apply_key),
      loss_fn=loss_fn,
      log_probs_fn=log_probs_fn,
      teacher_fn=teacher_fn,
    )

  return objective
