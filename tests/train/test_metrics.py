"""Merged metrics are those of all examples at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxreg._sums import weighted
from jaxreg.calibration import merge
from jaxreg.train.data.batches import padded_indices
from jaxreg.train.step.metrics import averaged, prediction_metrics, summarize, tempered_sums, to_host

SIZE, CLASSES = 103, 5


def predictions():
  random = np.random.default_rng(0)
  logits = 2 * random.normal(size=(SIZE, CLASSES))
  labels = random.integers(CLASSES, size=SIZE)
  logits[np.arange(SIZE), labels] += 1
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  return log_probs.astype(np.float32), labels.astype(np.int32)


@pytest.mark.parametrize("scale", [0.2, 1.0, 6.0])
def test_nll_at_the_best_temperature_is_that_of_scipy_over_any_batches(scale):
  log_probs, labels = predictions()
  log_probs = scale * log_probs
  log_probs -= np.log(np.exp(log_probs).sum(-1, keepdims=True))
  padded, total = np.r_[log_probs, np.full((7, CLASSES), np.nan, np.float32)], None
  weights = np.r_[np.ones(SIZE), np.zeros(7)].astype(np.float32)
  for rows in np.array_split(np.arange(SIZE + 7), 3):
    sums = tempered_sums(padded[rows], np.r_[labels, np.full(7, -1)][rows], weights[rows])
    total = merge(total, to_host(({"nll_refined": sums}, {"nll_refined": sums})))  # two replicas

  def nll(log_temperature):
    scaled = log_probs.astype(np.float64) / np.exp(log_temperature)
    return (np.log(np.exp(scaled).sum(-1)) - scaled[np.arange(SIZE), labels]).mean()

  want = scipy.optimize.minimize_scalar(
    nll, bounds=(-4.6, 4.6), method="bounded", options={"xatol": 1e-8}
  ).fun
  np.testing.assert_allclose(summarize(total, "val")["val/nll_refined"], [want, want], rtol=1e-5)


def pooled(log_probs, labels):
  """The four figures in float64, from all examples at once."""
  probs = np.exp(log_probs.astype(np.float64))
  one_hot = np.eye(CLASSES)[labels]
  confidence, correct = probs.max(-1), probs.argmax(-1) == labels
  gap = 0.0
  for low in range(15):
    inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
    if inside.any():
      gap += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
  return {
    "val/error": 1 - correct.mean(),
    "val/nll": -np.log((probs * one_hot).sum(-1)).mean(),
    "val/brier": ((probs - one_hot) ** 2).sum(-1).mean(),
    "val/ece": gap,
  }


jitted = jax.jit(prediction_metrics)


def streamed(batch_size, log_probs, labels):
  total = None
  for index, weights in padded_indices(len(labels), batch_size):
    total = merge(total, to_host((jitted(log_probs[index], labels[index], weights),)))
  return averaged(summarize(total, "val"))


@pytest.mark.thorough
@pytest.mark.parametrize("batch_size", [103, 16, 100, 7])
def test_batches_with_a_padded_last_one_merge_exactly(batch_size):
  expected = pooled(*predictions())
  assert 0.2 < expected["val/error"] < 0.8
  assert expected["val/ece"] > 0.01
  assert -(-SIZE // batch_size) * batch_size > SIZE or batch_size == SIZE
  got = streamed(batch_size, *predictions())
  assert got.keys() == expected.keys()
  assert got["val/error"] == expected["val/error"]
  for name, value in expected.items():
    np.testing.assert_allclose(got[name], value, rtol=1e-6, err_msg=name)


def test_an_example_of_weight_0_counts_for_nothing_even_if_it_is_nan():
  log_probs, labels = predictions()
  weights = (np.arange(SIZE) % 3 > 0).astype(np.float32)
  expected = pooled(log_probs[weights > 0], labels[weights > 0])
  log_probs[weights == 0] = np.nan
  labels[weights == 0] = 0
  got = averaged(summarize(merge(None, to_host((jitted(log_probs, labels, weights),))), "val"))
  for name, value in expected.items():
    np.testing.assert_allclose(got[name], value, rtol=1e-6, err_msg=name)


def test_weighted():
  values = jnp.array([1.0, jnp.nan, 3.0, jnp.inf])
  total, count = weighted(values, jnp.array([0.5, 0.0, 2.0, 0.0]))
  assert (float(total), float(count)) == (6.5, 2.5)
  total, count = weighted(jnp.array([True, False, True]), jnp.array([1.0, 1.0, 0.0]))
  assert (float(total), float(count)) == (1.0, 2.0)


def test_merging_is_in_float64():
  """A float32 sum stops at 2^24."""
  total = None
  for _ in range(3):
    total = merge(total, {"loss": (jnp.float32(2**24), jnp.float32(2**24))})
  total = merge(total, {"loss": (jnp.float32(1), jnp.float32(1))})
  assert total["loss"] == (3 * 2**24 + 1, 3 * 2**24 + 1)


def test_nothing_counted_is_nan():
  assert np.isnan(summarize({"loss": (np.float64(0), np.float64(0))}, "train")["train/loss"])
