"""Random DropMax: its masks, its limits, its expectation by enumeration."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxreg import losses

LOGITS = np.array([0.5, 1.5, -1.0, 0.0], np.float32)


def test_the_target_is_always_kept_and_the_others_with_one_probability():
  labels = np.arange(6000) % 5
  for keep_prob in (0.2, 0.4, 0.6):
    mask = np.asarray(
      losses.random_dropmax_mask(jax.random.key(0), labels, num_classes=5, keep_prob=keep_prob)
    )
    target = oracles.one_hot(labels, 5) > 0
    assert mask[target].all()
    spread = np.sqrt(keep_prob * (1 - keep_prob) / (~target).sum())
    assert abs(mask[~target].mean() - keep_prob) < 4 * spread
    # Independently: the number kept has the variance of four coins.
    kept = np.where(target, False, mask).sum(-1)
    assert abs(kept.var() / (4 * keep_prob * (1 - keep_prob)) - 1) < 0.1


@pytest.mark.parametrize("keep_prob", [0.2, 0.6])
@pytest.mark.claim("dropmax", "table 1", "baseline random DropMax (class dropout)")
def test_the_mean_loss_is_that_over_all_masks(keep_prob):
  masks = oracles.all_masks(3)
  chances = oracles.mask_probabilities(masks, np.full(3, keep_prob))
  others = np.exp(np.delete(LOGITS, 1).astype(np.float64))
  values = np.log(1 + ((masks + oracles.EPS) * others).sum(-1) / np.exp(np.float64(LOGITS[1])))
  expected = (chances * values).sum()
  draw = jax.jit(functools.partial(losses.random_dropmax, keep_prob=keep_prob))
  draws = draw(jax.random.key(2), np.tile(LOGITS, (20000, 1)), np.ones(20000, int))
  assert abs(np.mean(draws) - expected) < 4 * np.std(draws) / np.sqrt(20000)
  assert np.std(draws) > 0.05


@pytest.mark.parametrize("keep_prob", [-0.1, 1.5])
def test_a_probability_out_of_range_is_refused(keep_prob):
  with pytest.raises(ValueError, match="keep_prob"):
    losses.random_dropmax(jax.random.key(0), LOGITS[None], np.array([0]), keep_prob=keep_prob)


@pytest.mark.parametrize("sampler", [losses.random_dropmax_mask, losses.sample_classes])
def test_a_label_that_is_no_class_keeps_nothing(sampler):
  """A row without its target would pass for a mask; a known label that is no class is refused."""
  labels = np.array([2, 5, -1, 0, 300])
  for known in (labels, jnp.asarray(labels)):
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 5\)"):
      sampler(jax.random.key(0), known, num_classes=5)
  kept = np.asarray(
    jax.jit(lambda key, labels: sampler(key, labels, num_classes=5))(jax.random.key(0), labels)
  )
  assert kept.any(axis=-1).tolist() == [True, False, False, True, False]
  assert kept[[0, 3], [2, 0]].all()
