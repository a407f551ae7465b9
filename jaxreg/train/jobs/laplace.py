"""`evaluate.measures=('laplace',)`: how sure a trained network is of its weights, or of its last layer's."""

import dataclasses
import functools
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg import calibration, ensembles, models
from jaxreg.train import keys
from jaxreg.train.config.fields import Structure
from jaxreg.train.data.batches import Source, gather
from jaxreg.train.errors import RunError
from jaxreg.train.jobs.flatness.network_at_point import intercept
from jaxreg.train.run.whole_split import batches
from jaxreg.train.step.batch import Examples
from jaxreg.train.step.methods import predict_softmax
from jaxreg.train.step.metrics import summarize
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState
from jaxreg.train.step.targets import Numbers
from jaxreg.typing import Array, Key, Params

Arrays = dict[str, Array]

PRECISIONS = np.logspace(-2, 4, 13)
MOST_DENSE = 10_000  # parameters, whose matrix takes 400 MB
CHUNK = 16  # examples at once, whose Jacobians are in memory


def check_last_layer(program: Program) -> None:
  """Checks that the run's predictions are one linear layer of one set of weights, or its softmax."""
  head, rule = program.model.head, program.method.predict
  if program.extras.draw is not None:
    raise RunError("evaluate.measures: laplace needs one set of weights, but average.name draws several")
  softmax = isinstance(head, models.SoftmaxHead) and getattr(rule, "func", rule) is predict_softmax
  means = isinstance(head, models.AffineHead) and program.method.predicts == "means"
  if not softmax and not means:
    raise RunError(
      "evaluate.measures: laplace needs one linear layer or its softmax, as method.name=softmax or "
      f"squared_error has it, got {program.name}"
    )


def laplace_measures(
  program: Program,
  mesh: jax.sharding.Mesh,
  state: TrainState,
  sources: dict[str, Source],
  batch_size: int,
  *,
  over: str,
  structure: Structure,
  samples: int,
) -> dict[str, float]:
  """What predictions under the posterior of the weights reach, and the prior's precision.

  The measures are error, NLL and ECE. Where labels are numbers, they are the NLPD and the coverage and width
  of intervals; the noise has the variance of the training errors. Training examples have no augmentation.

  Args:
    sources: `train`, `val`, and `shown`, the split to measure.
    over: `last`, `ensembles.laplace_posterior` of the last layer with Kronecker factors, whose precision of
      `PRECISIONS` has the lowest NLL on the validation split; or `all`, `ensembles.laplace` of the network
      with its `structure`, whose precision has the largest evidence.
    samples: draws of all weights that a prediction averages over; 0 for the linearised network.
  """
  if over == "last":
    found = _of_last_layer(program, mesh, state, sources, batch_size)
  else:
    found = _of_all_layers(program, mesh, state, sources, batch_size, structure, samples)
  names = ("nlpd", "coverage", "width") if isinstance(program.target, Numbers) else ("error", "nll", "ece")
  return {f"laplace_{name}": found[name] for name in ("precision", *names)}


def _of_last_layer(
  program: Program, mesh: jax.sharding.Mesh, state: TrainState, sources: dict[str, Source], batch_size: int
) -> dict[str, float]:
  last_layer = _make_last_layer(program, mesh)
  batches_of = lambda name: (
    last_layer(state, sources[name].arrays, batch) for batch in batches(sources[name], batch_size, mesh)
  )
  layer = {name: _joined(batches_of(name), len(sources[name])) for name in ("val", "shown")}
  numbers = isinstance(program.target, Numbers)
  noise = _noise(_joined(batches_of("train"), len(sources["train"]))) if numbers else None
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
    return _metrics(program, outputs, variance, noise, weights, labels)

  loss = "nlpd" if numbers else "nll"
  precision = min(map(float, PRECISIONS), key=lambda precision: metrics("val", precision)[loss])
  return {"precision": precision, **metrics("shown", precision)}


