"""Label smoothing with integer labels is cross-entropy with the smoothed one-hot targets."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest

from jaxreg import losses

K = 5


def inputs(seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(16, K)).astype(np.float32) * 3, rng.integers(0, K, 16)


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization", "noise robustness", "smoothed targets are eps / k and 1 - (k - 1) eps / k; they sum to 1"
)
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_equals_optax_on_smoothed_labels(smoothing):
  logits, labels = inputs()
  targets = optax.smooth_labels(jax.nn.one_hot(labels, K), smoothing)
  np.testing.assert_allclose(targets.sum(-1), 1, rtol=1e-6)
  pair = lambda function: jax.jit(jax.value_and_grad(lambda o: function(o).sum()))(logits)
  ours = pair(lambda o: losses.label_smoothing(o, labels, smoothing=smoothing))
  optaxs = pair(lambda o: optax.softmax_cross_entropy(o, targets))
  chex.assert_trees_all_close(ours, optaxs, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_default_is_a_tenth_over_all():
  logits, labels = inputs(2)
  np.testing.assert_allclose(
    losses.label_smoothing(logits, labels), oracles.smoothed_cross_entropy(logits, labels, 0.1), rtol=1e-5
  )


@pytest.mark.thorough
def test_no_smoothing_is_the_cross_entropy():
  logits, labels = inputs(4)
  for over in ("all", "others"):
    np.testing.assert_array_equal(
      losses.label_smoothing(logits, labels, smoothing=0.0, over=over),
      losses.softmax_cross_entropy(logits, labels),
    )


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization",
  "noise robustness",
  "the label is right with probability 1 - eps; by these targets with 1 - (k - 1) eps / k",
  status="erratum",
)
@pytest.mark.parametrize("over", ["all", "others"])
def test_minimum_lies_at_a_finite_gap(over):
  """Where the probabilities are the targets: log of the right class's target over a wrong one's."""
  smoothing = 0.1
  with jax.enable_x64(True):
    off = smoothing / (K if over == "all" else K - 1)
    gap = math.log((1 - (K - 1) * off) / off)
    loss = lambda o: losses.label_smoothing(o, jnp.array(2), smoothing=smoothing, over=over)
    at = jnp.zeros(K).at[2].set(gap)
    right = {"all": 1 - (K - 1) * smoothing / K, "others": 1 - smoothing}[over]
    np.testing.assert_allclose(jax.nn.softmax(at)[2], right, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(at), 0, atol=1e-12)
    assert loss(at) < min(loss(at.at[2].add(0.1)), loss(at.at[2].add(-0.1)))
    p = np.full(K, off)
    p[2] = 1 - (K - 1) * off
    np.testing.assert_allclose(loss(at), -(p * np.log(p)).sum(), rtol=1e-10)  # the targets' entropy


def test_smoothing_may_be_traced():
  logits, labels = inputs(5)
  got = jax.jit(lambda s: losses.label_smoothing(logits, labels, smoothing=s))(0.3)
  np.testing.assert_allclose(got, oracles.smoothed_cross_entropy(logits, labels, 0.3), rtol=1e-5)


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, math.nan])
def test_smoothing_out_of_range_is_refused(smoothing):
  logits, labels = inputs()
  with pytest.raises(ValueError, match="smoothing"):
    losses.label_smoothing(logits, labels, smoothing=smoothing)


def test_another_form_is_refused():
  logits, labels = inputs()
  with pytest.raises(ValueError, match="over"):
    losses.label_smoothing(logits, labels, over="some")
