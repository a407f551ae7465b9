"""Parts in which unequal numbers of examples count, merged: the values of the whole batch in NumPy.

The last part is smaller than the others, and in one part nothing counts.
"""

import functools
import importlib
import inspect
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest

import jaxreg
from jaxreg import adversarial, averaging, calibration, ensembles, flatness, losses, objective, penalties
from jaxreg.losses import _group_softmax_forms as forms

pytestmark = pytest.mark.usefixtures("x64")

TESTS = pathlib.Path(__file__).resolve().parent
RNG = np.random.default_rng(0)
EXAMPLES, FEATURES, CLASSES, CHUNK = 11, 4, 3, 4
X, KERNEL = RNG.normal(size=(EXAMPLES, FEATURES)), RNG.normal(size=(FEATURES, CLASSES))
WHERE = np.array([1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0], bool)
CUTS = (4, 8)  # of lists of batches: 3, 0 and 2 of 4, 4 and 3 examples count
KNOWN = RNG.integers(CLASSES, size=EXAMPLES)
LABELS = np.where(WHERE, KNOWN, -1)
LOG_PROBS = np.log(oracles.softmax(X @ KERNEL))
TARGETS = X @ np.array([1.0, -2.0, 0.5, 3.0]) + RNG.normal(size=EXAMPLES)
PADDED = np.where(WHERE[:, None], X, np.nan)
# Four devices with three examples each, one of them padding.
ON_DEVICES = np.append(np.arange(EXAMPLES), 0).reshape(4, 3)
COUNTED = np.append(WHERE, False).reshape(4, 3)


def in_batches(*arrays):
  return zip(*(np.split(x, CUTS) for x in arrays), strict=True)


def over_devices(function, *arrays):
  """Maps a function over the devices' parts of arrays, and returns the value of the first device."""
  parts = [np.append(x, x[:1], axis=0)[ON_DEVICES] for x in arrays]
  return jax.tree.map(lambda x: x[0], jax.jit(jax.vmap(function, axis_name="data"))(*parts, COUNTED))


def gap_of(logits, labels):
  return oracles.softmax(logits) - oracles.one_hot(labels, CLASSES)


def of_linear():
  def mean(kernel):
    values = losses.linear(
      losses.softmax_cross_entropy, PADDED, kernel, LABELS, where=WHERE, chunk_size=CHUNK
    )
    return values.sum() / WHERE.sum()

  x, labels = X[WHERE], LABELS[WHERE]
  whole = oracles.cross_entropy(x @ KERNEL, labels).mean(), x.T @ gap_of(x @ KERNEL, labels) / len(x)
  return jax.jit(jax.value_and_grad(mean))(KERNEL), whole


def of_group_softmax(form, monkeypatch):
  monkeypatch.setattr(forms, "CHUNK", 8 * 2 * CLASSES)  # eight examples at a time

  def mean(kernel):
    options = {"num_groups": 2, "kind": "II", "form": form, "where": WHERE}
    return losses.group_softmax(PADDED, kernel, None, LABELS, **options).sum() / WHERE.sum()

  x, labels = X[WHERE], LABELS[WHERE]
  scores = oracles.scores(x, KERNEL, labels, oracles.uniform_others(labels, CLASSES))
  groups = oracles.feature_groups(scores, (2, 2))
  value = oracles.group_softmax(x, KERNEL, 0.0, labels, groups, 1).mean()
  masked = [x * (groups == group) for group in (0, 1)]
  return jax.jit(jax.value_and_grad(mean))(KERNEL), (
    value,
    sum(rows.T @ gap_of(rows @ KERNEL, labels) for rows in masked) / len(x),
  )


def of_semi_supervised():
  labelled = X[:, 2] > 0

  def mean(supervised, unsupervised, labels, where):
    options = {"weight": 0.3, "where": where, "axis_name": "data"}
    values = losses.semi_supervised(supervised, unsupervised, labels, **options)
    return jax.lax.psum(values.sum(), "data") / jax.lax.psum(where.sum(), "data")

  first, second = np.where(WHERE, X[:, 0], np.nan), np.where(WHERE, X[:, 1], np.nan)
  whole = X[WHERE & labelled, 0].mean() + 0.3 * X[WHERE & ~labelled, 1].mean()
  return over_devices(mean, first, second, labelled), whole