def _of_all_layers(
  program: Program,
  mesh: jax.sharding.Mesh,
  state: TrainState,
  sources: dict[str, Source],
  batch_size: int,
  structure: Structure,
  samples: int,
) -> dict[str, float]:
  numbers, name = isinstance(program.target, Numbers), _outputs_of(program)[1]
  size = sum(x.size for x in jax.tree.leaves(state.params))
  if structure == "dense" and size > MOST_DENSE:
    raise RunError(
      f"laplace.structure: dense takes a matrix of all parameters, at most {MOST_DENSE}, here {size}; "
      "give kfac, ekfac or diagonal"
    )

  def apply_fn(params: Params, x: Array, *, key: Key | None) -> Array:
    outputs, _ = program.apply_fn(params, state.model_state, x, key=key, train=False)
    return outputs[name].reshape(len(x), -1)

  @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
  def some(params: Params, arrays: Arrays, batch: Arrays) -> tuple[Array, ...]:
    examples = program.examples(gather(arrays, batch))
    return (
      examples.inputs,
      apply_fn(params, examples.inputs, key=None),
      examples.label_weights,
      examples.labels,
    )

  def whole(source: Source) -> tuple[np.ndarray, ...]:
    parts = (some(state.params, source.arrays, batch) for batch in batches(source, batch_size, mesh))
    return _joined(parts, len(source))

  of_train = whole(sources["train"])
  noise = _noise(of_train) if numbers else None
  posterior = ensembles.laplace(
    apply_fn,
    state.params,
    of_train[0],
    likelihood="normal" if numbers else "categorical",
    structure=structure,
    noise_variance=1.0 if noise is None else noise,
  )
  precision = posterior.best_precision()
  inputs, _, weights, labels = map(jnp.asarray, whole(sources["shown"]))
  if not samples:
    found = posterior.linearized(inputs, precision=precision, chunk_size=CHUNK)
    variance = jnp.diagonal(found.covariance, axis1=1, axis2=2)
    metrics = _metrics(program, found.outputs, variance, noise, weights, labels)
  else:
    key = keys.prediction(state.key, state.step, jnp.int32(0))
    draws = posterior.sample(key, precision=precision, num_samples=samples)
    outputs = jax.lax.map(lambda params: apply_fn(params, inputs, key=None), draws)
    if numbers:
      metrics = _metrics(program, outputs.mean(axis=0), outputs.var(axis=0), noise, weights, labels)
    else:
      # The mean of probabilities, as logits without a variance.
      log_probs = ensembles.arithmetic(jax.nn.log_softmax(outputs))
      metrics = _metrics(program, log_probs, jnp.zeros_like(log_probs), noise, weights, labels)
  return {"precision": float(precision), **metrics}


def _metrics(
  program: Program, outputs: Array, variance: Array, noise: np.ndarray | None, weights: Array, labels: Array
) -> dict[str, float]:
  """The metrics of Gaussian outputs `[n, classes]` with these variances."""
  if isinstance(program.target, Numbers) and noise is not None:
    target = dataclasses.replace(program.target, predicts="moments")
    moments = target.original(jnp.stack([outputs, variance + noise[None]], axis=-1))
    predictions = moments[:, 0] if labels.ndim == 1 else moments
  else:
    target, predictions = program.target, ensembles.probit_log_probs(outputs, variance)
  examples = Examples(outputs, labels, weights, weights > 0)
  found = summarize(target.metrics(predictions, examples), "")
  return {name.removeprefix("/"): float(value) for name, value in found.items()}


def _outputs_of(program: Program) -> tuple[str, str]:
  """The module of the last layer, and the name of what it returns."""
  numbers = isinstance(program.target, Numbers)
  return ("head/outputs", "outputs") if numbers else ("head/classifier", "logits")


def _noise(layer: tuple[np.ndarray, ...]) -> np.ndarray:
  """The variance of each target's errors."""
  _, outputs, weights, labels = layer
  errors = outputs - labels.reshape(outputs.shape)
  return np.average(np.square(errors), axis=0, weights=weights.reshape(outputs.shape)) + 1e-6


def _make_last_layer(program: Program, mesh: jax.sharding.Mesh) -> Callable[..., tuple[Array, ...]]:
  """Compiles `(state, arrays, batch) -> (features, outputs, weights, labels)`; the last feature is 1."""
  layer, name = _outputs_of(program)

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


def _joined(parts: Iterable[tuple[Array, ...]], number: int) -> tuple[np.ndarray, ...]:
  """The arrays of `number` examples, without padding, on the host."""
  return tuple(np.concatenate(x)[:number] for x in zip(*jax.device_get(list(parts)), strict=True))
