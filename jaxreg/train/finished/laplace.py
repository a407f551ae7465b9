"""`evaluate.measures=('laplace',)`: predictions under a Gaussian posterior of the weights."""

import dataclasses
import functools
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg import ensembles, models
from jaxreg.train import keys
from jaxreg.train.config.fields import Structure
from jaxreg.train.data.batches import Source, gather
from jaxreg.train.errors import RunError
from jaxreg.train.finished.restore import RestoredRun
from jaxreg.train.methods.softmax import predict_softmax
from jaxreg.train.run.evaluation import batches
from jaxreg.train.step.batch import Examples
from jaxreg.train.step.metrics import summarize
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState
from jaxreg.train.step.targets import Numbers
from jaxreg.typing import Array, Key, Params

Arrays = dict[str, Array]
Parts = tuple[Array, ...]

MOST_DENSE = 10_000  # parameters; their matrix takes 400 MB
FITTED = 64  # training examples whose layers' inputs and gradients are in memory at once
CHUNK = 16  # examples whose Jacobians are in memory at once


def check_last_layer(program: Program) -> None:
  """Checks that the run's predictions are one linear layer of one set of weights, or its softmax."""
  head, rule = program.method.head, program.method.predict
  if program.extras.draw is not None:
    raise RunError("evaluate.measures: laplace needs one set of weights, but average.name draws several")
  softmax = head is models.SoftmaxHead and getattr(rule, "func", rule) is predict_softmax
  means = program.method.predicts == "means"
  if not softmax and not means:
    raise RunError(
      "evaluate.measures: laplace needs one linear layer or its softmax, as method.name=softmax or "
      f"squared_error has it, got {program.name}"
    )


def laplace_measures(
  run: RestoredRun,
  state: TrainState,
  sources: dict[str, Source],
  *,
  over: str,
  structure: Structure,
  samples: int,
) -> dict[str, float]:
  """Computes metrics on `shown` under the posterior of the weights, and the prior's precision.

  The metrics are error, NLL and ECE. Where labels are numbers, they are the NLPD and the coverage and width
  of intervals; the noise has the variance of the training errors. The precision maximises the evidence.
  Training examples have no augmentation. `over`, `structure` and `samples` are the fields of
  `config.laplace`.
  """
  program, mesh = run.program, run.replicas.mesh
  if over == "last":
    layer, _ = _outputs_of(program)
    apply_fn, params = _linear, {"layer": functools.reduce(operator.getitem, layer.split("/"), state.params)}
  else:
    apply_fn, params = _make_network(program, state), state.params
  size = sum(x.size for x in jax.tree.leaves(params))
  if structure == "dense" and size > MOST_DENSE:
    raise RunError(
      f"laplace.structure: dense takes a matrix of all parameters, at most {MOST_DENSE}, here {size}; "
      "give kfac, ekfac or diagonal"
    )
  forward = _make_forward(program, mesh, last=over == "last")

  def whole(name: str) -> tuple[np.ndarray, ...]:
    """Returns the arrays of a split, without padding, on the host."""
    source = sources[name]
    parts = [forward(state, source.arrays, batch) for batch in batches(source, run.batch_size, mesh)]
    return tuple(np.concatenate(x)[: len(source)] for x in zip(*jax.device_get(parts), strict=True))

  train, weights = whole("train"), sources["train"].split.weights
  if weights is not None and (other := weights[weights != 1]).size:
    raise RunError(
      f"evaluate.measures: laplace needs training examples of weight 0 or 1, got {other[0]:g}; leave it out"
    )
  noise = _noise(train) if isinstance(program.target, Numbers) else None
  try:
    posterior = ensembles.laplace(
      apply_fn,
      params,
      train[0],
      likelihood="categorical" if noise is None else "normal",
      structure=structure,
      noise_variance=1.0 if noise is None else noise,
      chunk_size=FITTED,
    )
  except ValueError as error:  # too many parameters without a factor
    raise RunError(f"laplace.structure: {error}") from error
  precision = posterior.best_precision()
  inputs, _, weights, labels = map(jnp.asarray, whole("shown"))
  if not samples:
    outputs, covariance = posterior.linearized(inputs, precision=precision, chunk_size=CHUNK)
    variance = jnp.diagonal(covariance, axis1=1, axis2=2)
  else:
    key = keys.prediction(state.key, state.step, jnp.int32(0))
    samples_of_params = posterior.sample(key, precision=precision, num_samples=samples)

    @jax.jit
    def outputs_of(x: Array) -> Array:
      return jax.lax.map(lambda params: apply_fn(params, x, key=None), samples_of_params)

    chunks = range(0, len(inputs), run.batch_size)
    drawn = jnp.concatenate([outputs_of(inputs[at : at + run.batch_size]) for at in chunks], axis=1)
    if noise is not None:
      outputs, variance = drawn.mean(axis=0), drawn.var(axis=0)
    else:
      # The logarithm of the mean probability serves as logits without a variance.
      outputs = ensembles.arithmetic(jax.nn.log_softmax(drawn))
      variance = jnp.zeros_like(outputs)
  metrics = _metrics(program, outputs, variance, noise, weights, labels)
  names = ("nlpd", "coverage", "width") if noise is not None else ("error", "nll", "ece")
  return {"laplace_precision": float(precision), **{f"laplace_{name}": metrics[name] for name in names}}


