"""`evaluate.measures=('laplace',)`: how sure a trained softmax is of its last layer's weights."""

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
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array

Arrays = dict[str, Array]

PRECISIONS = np.logspace(-2, 4, 13)


def check_last_layer(program: Program) -> None:
  """Checks that the run's predictions are the softmax of one linear layer of one set of weights."""
  head, rule = program.model.head, program.method.predict
  if program.extras.draw is not None:
    raise RunError("evaluate.measures: laplace needs one set of weights, but average.name draws several")
  if not isinstance(head, models.SoftmaxHead) or rule is not method_adapters.predict_softmax:
    raise RunError(
      "evaluate.measures: laplace needs the softmax of one linear layer, as method.name=softmax has it, "
      f"got {program.name}"
    )


def laplace_measures(
  program: Program, mesh: jax.sharding.Mesh, state: TrainState, sources: dict[str, Source], batch_size: int
) -> dict[str, Any]:
  """The error, NLL and ECE of predictions under the posterior of the last layer, and the prior's precision.

  The posterior is `ensembles.laplace_posterior` with Kronecker factors of the training examples, without
  augmentation or noise. It takes the precision of `PRECISIONS` with the lowest NLL on the validation split.

  Args:
    sources: `train`, `val`, and `shown`, the split to measure.
  """
  last_layer = _make_last_layer(program, mesh)
  state = program.predicting(state)
  batches_of = lambda name: (
    last_layer(state, sources[name].arrays, batch) for batch in batches(sources[name], batch_size, mesh)
  )
  curvature = jax.jit(functools.partial(ensembles.laplace_curvature, structure="kronecker"))
  sums = (curvature(features, logits, weights=weights) for features, logits, weights in batches_of("train"))
  total = functools.reduce(calibration.merge, sums, None)
  layer = {name: _joined(batches_of(name), len(sources[name])) for name in ("val", "shown")}
  # The directions are the same for every precision, so they are computed once.
  of_1 = ensembles.laplace_posterior(total, precision=1.0)

  def predicted(name: str, precision: float) -> Any:
    features, logits = layer[name]
    posterior = of_1._replace(variances=1 / (1 / of_1.variances - 1 + precision))
    return ensembles.probit_log_probs(logits, ensembles.laplace_variance(posterior, features))

  def nll(log_probs: Any, name: str) -> float:
    loss, count = calibration.nll(log_probs, sources[name].split.labels)
    return float(loss / count)

  precision = min(map(float, PRECISIONS), key=lambda precision: nll(predicted("val", precision), "val"))
  log_probs, labels = predicted("shown", precision), sources["shown"].split.labels
  return {
    "laplace_precision": precision,
    "laplace_error": np.mean(np.argmax(log_probs, axis=-1) != labels),
    "laplace_nll": nll(log_probs, "shown"),
    "laplace_ece": calibration.ece(calibration.ece_bins(log_probs, labels)),
  }


def _make_last_layer(program: Program, mesh: jax.sharding.Mesh) -> Callable[..., tuple[Array, Array, Array]]:
  """Compiles `(state, arrays, batch) -> (features, logits, weights)`; the last feature is 1, for the bias."""

  @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
  def last_layer(state: TrainState, arrays: Arrays, batch: Arrays) -> tuple[Array, Array, Array]:
    examples, calls = program.examples(gather(arrays, batch)), []
    with intercept("head/classifier", calls):
      outputs, _ = program.apply_fn(state.params, state.model_state, examples.inputs, key=None, train=False)
    ((features, _),) = calls
    with_bias = jnp.pad(features, ((0, 0), (0, 1)), constant_values=1)
    return with_bias, outputs["logits"], examples.label_weights

  return last_layer


def _joined(parts: Any, number: int) -> tuple[np.ndarray, np.ndarray]:
  """The features and logits of `number` examples, without padding, on the host."""
  features, logits, _ = zip(*jax.device_get(list(parts)), strict=True)
  return np.concatenate(features)[:number], np.concatenate(logits)[:number]
