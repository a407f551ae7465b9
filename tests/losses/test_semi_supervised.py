"""Terms without labels beside those with them: means over the parts, and who gets gradient from what."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from contract import jit

from jaxreg import losses, models

SOURCE = "regularization"
WHERE = "semi-supervised learning"
RNG = np.random.default_rng(0)
SUPERVISED, UNSUPERVISED = np.float32(RNG.uniform(1, 2, (2, 6)))
LABELS = np.array([2, -1, 0, -1, -1, 1])
semi = jit(losses.semi_supervised, static_argnames=("over", "axis_name"))


@pytest.mark.parametrize("over", ["unlabelled", "all"])
@pytest.mark.parametrize("labels", [LABELS, LABELS >= 0], ids=["integers", "bool"])
def test_the_mean_is_that_of_each_part(labels, over):
  """Whatever the sizes of the parts; padding has weight 0."""
  weights = np.float32([1, 1, 1, 1, 0, 0])
  other = LABELS < 0 if over == "unlabelled" else np.ones(6, bool)
  want = np.average(SUPERVISED, weights=weights * (LABELS >= 0))
  want += 0.3 * np.average(UNSUPERVISED, weights=weights * other)
  got = semi(SUPERVISED, UNSUPERVISED, labels, weight=0.3, over=over, weights=weights)
  np.testing.assert_allclose(np.average(got, weights=weights), want, rtol=1e-6)
  plain = losses.semi_supervised(SUPERVISED, UNSUPERVISED, labels, weight=0.3, over=over)
  assert ((plain > 0) == ((LABELS >= 0) | other)).all()


def test_the_value_of_each_example():
  got = semi(SUPERVISED, UNSUPERVISED, LABELS, weight=0.3)
  np.testing.assert_allclose(got, oracles.semi_supervised(SUPERVISED, UNSUPERVISED, LABELS, 0.3), rtol=1e-6)


def test_a_part_that_is_empty_is_zero():
  everything, nothing = np.ones(6, bool), np.zeros(6, bool)
  np.testing.assert_allclose(semi(SUPERVISED, UNSUPERVISED, everything), SUPERVISED, rtol=1e-6)
  np.testing.assert_allclose(semi(SUPERVISED, UNSUPERVISED, nothing), UNSUPERVISED, rtol=1e-6)
  # What has no label has no effect, whatever its loss is.
  got = semi(np.where(LABELS < 0, np.nan, SUPERVISED), UNSUPERVISED, LABELS)
  np.testing.assert_array_equal(got, semi(SUPERVISED, UNSUPERVISED, LABELS))


def test_a_batch_over_devices_has_the_parts_of_all():
  split = lambda x: x.reshape(2, 3)
  each = jax.vmap(functools.partial(losses.semi_supervised, axis_name="data"), axis_name="data")
  got = jit(each)(split(SUPERVISED), split(UNSUPERVISED), split(LABELS))
  np.testing.assert_allclose(got.ravel(), semi(SUPERVISED, UNSUPERVISED, LABELS), rtol=1e-6)


def _model():
  return models.Classifier(models.MLP((5,)), models.AffineHead({"digit": (3,), "inputs": (4,)}))


def _gradients(params, x, labels, weight):
  def objective(params):
    outputs = _model().apply({"params": params}, x, train=True)
    supervised = losses.softmax_cross_entropy(outputs["digit"], jnp.maximum(labels, 0))
    unsupervised = losses.reconstruction(outputs["inputs"], x)
    return losses.semi_supervised(supervised, unsupervised, labels, weight=weight, over="all").mean()

  return jax.grad(objective)(params)


def _norms(tree):
  return jax.tree.map(lambda x: float(jnp.abs(x).max()), tree)


@pytest.mark.slow
@pytest.mark.claim(
  SOURCE,
  WHERE,
  "a generative model shares parameters with the classifier: without labels those learn, its own do not",
  size="toy",
)
def test_reconstruction_trains_what_is_shared_and_not_the_classifier():
  x = jnp.asarray(RNG.normal(size=(6, 4)), jnp.float32)
  params = jit(lambda key: _model().init(key, x, train=False)["params"])(jax.random.key(0))
  step = jit(lambda labels, weight: _gradients(params, x, labels, weight))
  without = _norms(step(-jnp.ones(6, int), 1.0))
  assert set(without["head"]) == {"digit", "inputs"}
  assert without["head"]["digit"] == {"bias": 0.0, "kernel": 0.0}
  assert without["backbone"]["Dense_0"]["kernel"] > 0.01
  assert without["head"]["inputs"]["kernel"] > 0.01
  # At weight 0 the gradient is the supervised one, bit for bit, and the decoder has none.
  labels = jnp.asarray(LABELS)
  alone = step(labels, 0.0)

  def supervised(params):
    logits = _model().apply({"params": params}, x, train=True)["digit"]
    return (
      optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0)) * (labels >= 0)
    ).sum() / 3

  want = jit(jax.grad(supervised))(params)
  assert _norms(alone)["head"]["inputs"] == {"bias": 0.0, "kernel": 0.0}
  chex.assert_trees_all_close(alone, want, rtol=1e-5, atol=1e-7)


def test_consistency_is_symmetric_and_a_stopped_teacher_gets_no_gradient():
  one, two = jnp.asarray(RNG.normal(size=(2, 3, 4)), jnp.float32)

  def all_of(one, two):
    total = lambda a, b: losses.consistency(a, b).sum()
    stopped = lambda a, b: total(a, jax.lax.stop_gradient(b))
    return (
      total(one, two),
      total(two, one),
      jax.grad(total, (0, 1))(one, two),
      jax.grad(stopped, (0, 1))(one, two),
    )

  value, swapped, both, stopped = jit(all_of)(one, two)
  np.testing.assert_allclose(value, swapped, rtol=1e-6)
  # By the Jacobian of the softmax, J = diag p - p p^T: the gradient is 2 J (p - q) / K.
  p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in np.float64([one, two]))
  want = lambda p, q: 2 / 4 * (p * (p - q) - p * (p * (p - q)).sum(-1, keepdims=True))
  np.testing.assert_allclose(both[0], want(p, q), rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(both[1], want(q, p), rtol=1e-4, atol=1e-6)
  np.testing.assert_array_equal(stopped[0], both[0])
  np.testing.assert_array_equal(stopped[1], 0)


def test_refusals():
  with pytest.raises(TypeError, match="labels must be integers or bool, got float32"):
    losses.semi_supervised(SUPERVISED, UNSUPERVISED, np.float32(LABELS))
  with pytest.raises(ValueError, match="labels must have shape"):
    losses.semi_supervised(SUPERVISED, UNSUPERVISED, LABELS[1:])
  with pytest.raises(ValueError, match="unsupervised must have shape"):
    losses.semi_supervised(SUPERVISED, UNSUPERVISED[1:], LABELS)
  with pytest.raises(ValueError, match="weights must have shape"):
    losses.semi_supervised(SUPERVISED, UNSUPERVISED, LABELS, weights=np.ones(3, np.float32))
  with pytest.raises(ValueError, match="weight must lie in"):
    losses.semi_supervised(SUPERVISED, UNSUPERVISED, LABELS, weight=-1.0)
  with pytest.raises(ValueError, match="over must be"):
    losses.semi_supervised(SUPERVISED, UNSUPERVISED, LABELS, over="labelled")  # pyright: ignore
  with pytest.raises(ValueError, match="likelihood must be"):
    losses.reconstruction(SUPERVISED, UNSUPERVISED, likelihood="poisson")  # pyright: ignore
