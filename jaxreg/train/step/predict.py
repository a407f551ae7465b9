# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
"""The predictions of a state, and the metrics of these predictions."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxreg.train import keys
from jaxreg.train.lookup import Options
from jaxreg.train.step.batch import Examples, make_examples
from jaxreg.train.step.extras import Extras
from jaxreg.train.step.head_outputs import Passed
from jaxreg.train.step.methods import Method
from jaxreg.train.step.metrics import Sums
from jaxreg.train.step.network_view import Outputs
from jaxreg.train.step.state import TrainState
from jaxreg.train.step.targets import CLASSES, Target
from jaxreg.typing import ApplyFn, Array, Batch, Key

COMBINE = ("arithmetic", "geometric", "weight_scaling")


def make_predict_fn(
  apply_fn: ApplyFn,
  method: Method,
  predict_options: Options,
  *,
  mc_samples: int = 0,
  combine: str = "arithmetic",
  mirror: bool = False,
  extras: Extras | None = None,
  target: Target = CLASSES,
) -> Callable[[TrainState, Array, Key], Array]:
  """Builds `predict_fn(state, inputs, key) -> predictions`, as `target` describes them.

  With `mc_samples` above 0, a prediction is the mean of the probabilities over `mc_samples` draws of the
  training's noise, arithmetic or geometric as `combine` says. With 0, or
  `weight_scaling`, the noise has its mean value, which for dropout is the weight scaling rule.

  Where the average of `extras` draws parameters, as SWAG does, a prediction is the mean of the probabilities
  over its draws. A state without an average predicts with its own parameters.

  With `mirror`, the inputs are images, `[batch, height, width, channels]`. A prediction is the mean of the
  probabilities of an image and of its mirror image, by the same draws.
  """
  drawn, samples = (None, 0) if extras is None else (extras.draw, extras.average.samples)

  def once(state: TrainState, inputs: Array, noise_key: Key | None, key: Key) -> Array:
    noisy = noise_key is not None
    outputs, _ = apply_fn(state.params, state.model_state, inputs, key=noise_key, train=noisy)
    return target.original(method.predict(key, **outputs, **predict_options))

  def predict_fn(state: TrainState, inputs: Array, key: Key) -> Array:
    if drawn is not None and "average" in state.extras:
      draw_params = drawn

      def of_a_draw(key: Key) -> Array:
        for_params, for_rule = jax.random.split(key)
        return once(draw_params(state, for_params), inputs, None, for_rule)

      return target.mean(jax.lax.map(of_a_draw, jax.random.split(key, samples)))
    if not mc_samples:
      return once(state, inputs, None, key)
    if state.model_state:
      raise ValueError(
        "mc_samples must be 0 for a model with BatchNorm or spectral normalisation: noise needs "
        "the training mode, which changes their statistics"
      )

    def noisy(key: Key) -> Array:
      return once(state, inputs, *jax.random.split(key))

    return target.mean(jax.lax.map(noisy, jax.random.split(key, mc_samples)), combine)

  def of_both(state: TrainState, inputs: Array, key: Key) -> Array:
    return target.mean(jnp.stack([predict_fn(state, x, key) for x in (inputs, inputs[:, :, ::-1])]))

  return of_both if mirror else predict_fn


def make_predict_step(
  predict_fn: Callable[[TrainState, Array, Key], Array], scale: float, target: Target = CLASSES
) -> Callable[[TrainState, Batch, Array], Array]:
  """Builds `predict_step(state, batch, number) -> predictions`; each batch `number` has draws of its own."""

  def predict_step(state: TrainState, batch: Batch, number: Array) -> Array:
    inputs = make_examples(batch, scale, target.standard).inputs
    return predict_fn(state, inputs, keys.prediction(state.key, state.step, number))

  return predict_step


def make_chunked_eval_step(
  values_fn: Callable[..., Passed], method: Method, predict_options: Options, scale: float
) -> Callable[[TrainState, Batch, Array], Sums]:
  """Builds the `eval_step` of single predictions of classes, of a chunk of the labels at a time."""

  def eval_step(state: TrainState, batch: Batch, number: Array) -> Sums:
    def sums(draws: tuple[Key], examples: Examples, outputs: Outputs) -> Sums:
      return CLASSES.metrics(method.predict(*draws, **outputs, **predict_options), examples)

    draws = (keys.prediction(state.key, state.step, number),)
    given = state.params, state.model_state, make_examples(batch, scale)
    return values_fn(sums, draws, *given, key=None, train=False, total=True)[0]

  return eval_step


def make_eval_step(
  predict_step: Callable[[TrainState, Batch, Array], Array], scale: float, target: Target = CLASSES
) -> Callable[[TrainState, Batch, Array], Sums]:
  """Builds `eval_step(state, batch, number) -> metrics`, the metrics of `predict_step`'s predictions."""

  def eval_step(state: TrainState, batch: Batch, number: Array) -> Sums:
    examples = make_examples(batch, scale, target.standard)
    return target.metrics(predict_step(state, batch, number), examples)

  return eval_step