def of_activity(penalty, whole):
  def on_device(activations, where):
    return penalty(activations, weights=where.astype(float), axis_name="data")

  activations = 1 / (1 + np.exp(-X))
  padded = np.where(WHERE[:, None], activations, np.nan)

  def masked(activations, counts, own):
    return on_device(activations, counts & own)

  return over_devices(masked, padded, WHERE), whole(activations[WHERE])


def sparsity(activations, target=0.05):
  mean = activations.mean(axis=0)
  return target * np.log(target / mean) + (1 - target) * np.log((1 - target) / (1 - mean))


def variance_gap(activations):
  return np.maximum(0, 1 - np.sqrt(activations.var(axis=0, ddof=1) + 1e-4))


def covariance(activations):
  matrix = np.cov(activations.T)
  return (matrix**2).sum(axis=0) - np.diag(matrix) ** 2


def of_sums(function, oracle):
  total = None
  for log_probs, labels, where in in_batches(LOG_PROBS, LABELS, WHERE):
    total = calibration.merge(total, function(log_probs, labels, where=where))
  return total, oracle(LOG_PROBS[WHERE], LABELS[WHERE], np.ones(WHERE.sum()))


def of_coverage():
  total = None
  low, high = X[:, 0] - 1, X[:, 0] + np.abs(X[:, 1])
  targets = np.where(WHERE, TARGETS, np.nan)
  for *ends, batch, where in in_batches(low, high, targets, WHERE):
    total = calibration.merge(total, calibration.interval_coverage(*ends, batch, where=where))
  held = (low <= TARGETS) & (high >= TARGETS)
  return total, ((held & WHERE).sum(), (high - low)[WHERE].sum(), WHERE.sum())


def drawn(params, x, *, key):
  return x @ params + jax.random.normal(key, (len(x), CLASSES))


def of_draws(function):
  """The mean over the draws, and for numbers their variance and the draws."""
  options = {"key": jax.random.key(0), "num_samples": 7, "chunk_size": 3}
  noise = [jax.random.normal(key, (EXAMPLES, CLASSES)) for key in jax.random.split(jax.random.key(0), 7)]
  outputs = X @ KERNEL + np.asarray(noise)
  merged = jax.jit(functools.partial(function, drawn, **options))(KERNEL, X)
  if function is ensembles.mc_regress:
    return merged, (outputs.mean(axis=0), outputs.var(axis=0), outputs)
  return merged.mean_log_probs, np.log(oracles.softmax(outputs).mean(axis=0))


def squares(w, batch, *, key):
  """Half the mean square over the examples that count, plus 1, and their number."""
  where = batch["where"]
  residual = jnp.where(where, batch["x"] @ w - batch["y"], 0)
  return 0.5 * (residual**2).sum() / where.sum() + 1, where.sum()


BATCH = {"x": X, "y": TARGETS, "where": WHERE}
HESSIAN = X[WHERE].T @ X[WHERE] / WHERE.sum()
SOLUTION = np.linalg.solve(HESSIAN, X[WHERE].T @ TARGETS[WHERE] / WHERE.sum())


def square(w):
  return 0.5 * ((X[WHERE] @ w - TARGETS[WHERE]) ** 2).mean() + 1


def of_hessian():
  loss = flatness.chunked(squares, CHUNK)
  return flatness.hessian(loss, jnp.ones(FEATURES), BATCH, chunk_size=3), HESSIAN


def of_profile():
  loss, alphas, w = flatness.chunked(squares, CHUNK), np.linspace(-1, 1, 7), np.ones(FEATURES)
  profile = flatness.loss_profile(loss, jnp.asarray(w), jnp.asarray(X[0]), alphas, BATCH, chunk_size=3)
  return profile, np.array([square(w + alpha * X[0]) for alpha in alphas])


def of_surface():
  loss, alphas, w = flatness.chunked(squares, CHUNK), np.linspace(-1, 1, 5), np.ones(FEATURES)
  directions = jnp.asarray(X[0]), jnp.asarray(X[1])
  surface = flatness.loss_surface(loss, jnp.asarray(w), directions, alphas, alphas[:2], BATCH, chunk_size=3)
  return surface, np.array([[square(w + a * X[0] + b * X[1]) for b in alphas[:2]] for a in alphas])


