"""`evaluate.measures=('laplace',)`: how sure a trained network is of its last layer's weights."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg import calibration, ensembles, models
from jaxreg.train.data.placement import Source, gather
from jaxreg.train.errors import RunError
from jaxreg.train.jobs.flatness.network_at_point import intercept
from jaxreg.train.run.whole_split import batches
from jaxreg.train.step import method_adapters
from jaxreg.train.step.batch import Examples
from jaxreg.train.step.metrics import summarize
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState
from jaxreg.train.step.targets import Numbers
from jaxreg.typing import Array

Arrays = dict[str, Array]

PRECISIONS = np.logspace(-2, 4, 13)


def check_last_layer(program: Program) -> None:
  """Checks that the run's predictions are one linear layer of one set of weights, or its softmax."""
  head, rule = program.model.head, program.method.predict
  if program.extras.draw is not None:
    raise RunError("evaluate.measures: laplace needs one set of weights, but average.name draws several")
  softmax = isinstance(head, models.SoftmaxHead) and rule is method_adapters.predict_softmax
  if not softmax and not isinstance(head, models.RegressionHead):
    raise RunError(
      "evaluate.measures: laplace needs one linear layer or its softmax, as method.name=softmax or "
      f"squared_error has it, got {program.name}"
    )


def laplace_measures(
  program: Program, mesh: jax.sharding.Mesh, state: TrainState, sources: dict[str, Source], batch_size: int
) -> dict[str, Any]:
  """What predictions under the posterior of the last layer reach, and the prior's precision.

  The posterior is `ensembles.laplace_posterior` with Kronecker factors of the training examples, without
  augmentation or noise. It takes the precision of `PRECISIONS` with the lowest NLL on the validation split.
  The measures are error, NLL and ECE. Where labels are numbers, they are the NLPD and the coverage and width
  of intervals; the noise has the variance of the training errors.

  Args:
    sources: `train`, `val`, and `shown`, the split to measure.
  """
  last_layer = _make_last_layer(program, mesh)
  state = program.predicting(state)
  batches_of = lambda name: (
    last_layer(state, sources[name].arrays, batch) for batch in batches(sources[name], batch_size, mesh)
  )
  layer = {name: _joined(batches_of(name), len(sources[name])) for name in ("val", "shown")}
  numbers = isinstance(program.target, Numbers)
  noise: Any = _noise(_joined(batches_of("train"), len(sources["train"]))) if numbers else None
  curvature = jax.jit(
    functools.partial(ensembles.laplace_curvature, structure="kronecker", noise_variance=noise)
  )
  sums = (
    curvature(features, outputs, weights=weights) for features, outputs, weights, _ in batches_of("train")
  )
  total = functools.reduce(calibration.merge, sums, None)
  # The directions are the same for every precision, so they are computed once.
  of_1 = ensembles.laplace_posterior(total, precision=1.0)

  def metrics(name: str, precision: float) -> dict[str, float]:
    features, outputs, weights, labels = map(jnp.asarray, layer[name])
    posterior = of_1._replace(variances=1 / (1 / of_1.variances - 1 + precision))
    variance = ensembles.laplace_variance(posterior, features)
    if isinstance(program.target, Numbers):
      target = dataclasses.replace(program.target, predicts="moments")
      moments = target.original(jnp.stack([outputs, variance + noise[None]], axis=-1))
      predictions = moments[:, 0] if labels.ndim == 1 else moments
    else:
      target, predictions = program.target, ensembles.probit_log_probs(outputs, variance)
    examples = Examples(features, labels, weights, weights > 0)
    found = summarize(target.metrics(predictions, examples), "")
    return {name.removeprefix("/"): float(value) for name, value in found.items()}

  loss = "nlpd" if numbers else "nll"
  precision = min(map(float, PRECISIONS), key=lambda precision: metrics("val", precision)[loss])
  found = metrics("shown", precision)
  names = ("nlpd", "coverage", "width") if numbers else ("error", "nll", "ece")
  return {"laplace_precision": precision, **{f"laplace_{name}": found[name] for name in names}}


def _noise(layer: tuple[np.ndarray, ...]) -> np.ndarray:
  """The variance of each target's errors."""
  _, outputs, weights, labels = layer
  errors = outputs - labels.reshape(outputs.shape)
  return np.average(np.square(errors), axis=0, weights=weights.reshape(outputs.shape)) + 1e-6


def _make_last_layer(program: Program, mesh: jax.sharding.Mesh) -> Callable[..., tuple[Array, ...]]:
  """Compiles `(state, arrays, batch) -> (features, outputs, weights, labels)`; the last feature is 1."""
  layer, name = (
    ("head/outputs", "outputs") if isinstance(program.target, Numbers) else ("head/classifier", "logits")
  )

  @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
  def last_layer(state: TrainState, arrays: Arrays, batch: Arrays) -> tuple[Array, ...]:
    examples, calls = program.examples(gather(arrays, batch)), []
    with intercept(layer, calls):
      outputs, _ = program.apply_fn(state.params, state.model_state, examples.inputs, key=None, train=False)
    ((features, _),) = calls
    with_bias = jnp.pad(features, ((0, 0), (0, 1)), constant_values=1)
    values = outputs[name].reshape(len(with_bias), -1)
    return with_bias, values, examples.label_weights, examples.labels

  return last_layer


def _joined(parts: Any, number: int) -> tuple[np.ndarray, ...]:
  """The arrays of `number` examples, without padding, on the host."""
  return tuple(np.concatenate(x)[:number] for x in zip(*jax.device_get(list(parts)), strict=True))
