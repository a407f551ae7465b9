"""What the terms beside the loss see of a step: the batch without what does not count, and the network."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxreg.train.step.averages import Averaging
from jaxreg.train.step.methods import Method
from jaxreg.typing import ApplyFn, Array, Batch, Key


class Seen(NamedTuple):
  """The part of a batch that the loss sees.

  Attributes:
    inputs: 0 for an example whose weights are all 0.
    labels: integers `[batch]`; in a mixed batch probabilities `[batch, classes]`.
    weights: 0 also for examples without a label.
    all_weights: the weights of all examples, with a label or without.
  """

  inputs: Array
  labels: Array
  weights: Array
  all_weights: Array

  @property
  def mixed(self) -> bool:
    return jnp.issubdtype(self.labels.dtype, jnp.floating)

  @property
  def first_labels(self) -> Array:
    """The class with the largest share."""
    return self.labels.argmax(axis=-1) if self.mixed else self.labels


def seen_part(batch: Batch) -> Seen:
  """The part of a batch that counts, with zeros in place of the rest."""
  labels = batch["labels"]
  # An example of weight 0 may hold anything, even NaN; 0 * NaN must not reach the gradient.
  weights = all_weights = batch["weights"]
  if not jnp.issubdtype(labels.dtype, jnp.floating):
    weights = jnp.where(labels >= 0, weights, 0)
    labels = jnp.where(weights != 0, labels, 0)
  present = (all_weights != 0).any(axis=tuple(range(1, all_weights.ndim)))
  inputs = jnp.where(jnp.expand_dims(present, tuple(range(1, batch["inputs"].ndim))), batch["inputs"], 0)
  return Seen(inputs, labels, weights, all_weights)


@dataclasses.dataclass(frozen=True)
class View:
  """Everything that a term may ask of the network, at the parameters of the step.

  Attributes:
    inputs: `[batch, ...]`, floating, scaled.
    weights: `[batch]`, the weights of all examples, with a label or without.
    log_probs: `[batch, classes]`, from the pass that the loss sees.
    features: `[batch, ...]`, the input of the head in the same pass.
    noise: the key of the pass that the loss sees; None for a model with BatchNorm, because its training mode
      would mix the examples of the batch.
    loss_fn: `(inputs, noise) -> [batch]`, the method's loss; `noise=None` gives the loss in evaluation mode.
    log_probs_fn: `(inputs, noise) -> [batch, classes]`, likewise.
    teacher_fn: `inputs -> [batch, classes]`, log-probabilities under the averaged parameters and statistics,
      without noise and without gradient; None if the run averages no parameters.
    trained_fn: `(key, inputs) -> [batch, classes]`, log-probabilities of a trained run, without gradient; the
      key is for predictions that draw. None if no run is given.
    outputs: what the head returns in the loss's pass, by name, such as `logits` `[batch, classes]`.
  """

  inputs: Array
  weights: Array
  log_probs: Array
  features: Any
  noise: Key | None
  loss_fn: Callable[[Array, Key | None], Array]
  log_probs_fn: Callable[[Array, Key | None], Array]
  teacher_fn: Callable[[Array], Array] | None
  trained_fn: Callable[[Key, Array], Array] | None = None
  outputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def same_noise(self) -> Key | None:
    """The key of the noise in the loss's pass, cloned: its second use is intended."""
    return None if self.noise is None else jax.random.clone(self.noise)


def make_view_fn(
  apply_fn: ApplyFn,
  method: Method,
  predict_options: Mapping[str, Any],
  terms_of: Callable[[Key, Seen, Mapping[str, Any]], dict[str, Array]],
  *,
  features_fn: ApplyFn | None,
  average: Averaging | None,
  trained_fn: Callable[[Key, Array], Array] | None,
  scale: float,
) -> Callable[..., View]:
  """Builds `make_view(params, state, seen, outputs, apply_key, loss_key, mixing)`, for the example terms."""

  def make_view(params, state, seen, outputs, apply_key, loss_key, mixing) -> View:
    live = {"params": params, "model_state": state.model_state}

    def outputs_fn(x: Array, noise: Key | None, variables: Mapping[str, Any] = live) -> Any:
      train = noise is not None
      params, model_state = variables["params"], variables["model_state"]
      return apply_fn(params, model_state, x * scale, key=noise, train=train, **mixing)[0]

    def loss_fn(x: Array, noise: Key | None) -> Array:
      same_key = jax.random.clone(loss_key)
      values = terms_of(same_key, seen, outputs_fn(x, noise))
      return sum(values.values(), start=jnp.zeros(()))

    def log_probs_fn(x: Array, noise: Key | None, variables: Mapping[str, Any] = live) -> Array:
      # A random prediction rule draws with the loss's key.
      same_key = jax.random.clone(loss_key)
      return method.predict(same_key, **outputs_fn(x, noise, variables), **predict_options)

    features = None
    if features_fn is not None:
      # This repeats the loss's pass; the compiler merges the two.
      same_key = jax.random.clone(apply_key)
      features, _ = features_fn(params, state.model_state, seen.inputs, key=same_key, train=True, **mixing)
    teacher_fn = None
    if average is not None:
      teacher = average.params(state.extras["average"], live)
      teacher_fn = lambda x: jax.lax.stop_gradient(log_probs_fn(x, None, teacher))
    return View(
      inputs=seen.inputs / scale,
      weights=seen.all_weights,
      log_probs=method.predict(jax.random.clone(loss_key), **outputs, **predict_options),
      features=features,
      outputs=outputs,
      noise=None if state.model_state else jax.random.clone(apply_key),
      loss_fn=loss_fn,
      log_probs_fn=log_probs_fn,
      teacher_fn=teacher_fn,
      trained_fn=trained_fn,
    )

  return make_view