def of_widths():
  loss, directions = flatness.chunked(squares, CHUNK), np.eye(FEATURES)[:3]
  widths = flatness.interval_flatness(
    loss, jnp.asarray(SOLUTION), directions, BATCH, tol=1e-12, chunk_size=2
  ).width
  return widths, 2 * np.sqrt(2 * square(SOLUTION) / np.diag(HESSIAN)[:3])


def of_gradients():
  def loss(w, batch, *, key):
    mean, count = squares(w, batch, key=key)
    return mean + w @ jax.random.normal(key, (FEATURES,)), count

  options = {"num_samples": 7, "first": 2, "chunk_size": 3}
  samples = flatness.sample_gradients(loss, jnp.zeros(FEATURES), BATCH, key=jax.random.key(0), **options)
  noise = [jax.random.normal(jax.random.fold_in(jax.random.key(0), 2 + j), (FEATURES,)) for j in range(7)]
  return samples, np.asarray(noise) - X[WHERE].T @ TARGETS[WHERE] / WHERE.sum()


def of_noise_scale():
  """A batch in which nothing counts has no gradient: the mean over it is 0 / 0."""
  gradients = np.stack([X[0], np.full(FEATURES, np.nan), X[1], X[2]])
  found = flatness.gradient_noise_scale(gradients, np.array([5, 0, 1, 3]))
  rows, counts = X[:3], np.array([5.0, 1.0, 3.0])
  mean = counts @ rows / 9
  trace = (counts * ((rows - mean) ** 2).sum(axis=1)).sum() / 2
  square = mean @ mean - trace / 9
  return found, (trace / square, trace, square)


def of_attack():
  """A linear network: the worst point of the box is known."""
  wrong, eps, kernel = [], 0.4, np.concatenate([KERNEL, -KERNEL[:, :1]], axis=1)
  options = {"eps": eps, "methods": ("apgd_ce",), "num_steps": 20, "chunk_size": CHUNK}
  run = jax.jit(lambda x: adversarial.attack(jax.random.key(0), lambda x: x @ kernel, x, KNOWN, **options))
  moved = run(X)
  for x, label in zip(X, KNOWN, strict=True):
    others = [k for k in range(4) if k != label]
    margins = [x @ (kernel[:, label] - kernel[:, k]) for k in others]
    reach = [eps * np.abs(kernel[:, label] - kernel[:, k]).sum() for k in others]
    wrong.append(any(margin < most for margin, most in zip(margins, reach, strict=True)))
  return (moved @ kernel).argmax(-1) != KNOWN, np.array(wrong)


def of_devices():
  """The docstring of `compose`: an average of gradients that is weighted by the counts."""

  def loss_fn(params, batch, *, key):
    logits = batch["inputs"] @ params["kernel"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])

  terms = {"l2": objective.penalty(penalties.l2, weight=0.1)}
  gradient = jax.value_and_grad(objective.compose(loss_fn, terms, with_metrics=True), has_aux=True)

  def on_device(inputs, labels, counts, own):
    batch = {"inputs": inputs, "labels": labels, "where": counts & own}
    (value, metrics), grads = gradient({"kernel": jnp.asarray(KERNEL)}, batch)
    count = metrics["loss"][1].astype(float)
    share = count / jax.lax.psum(count, "data")
    return jax.lax.psum((share * value, share * grads["kernel"]), "data")

  x, labels = X[WHERE], LABELS[WHERE]
  value = oracles.cross_entropy(x @ KERNEL, labels).mean() + 0.05 * (KERNEL**2).sum()
  gradient_of_whole = x.T @ gap_of(x @ KERNEL, labels) / len(x) + 0.1 * KERNEL
  return over_devices(on_device, PADDED, LABELS, WHERE), (value, gradient_of_whole)


def of_statistics():
  def apply_fn(params, mean, x, *, key, train):
    return x, 0.9 * mean + 0.1 * x.mean(axis=0)

  batches = np.split(X, CUTS)
  options = {"momentum": 0.9}
  return averaging.batch_norm_statistics(apply_fn, None, jnp.zeros(FEATURES), batches, **options), X.mean(0)


