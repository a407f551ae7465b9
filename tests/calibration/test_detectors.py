"""Detectors of out-of-distribution examples, against scikit-learn and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import compilations, jit
from scipy.special import logsumexp
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from jaxreg.calibration import energy, fit_detector

rng = np.random.default_rng(0)
SIZE, CLASSES = 6, 3
LABELS = rng.integers(0, CLASSES, 90)
TRAIN = rng.normal(size=(90, SIZE)) @ rng.normal(size=(SIZE, SIZE)) + 3 * np.eye(CLASSES, SIZE)[LABELS]
NEW = 2 * rng.normal(size=(11, SIZE))
KERNEL, BIAS = rng.normal(size=(SIZE, CLASSES)), rng.normal(size=CLASSES)
LAYER = {"kernel": KERNEL, "bias": BIAS}


def distances(features):
  """Squared distances to the nearest class mean and to the mean, by scikit-learn's covariances."""
  means = np.stack([TRAIN[k == LABELS].mean(0) for k in range(CLASSES)])
  within = EmpiricalCovariance(assume_centered=True).fit(TRAIN - means[LABELS])
  classes = np.stack([within.mahalanobis(features - mean) for mean in means])
  return classes.min(0), EmpiricalCovariance().fit(TRAIN).mahalanobis(features)


def vim(features, num_components):
  """The published algorithm, with scikit-learn's principal components around the origin."""
  origin = -np.linalg.pinv(KERNEL.T) @ BIAS
  mirrored = np.concatenate([TRAIN - origin, origin - TRAIN])  # whose mean is 0
  minor = PCA().fit(mirrored).components_[num_components:]
  residual = lambda x: np.linalg.norm((x - origin) @ minor.T, axis=1)
  scale = (TRAIN @ KERNEL + BIAS).max(1).mean() / residual(TRAIN).mean()
  return scale * residual(features) - logsumexp(features @ KERNEL + BIAS, axis=1)


def neighbours(features, number):
  unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)
  return NearestNeighbors(n_neighbors=number).fit(unit(TRAIN)).kneighbors(unit(features))[0][:, -1]


def react(features, quantile):
  clipped = np.minimum(features, np.quantile(TRAIN, quantile))
  return -logsumexp(clipped @ KERNEL + BIAS, axis=1)


