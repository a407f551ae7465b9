"""Sparsemax against closed forms, its definition as a projection, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from contract import jit

from jaxreg import losses
from jaxreg.losses._sparsemax import sparsemax_probs

sparsemax, probs_of = jit(losses.sparsemax), jit(sparsemax_probs)
sparsemax_log_probs = jit(losses.sparsemax_log_probs, static_argnames="eps")


def test_two_classes_have_a_closed_form():
  """A ramp of the difference: (o_1 - o_2 + 1) / 2, cut to [0, 1]."""
  difference = np.linspace(-3, 3, 61, dtype=np.float32)
  probs = probs_of(np.stack([difference, 0 * difference], -1))
  ramp = np.clip((difference + 1) / 2, 0, 1)
  np.testing.assert_allclose(probs, np.stack([ramp, 1 - ramp], -1), atol=1e-6)
  # The loss integrates it: 0, a parabola, a line.
  loss = sparsemax(np.stack([difference, 0 * difference], -1), np.zeros(61, int))
  expected = np.select(
    [difference >= 1, difference <= -1], [0 * difference, -difference], (1 - difference) ** 2 / 4
  )
  np.testing.assert_allclose(loss, expected, atol=1e-6)


@pytest.mark.claim("dropmax", "table 1", "baseline sparsemax: the projection onto the simplex", size="toy")
def test_no_point_of_the_simplex_is_nearer():
  generator = np.random.default_rng(0)
  logits = generator.normal(size=(20, 6)).astype(np.float32)
  probs = np.asarray(probs_of(logits), np.float64)
  np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-6)
  assert (probs >= 0).all()
  assert 0.2 < (probs == 0).mean() < 0.8
  others = generator.dirichlet(np.full(6, 0.3), size=(5000, 1))
  nearest = ((others - logits) ** 2).sum(-1).min(0)
  assert (((probs - logits) ** 2).sum(-1) <= nearest + 1e-6).all()


def test_the_gradient_is_the_gap_between_projection_and_target():
  generator = np.random.default_rng(1)
  logits = generator.normal(size=(30, 5)).astype(np.float32) * 2
  labels = generator.integers(0, 5, 30)
  gradient = jit(jax.grad(lambda o: sparsemax(o, labels).sum()))(logits)
  np.testing.assert_allclose(
    gradient, oracles.sparsemax_probs(logits) - oracles.one_hot(labels, 5), atol=1e-5
  )


def test_limits_of_the_scale():
  """Large logits give the argmax, small ones the uniform distribution and a gradient of softmax's."""
  logits = np.array([0.3, -0.2, 0.1, 0.0], np.float32)
  np.testing.assert_array_equal(probs_of(1e4 * logits), [1, 0, 0, 0])
  tiny = 1e-3 * logits
  np.testing.assert_allclose(probs_of(tiny), 0.25 + tiny - tiny.mean(), atol=1e-7)


def test_the_log_probabilities_have_a_floor():
  log_probs = sparsemax_log_probs(np.array([5.0, 0.0, 4.5], np.float32))
  np.testing.assert_allclose(log_probs, [np.log(0.75), np.log(1e-20), np.log(0.25)], rtol=1e-6)
  assert sparsemax_log_probs(np.zeros(2, np.float32), eps=0.5).tolist() == pytest.approx([np.log(0.5)] * 2)
  gradient = jit(jax.grad(lambda o: sparsemax_log_probs(o)[1]))(jnp.array([5.0, 0.0, 4.5]))
  assert np.isfinite(gradient).all()


def test_nan_stays_nan():
  for function in (probs_of, sparsemax_log_probs):
    assert np.isnan(function(jnp.array([jnp.nan, 1.0, 0.0]))).all()


@pytest.mark.parametrize("label", [-1, 3, 99])
def test_an_unknown_label_is_nan(label):
  assert np.isnan(sparsemax(np.zeros((1, 3), np.float32), jnp.array([label]))[0])