def _linear(params: Params, features: Array, *, key: Key | None) -> Array:
  """Computes the last layer's outputs `[n, classes]` from its inputs."""
  del key
  outputs = features @ params["layer"]["kernel"]
  return outputs + params["layer"]["bias"][None] if "bias" in params["layer"] else outputs


def _make_network(program: Program, state: TrainState) -> Callable[..., Array]:
  """Makes the whole network, from inputs to the last layer's outputs `[n, classes]`."""
  _, name = _outputs_of(program)

  def apply_fn(params: Params, x: Array, *, key: Key | None) -> Array:
    outputs, _ = program.apply_fn(params, state.model_state, x, key=key, train=False)
    return outputs[name].reshape(len(x), -1)

  return apply_fn


def _make_forward(program: Program, mesh: jax.sharding.Mesh, *, last: bool) -> Callable[..., Parts]:
  """Compiles `(state, arrays, batch) -> (x, outputs, weights, labels)`.

  `x` are the examples' inputs, or the last layer's inputs.
  """
  layer, name = _outputs_of(program)

  @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
  def forward(state: TrainState, arrays: Arrays, batch: Arrays) -> Parts:
    examples, features = program.examples(gather(arrays, batch)), []
    with _recorded(layer, features):
      outputs, _ = program.apply_fn(state.params, state.model_state, examples.inputs, key=None, train=False)
    (features,) = features
    x = features if last else examples.inputs
    return x, outputs[name].reshape(len(x), -1), examples.label_weights, examples.labels

  return forward


def _recorded(path: str, inputs: list[Array]) -> AbstractContextManager[None]:
  """Appends to `inputs` what the Linen module at `path` is called with."""

  def record(call, args, kwargs, context):
    if context.method_name == "__call__" and "/".join(context.module.path) == path:
      inputs.append(args[0])
    return call(*args, **kwargs)

  return nn.intercept_methods(record)


def _metrics(
  program: Program, outputs: Array, variance: Array, noise: np.ndarray | None, weights: Array, labels: Array
) -> dict[str, float]:
  """Computes the metrics of Gaussian outputs `[n, classes]` with these variances."""
  if isinstance(program.target, Numbers) and noise is not None:
    target = dataclasses.replace(program.target, predicts="moments")
    moments = jnp.stack([outputs, variance + noise[None]], axis=-1)
    predictions = moments[:, 0] if labels.ndim == 1 else moments
  else:
    target, predictions = program.target, ensembles.probit_log_probs(outputs, variance)
  examples = Examples(outputs, labels, weights, weights > 0)
  metrics = summarize(target.metrics(predictions, examples), "")
  return {name.removeprefix("/"): float(value) for name, value in metrics.items()}


def _outputs_of(program: Program) -> tuple[str, str]:
  """Returns the path of the last layer and the name of its output."""
  numbers = isinstance(program.target, Numbers)
  return ("head/outputs", "outputs") if numbers else ("head/classifier", "logits")


def _noise(layer: tuple[np.ndarray, ...]) -> np.ndarray:
  """Computes the variance of each target's errors."""
  _, outputs, weights, labels = layer
  errors = outputs - labels.reshape(outputs.shape)
  return np.average(np.square(errors), axis=0, weights=weights.reshape(outputs.shape)) + 1e-6
