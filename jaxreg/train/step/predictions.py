"""The predictions of a state, and the metrics of these predictions."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxreg.train import keys
from jaxreg.train.methods.method import Method
from jaxreg.train.step.batch import make_examples
from jaxreg.train.step.forward import make_chunked_eval
from jaxreg.train.step.metrics import Sums
from jaxreg.train.step.network import Network
from jaxreg.train.step.state import Extras, TrainState
from jaxreg.train.step.targets import Target
from jaxreg.typing import Array, Batch, Key

PredictFn = Callable[[TrainState, Array, Key], Array]
PredictStep = Callable[[TrainState, Batch, Array], Array]
EvalStep = Callable[[TrainState, Batch, Array], Sums]


def make_predictions(
  network: Network,
  method: Method,
  extras: Extras,
  target: Target,
  scale: float,
  *,
  mc_samples: int,
  combine: str,
  mirror: bool,
  chunk_size: int,
) -> tuple[PredictFn, PredictStep, EvalStep]:
  """Builds `predict_fn`, `predict_step` and `eval_step` of a `Program`; `target` describes predictions.

  With `mc_samples` above 0, a prediction is the mean of the probabilities over `mc_samples` draws of the
  training's noise, arithmetic or geometric as `combine` says. With 0, or `weight_scaling`, the noise has its
  mean value, which for dropout is the weight scaling rule. BatchNorm uses its running averages.

  Where the average of `extras` draws parameters, as SWAG does, a prediction is the mean of the probabilities
  over its draws. A state without an average predicts with its own parameters.

  With `mirror`, the inputs are images, `[batch, height, width, channels]`. A prediction is the mean of the
  probabilities of an image and of its mirror image, by the same draws.

  With a `chunk_size` above 0, single predictions of classes are evaluated by chunks of the labels.
  """
  draw, samples = extras.draw, extras.average.samples

  def once(state: TrainState, inputs: Array, noise_key: Key | None, key: Key) -> Array:
    noisy = noise_key is not None
    outputs, _ = network.apply(
      state.params, state.model_state, inputs, key=noise_key, train=noisy, use_running_average=noisy
    )
    return method.predicted(key, outputs)

  def predict_one(state: TrainState, inputs: Array, key: Key) -> Array:
    if draw is not None and "average" in state.extras:
      draw_params = draw

      def predict_draw(key: Key) -> Array:
        for_params, for_rule = jax.random.split(key)
        return once(draw_params(state, for_params), inputs, None, for_rule)

      return target.mean(jax.lax.map(predict_draw, jax.random.split(key, samples)))
    if not mc_samples:
      return once(state, inputs, None, key)

    def noisy(key: Key) -> Array:
      return once(state, inputs, *jax.random.split(key))

    return target.mean(jax.lax.map(noisy, jax.random.split(key, mc_samples)), combine)

  def predict_mirrored(state: TrainState, inputs: Array, key: Key) -> Array:
    return target.mean(jnp.stack([predict_one(state, x, key) for x in (inputs, inputs[:, :, ::-1])]))

  predict_fn = predict_mirrored if mirror else predict_one

  def predict_step(state: TrainState, batch: Batch, number: Array) -> Array:
    inputs = make_examples(batch, scale, numbers=target.numbers).inputs
    return predict_fn(state, inputs, keys.prediction(state.key, state.step, number))

  def eval_step(state: TrainState, batch: Batch, number: Array) -> Sums:
    examples = make_examples(batch, scale, numbers=target.numbers)
    return target.metrics(predict_step(state, batch, number), examples)

  if not chunk_size or mc_samples or mirror or draw is not None:
    return predict_fn, predict_step, eval_step
  chunked = make_chunked_eval(network, method, target, chunk_size=chunk_size)

  def chunked_eval_step(state: TrainState, batch: Batch, number: Array) -> Sums:
    key = keys.prediction(state.key, state.step, number)
    return chunked(state.params, state.model_state, make_examples(batch, scale), key)

  return predict_fn, predict_step, chunked_eval_step
