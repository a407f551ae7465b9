"""Deterministic attention and deterministic DropMax: closed forms and limits."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxreg import losses
from jaxreg.losses import deterministic_dropmax_terms

GENERATOR = np.random.default_rng(0)
LOGITS = GENERATOR.normal(size=(12, 5)).astype(np.float32) * 2
GATES = GENERATOR.normal(size=(12, 5)).astype(np.float32) * 2
LABELS = GENERATOR.integers(0, 5, 12)


@pytest.mark.thorough
def test_equal_gates_are_the_softmax():
  for gate in (-30.0, 0.0, 30.0):
    loss = losses.deterministic_attention(LOGITS, np.full_like(GATES, gate), LABELS)
    np.testing.assert_allclose(loss, oracles.cross_entropy(LOGITS, LABELS), rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.claim(
  "dropmax", "table 1", "baseline deterministic attention: the same in training and prediction"
)
def test_training_and_prediction_are_the_same_function():
  log_probs = losses.dropmax_log_probs(LOGITS, GATES)
  loss = losses.deterministic_attention(LOGITS, GATES, LABELS)
  np.testing.assert_allclose(loss, -np.asarray(log_probs)[np.arange(12), LABELS], rtol=1e-5, atol=1e-6)


def test_the_gate_is_trained_by_the_likelihood():
  """d nll / d gate_k = (p_k - y_k) (1 - rho_k)."""
  gradient = jax.jit(jax.grad(lambda g: losses.deterministic_attention(LOGITS, g, LABELS).sum()))(GATES)
  gap = oracles.masked_softmax(LOGITS, oracles.sigmoid(GATES)) - oracles.one_hot(LABELS, 5)
  np.testing.assert_allclose(gradient, gap * (1 - oracles.sigmoid(GATES)), rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.claim(
  "dropmax", "table 1", "baseline deterministic DropMax: the gate is taught the labels", size="toy"
)
def test_the_supervision_teaches_the_labels():
  """Its gradient is rho - y: a gate that knows the label costs nothing."""
  auxiliary = lambda g: deterministic_dropmax_terms(LOGITS, g, LABELS)["auxiliary"].sum()
  gradient = jax.jit(jax.grad(auxiliary))(GATES)
  np.testing.assert_allclose(
    gradient, oracles.sigmoid(GATES) - oracles.one_hot(LABELS, 5), rtol=1e-4, atol=1e-6
  )
  knows = jnp.where(oracles.one_hot(LABELS, 5) > 0, 50.0, -50.0)
  terms = deterministic_dropmax_terms(LOGITS, knows, LABELS)
  np.testing.assert_allclose(terms["auxiliary"], 0, atol=1e-15)
  np.testing.assert_allclose(terms["nll"], 0, atol=1e-6)