ORACLES = {
  "mahalanobis": ({"labels": LABELS}, lambda x: distances(x)[0]),
  "relative_mahalanobis": ({"labels": LABELS}, lambda x: distances(x)[0] - distances(x)[1]),
  "knn": ({"num_neighbors": 7}, lambda x: neighbours(x, 7)),
  "vim": (LAYER | {"num_components": 2}, lambda x: vim(x, 2)),
  "react": (LAYER | {"quantile": 0.8}, lambda x: react(x, 0.8)),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", ORACLES)
def test_scores_are_those_of_scikit_learn(kind):
  options, oracle = ORACLES[kind]
  detector = fit_detector(TRAIN, kind=kind, **options)
  np.testing.assert_allclose(detector(NEW), oracle(NEW), rtol=1e-9)
  np.testing.assert_allclose(detector(NEW.reshape(11, 1, SIZE))[:, 0], oracle(NEW), rtol=1e-9)
  # As an argument of compiled code, also of its own examples.
  np.testing.assert_allclose(
    jit(lambda fitted, x: fitted(x))(detector, TRAIN), oracle(TRAIN), rtol=1e-9, atol=1e-9
  )


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_neighbours_are_those_of_directions_however_long(scale):
  detector = fit_detector(np.float32(scale * TRAIN), kind="knn", num_neighbors=7)
  np.testing.assert_allclose(detector(np.float32(scale * NEW)), neighbours(NEW, 7), rtol=1e-4)


@pytest.mark.parametrize("kind", ORACLES)
def test_eager_calls_compile_few_programs(kind):
  """One for each operation would be 20 to 70; no other test has these sizes."""
  options = {"labels": LABELS[:83]} if "labels" in ORACLES[kind][0] else ORACLES[kind][0]
  features, new = np.float32(TRAIN[:83]), np.float32(NEW[:7])
  assert compilations(lambda: fit_detector(features, kind=kind, **options)(new)) <= 15


@pytest.mark.parametrize("kind", ORACLES)
def test_float32_and_bfloat16_are_near_float64(kind):
  options, oracle = ORACLES[kind]
  narrow = jax.tree.map(
    lambda x: jnp.asarray(x, jnp.float32) if np.ndim(x) and x.dtype == float else x, options
  )
  scores = fit_detector(np.float32(TRAIN), kind=kind, **narrow)(np.float32(NEW))
  assert scores.dtype == jnp.float32
  np.testing.assert_allclose(scores, oracle(NEW), rtol=1e-3, atol=1e-3)
  assert fit_detector(jnp.asarray(TRAIN, jnp.bfloat16), kind=kind, **narrow)(NEW).dtype == jnp.float32


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", ORACLES)
def test_examples_that_do_not_count_have_no_effect(kind):
  options, oracle = ORACLES[kind]
  order = rng.permutation(100)
  padded = np.concatenate([TRAIN, np.full((10, SIZE), np.nan)])[order]
  if "labels" in options:
    options = {"labels": np.concatenate([LABELS, np.full(10, -1)])[order], "num_classes": CLASSES}
  detector = fit_detector(padded, kind=kind, where=order < 90, **options)
  np.testing.assert_allclose(detector(NEW), oracle(NEW), rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_directions_without_variance_are_left_out():
  """A dead unit, as of a ReLU: the pseudo-inverse of the covariance ignores it."""
  dead = np.concatenate([TRAIN, np.zeros((90, 1))], axis=1)
  new = np.concatenate([NEW, np.ones((11, 1))], axis=1)
  for kind, want in (
    ("mahalanobis", distances(NEW)[0]),
    ("relative_mahalanobis", -np.subtract(*distances(NEW)[::-1])),
  ):
    np.testing.assert_allclose(fit_detector(dead, kind=kind, labels=LABELS)(new), want, rtol=1e-9)


@pytest.mark.parametrize("kind", ORACLES)
def test_scores_are_nan_if_traced_examples_are_too_few(kind):
  options = ORACLES[kind][0] | ({"num_classes": CLASSES} if "labels" in ORACLES[kind][0] else {})
  few = np.arange(90) < (6 if kind == "knn" else 0)
  scores = jit(lambda where: fit_detector(np.float32(TRAIN), kind=kind, where=where, **options)(NEW))
  assert np.isnan(scores(few)).all()
  assert np.isfinite(scores(np.arange(90) < 80)).all()


@pytest.mark.parametrize("number", [1000, 50_000])
def test_small_variances_of_many_examples_are_kept_and_constants_left_out(number):
  """In float32, with a constant unit, one that is constant in each class, and the sum of two others."""
  draw = np.random.default_rng(1)
  labels = draw.integers(0, 2, number)
  real = draw.normal(size=(number, 4)) * [10, 1, 0.1, 0.05] + 3.3
  constant = np.stack([np.full(number, 3.3), 3.3 - 2 * labels], axis=1)
  features = np.float32(np.concatenate([real, constant, real[:, :1] + real[:, 1:2]], axis=1))
  new = 3.3 + np.float64([[0, 0, 0, 0.5], [0, 0, 1, 0], [0, 10, 0, 0]])
  shown = np.concatenate([new, np.full((3, 2), 2.3), new[:, :1] + new[:, 1:2]], axis=1)
  within = EmpiricalCovariance(assume_centered=True).fit(
    real - np.stack([real[labels == k].mean(0) for k in (0, 1)])[labels]
  )
  want = np.min([within.mahalanobis(new - real[labels == k].mean(0)) for k in (0, 1)], axis=0)
  fitted = fit_detector(features, kind="mahalanobis", labels=labels)
  np.testing.assert_allclose(fitted(np.float32(shown)), want, rtol=1e-3)


@pytest.mark.usefixtures("x64")
def test_a_class_without_examples_is_never_the_nearest():
  fitted = fit_detector(TRAIN, kind="mahalanobis", labels=LABELS, num_classes=CLASSES + 2)
  np.testing.assert_allclose(fitted(NEW), distances(NEW)[0], rtol=1e-9)
  traced = jit(lambda x, labels: fit_detector(x, kind="mahalanobis", labels=labels, num_classes=CLASSES)(NEW))
  np.testing.assert_allclose(traced(TRAIN, LABELS), distances(NEW)[0], rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_the_limit_of_the_energy_is_the_largest_logit():
  logits = rng.normal(size=(5, 4))
  np.testing.assert_array_equal(energy(logits, temperature=0), -logits.max(1))
  np.testing.assert_allclose(energy(logits, temperature=1e-3), -logits.max(1), atol=2e-3)
  mixed = energy(logits, temperature=np.array([0.0, 1.0, 0.0, 1.0, 2.0]))
  np.testing.assert_allclose(mixed[:2], [-logits[0].max(), -logsumexp(logits[1])])
  gradient = jax.grad(lambda z: energy(z, temperature=0.0).sum())(jnp.asarray(logits))
  np.testing.assert_allclose(gradient, -np.eye(4)[logits.argmax(1)])


@pytest.mark.parametrize(
  ("options", "match"),
  [
    ({"kind": "cosine"}, "kind must be one of mahalanobis"),
    ({"kind": "mahalanobis"}, "labels must be given for mahalanobis, got None"),
    ({"kind": "vim"}, "kernel must be given for vim, got None"),
    ({"kind": "react", "kernel": np.ones((2, 3))}, r"kernel must be \[6, classes\]"),
    ({"kind": "react", **LAYER, "quantile": 1.5}, "quantile must lie in"),
    ({"kind": "vim", **LAYER, "num_components": 6}, "num_components must be below the 6"),
    ({"kind": "knn", "num_neighbors": 91}, "num_neighbors must be at most the 90"),
    ({"kind": "mahalanobis", "labels": LABELS, "num_classes": 2}, r"labels must lie in \[0, 2\)"),
    ({"kind": "mahalanobis", "labels": LABELS[:1]}, r"got labels \(1,\) for features"),
    (
      {"kind": "knn", "num_neighbors": 21, "where": np.arange(90) < 20},
      "num_neighbors must be at most the 20",
    ),
    (
      {"kind": "vim", **LAYER, "where": np.zeros(90, bool)},
      "where must have an example that counts, got none",
    ),
    ({"kind": "knn", "where": np.ones(3, bool)}, "where must have shape"),
  ],
)
def test_refusals(options, match):
  with pytest.raises(ValueError, match=match):
    fit_detector(np.float32(TRAIN), **options)


def test_features_of_another_size_are_refused():
  detector = fit_detector(np.float32(TRAIN), kind="knn")
  with pytest.raises(ValueError, match=r"features must be \[..., 6\], as those of the fit, got \(4, 5\)"):
    detector(np.ones((4, 5), np.float32))
  with pytest.raises(TypeError, match="features must be floating"):
    detector(np.ones((4, 6), np.int32))
  with pytest.raises(ValueError, match=r"features must be \[n, size\]"):
    fit_detector(np.ones(6, np.float32), kind="knn")