ROWS = {
  "losses.linear": of_linear,
  "losses.semi_supervised": of_semi_supervised,
  "penalties.kl_sparsity": functools.partial(of_activity, penalties.kl_sparsity, sparsity),
  "penalties.activity_variance": functools.partial(of_activity, penalties.activity_variance, variance_gap),
  "penalties.activity_covariance": functools.partial(of_activity, penalties.activity_covariance, covariance),
  "calibration.nll": functools.partial(of_sums, calibration.nll, oracles.nll),
  "calibration.brier": functools.partial(of_sums, calibration.brier, oracles.brier),
  "calibration.ece_bins": functools.partial(
    of_sums, calibration.ece_bins, functools.partial(oracles.ece_bins, num_bins=15)
  ),
  "calibration.interval_coverage": of_coverage,
  "ensembles.mc_predict": functools.partial(of_draws, ensembles.mc_predict),
  "ensembles.mc_regress": functools.partial(of_draws, ensembles.mc_regress),
  "flatness.hessian": of_hessian,
  "flatness.loss_profile": of_profile,
  "flatness.loss_surface": of_surface,
  "flatness.interval_flatness": of_widths,
  "flatness.sample_gradients": of_gradients,
  "flatness.gradient_noise_scale": of_noise_scale,
  "adversarial.attack": of_attack,
  "objective.compose": of_devices,
  "averaging.batch_norm_statistics": of_statistics,
}
# Functions whose tests of uneven counts stand with their other tests.
ELSEWHERE = {
  "flatness.Curvature": "flatness/test_uneven_counts.py test_a_curvature_weights_batches_by_their_counts",
  "flatness.chunked": "flatness/test_uneven_counts.py test_chunks_weigh_by_their_counts",
  "flatness.gauss_newton_matrix": "flatness/test_uneven_counts.py "
  "test_chunks_of_jacobians_weigh_by_their_counts",
  "flatness.gauss_newton_diagonal": "flatness/test_uneven_counts.py "
  "test_chunks_of_jacobians_weigh_by_their_counts",
  # Examples that do not count are left out of the batch, or have a loss of 0.
  "flatness.kfac": "flatness/test_flatness_layers.py test_kfac_of_a_convolution",
  "ensembles.laplace": "ensembles/test_laplace.py test_outputs_of_a_linear_model",
  "flatness.sample_noise_by_parts": "flatness/test_uneven_counts.py "
  "test_noise_of_parts_and_of_examples_weighs_by_the_counts",
  "flatness.per_example_noise_covariance": "flatness/test_uneven_counts.py "
  "test_noise_of_parts_and_of_examples_weighs_by_the_counts",
}
MERGES = {"axis_name", "batches", "chunk_size", "counts", "parts"}  # arguments of functions that merge parts


SLOW = {"adversarial.attack", "ensembles.mc_predict", "flatness.hessian", "losses.linear"}


@pytest.mark.parametrize(
  "name", [pytest.param(name, marks=pytest.mark.thorough) if name in SLOW else name for name in ROWS]
)
def test_merged_parts_give_the_whole(name):
  merged, whole = ROWS[name]()
  for got, want in zip(jax.tree.leaves(merged), jax.tree.leaves(whole), strict=True):
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["dense", "gather", "scan"])
def test_chunks_of_group_softmax_give_the_whole(form, monkeypatch):
  (value, gradient), (want, slope) = of_group_softmax(form, monkeypatch)
  np.testing.assert_allclose(value, want, rtol=1e-12)
  np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-12)


def test_every_function_that_merges_parts_is_tested():
  merging = {"losses.class_weights"}  # the counts of a whole data set
  for folder in set(jaxreg.__all__) - {"models", "train", "typing"}:
    module = importlib.import_module(f"jaxreg.{folder}")
    for name in module.__all__:
      function = getattr(module, name)
      if callable(function) and MERGES & inspect.signature(function).parameters.keys():
        merging.add(f"{folder}.{name}")
  assert merging - {*ROWS, *ELSEWHERE} == {"losses.class_weights"}
  for place in ELSEWHERE.values():
    file, test = place.split()
    assert f"def {test}(" in (TESTS / file).read_text()
