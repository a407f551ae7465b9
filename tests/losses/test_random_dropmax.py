"""Random DropMax: its masks, its limits, its expectation by enumeration."""

import functools

import jax
import numpy as np
import oracles
import pytest

from jaxreg import losses

LOGITS = np.array([0.5, 1.5, -1.0, 0.0], np.float32)


@pytest.mark.thorough
def test_the_target_is_always_kept_and_the_others_with_one_probability():
  labels = np.arange(6000) % 5
  target = oracles.one_hot(labels, 5) > 0
  for rate in (0.8, 0.6, 0.4):
    loss = lambda logits, rate=rate: losses.random_dropmax(jax.random.key(0), logits, labels, rate=rate)
    values, pull = jax.vjp(jax.jit(loss), np.zeros((6000, 5), np.float32))
    # At equal logits a kept class has a probability of at least 1/5, a dropped one of at most 1e-20.
    mask = np.asarray(pull(np.ones(6000, np.float32))[0]) > 1e-10
    assert not mask[target].any()
    kept = mask.sum(-1)
    np.testing.assert_allclose(values, np.log(kept + 1), rtol=1e-6, atol=1e-15)
    keep = 1 - rate
    assert abs(mask[~target].mean() - keep) < 4 * np.sqrt(keep * rate / (~target).sum())
    # Independently: the number kept has the variance of four coins.
    assert abs(kept.var() / (4 * keep * rate) - 1) < 0.1


@pytest.mark.thorough
@pytest.mark.parametrize("rate", [0.8, 0.4])
@pytest.mark.claim("dropmax", "table 1", "baseline random DropMax (class dropout)", size="enumeration")
def test_the_mean_loss_is_that_over_all_masks(rate):
  masks = oracles.all_masks(3)
  chances = oracles.mask_probabilities(masks, np.full(3, 1 - rate))
  others = np.exp(np.delete(LOGITS, 1).astype(np.float64))
  values = np.log(1 + ((masks + oracles.EPS) * others).sum(-1) / np.exp(np.float64(LOGITS[1])))
  expected = (chances * values).sum()
  draw = jax.jit(functools.partial(losses.random_dropmax, rate=rate))
  draws = draw(jax.random.key(2), np.tile(LOGITS, (20000, 1)), np.ones(20000, int))
  assert abs(np.mean(draws) - expected) < 4 * np.std(draws) / np.sqrt(20000)
  assert np.std(draws) > 0.05


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_a_probability_out_of_range_is_refused(rate):
  with pytest.raises(ValueError, match="rate"):
    losses.random_dropmax(jax.random.key(0), LOGITS[None], np.array([0]), rate=rate)
