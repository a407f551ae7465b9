"""Softmax cross-entropy keeps its digits down to losses of 1e-12."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreg import losses

value_and_grad = jax.jit(jax.value_and_grad(losses.softmax_cross_entropy))


def near_zero(loss, classes):
  """Float32 logits whose loss is about `loss`: unequal margins, the target in the middle."""
  target = classes // 2
  shares = np.arange(1, classes + 1, dtype=np.float64)
  shares[target] = 0
  with np.errstate(divide="ignore"):
    logits = np.log(math.expm1(loss) * shares / shares.sum())
  logits[target] = 0
  # A common shift, so that the target's logit is not special.
  return (logits + 3).astype(np.float32), target


def exact(logits, target):
  """Loss and gradient from margins in float64."""
  margins = np.delete(np.float64(logits) - np.float64(logits[target]), target)
  total = np.exp(margins).sum()
  wrong = np.exp(margins) / (1 + total)
  return np.log1p(total), np.insert(wrong, target, -wrong.sum())


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("loss", [1e-3, 1e-6, 1e-8, 1e-12, *(math.exp(-margin) for margin in (5, 15, 30))])
def test_accurate_near_zero_loss(loss, classes):
  logits, target = near_zero(loss, classes)
  value, gradient = exact(logits, target)
  np.testing.assert_allclose(value, loss, rtol=1e-4)  # the test is about this loss
  got, got_gradient = value_and_grad(logits, jnp.array(target))
  np.testing.assert_allclose(np.float64(got), value, rtol=1e-6)
  np.testing.assert_allclose(np.float64(got_gradient), gradient, rtol=1e-5)


def test_accurate_hessian_near_zero_loss():
  logits, target = near_zero(1e-8, 4)
  p = np.abs(exact(logits, target)[1])
  p[target] = 1 - p[target]
  want = np.diag(p) - np.outer(p, p)
  want[target, target] = p[target] * (1 - p[target])
  got = jax.jit(jax.hessian(losses.softmax_cross_entropy))(logits, jnp.array(target))
  np.testing.assert_allclose(np.float64(got), want, rtol=1e-5, atol=1e-20)


@pytest.mark.thorough
def test_the_usual_form_would_fail():
  """logsumexp(o) - o_t loses these digits, so the tests above measure something."""
  logits, target = near_zero(1e-8, 10)
  naive = float(optax.softmax_cross_entropy_with_integer_labels(logits, jnp.array(target)))
  assert abs(naive / 1e-8 - 1) > 0.1


@pytest.mark.thorough
def test_exact_at_huge_logits():
  logits = jnp.array([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [1e4, 1e4, 1e4]])
  function = lambda o: losses.softmax_cross_entropy(o, jnp.array([0, 0, 2]))
  np.testing.assert_allclose(function(logits), [0, 2e4, math.log(3)], rtol=1e-6)
  gradient = jax.grad(lambda o: function(o).sum())(logits)
  np.testing.assert_allclose(gradient, [[0, 0, 0], [-1, 1, 0], [1 / 3, 1 / 3, -2 / 3]], rtol=1e-6)


@pytest.mark.thorough
def test_one_logit_an_example_is_refused_with_the_remedy():
  z = jnp.array([[-5.0], [0.0], [2.0]])
  labels = jnp.array([0, 1, 0])
  for call in (losses.softmax_cross_entropy, jax.jit(losses.softmax_cross_entropy)):
    with pytest.raises(ValueError, match=r"logits must have at least 2 classes, got \(3, 1\); .*zeros_like"):
      call(z, labels)
  two = jnp.concatenate([jnp.zeros_like(z), z], axis=-1)
  want = np.log1p(np.exp(np.where(labels == 1, -1, 1) * np.float64(z[:, 0])))
  np.testing.assert_allclose(losses.softmax_cross_entropy(two, labels), want, rtol=1e-6)


@pytest.mark.parametrize("loss", [1e-3, 1e-12])
def test_one_hot_labels_keep_the_digits_of_integers(loss):
  logits, target = near_zero(loss, 10)
  value, gradient = exact(logits, target)
  got, got_gradient = value_and_grad(logits, jax.nn.one_hot(target, 10))
  np.testing.assert_allclose(np.float64(got), value, rtol=1e-6)
  np.testing.assert_allclose(np.float64(got_gradient), gradient, rtol=1e-5)


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0], 3])
def test_a_known_label_out_of_range_is_refused_and_a_traced_one_gives_nan(labels):
  logits = jnp.zeros((*np.shape(labels), 3))
  for known in (np.asarray(labels), jnp.asarray(labels)):
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\), got (3|-1)"):
      losses.softmax_cross_entropy(logits, known)
  assert np.isnan(jax.jit(losses.softmax_cross_entropy)(logits, jnp.asarray(labels))).any()


def test_z_loss_is_over_the_last_axis():
  logits = np.random.default_rng(0).normal(size=(2, 3, 4))
  want = np.log(np.exp(logits).sum(axis=-1)) ** 2
  np.testing.assert_allclose(losses.z_loss(logits.astype(np.float32)), want, rtol=1e-5)


def test_z_loss_of_a_normaliser_near_1_keeps_its_digits():
  logits = np.float32([0, -11.5, -13])
  log_z = np.log1p(np.exp(np.float64(logits[1:])).sum())
  value, slope = jax.value_and_grad(losses.z_loss)(jnp.asarray(logits))
  np.testing.assert_allclose(value, log_z**2, rtol=1e-5)
  np.testing.assert_allclose(slope, 2 * log_z * np.exp(np.float64(logits) - log_z), rtol=1e-5)
