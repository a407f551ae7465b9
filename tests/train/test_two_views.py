"""FixMatch's term: which view teaches, which one learns, and their loss; AugMix's three views."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg.objective import View
from jaxreg.objective._view import Pass
from jaxreg.train.step import terms

BATCH, SIDE, CLASSES = 6, 8, 3


def _viewed():
  """A view, the images in it, and the calls of its linear network: `(inputs, noise, outputs)`."""
  rng = np.random.default_rng(0)
  images = jnp.asarray(rng.uniform(0.1, 0.9, (BATCH, SIDE, SIDE, 1)), jnp.float32)
  kernel = jnp.asarray(0.2 * rng.normal(size=(SIDE * SIDE, CLASSES)), jnp.float32)
  noise, calls = jax.random.key(7), []

  def run(params, batch, key):
    predictions = jax.nn.log_softmax(batch["inputs"].reshape(BATCH, -1) @ kernel)
    calls.append((batch["inputs"], key, predictions))
    return Pass(jnp.zeros(BATCH), SimpleNamespace(predictions=predictions))

  aux = SimpleNamespace(predictions=jnp.zeros((BATCH, CLASSES)))
  batch = {"inputs": images, "model_state": {}}
  view = View(None, batch, noise, None, jnp.ones(BATCH), jnp.zeros(BATCH), aux, run, batch)
  return view, images, calls


def _seen(threshold, **options):
  """The term, and what its two passes saw and gave."""
  view, images, calls = _viewed()
  values = terms.fixmatch(jax.random.key(1), view, threshold=threshold, **options)
  by_noise = {key is None: (x, outputs) for x, key, outputs in calls}
  assert len(calls) == 2
  assert {key is None or bool(key == view.key) for _, key, _ in calls} == {True}
  (weak, taught), (strong, learned) = by_noise[True], by_noise[False]
  return np.asarray(values), images, weak, np.asarray(taught), np.asarray(strong), np.asarray(learned)


@pytest.mark.thorough
def test_the_weak_view_teaches_and_the_strong_one_learns():
  threshold = 0.61  # half of the images are surer
  values, images, weak, taught, strong, learned = _seen(threshold, cutout_size=3)
  np.testing.assert_array_equal(weak, images)
  changed = np.abs(strong - images).max(axis=(1, 2, 3)) > 0.05
  assert changed.all()  # by the square at the least
  assert ((strong == 0.5).sum(axis=(1, 2, 3)) >= 4).all()
  p = np.exp(np.asarray(taught, np.float64))
  wanted = np.where(p.max(axis=1) >= threshold, -learned[np.arange(BATCH), p.argmax(axis=1)], 0)
  assert 0 < (wanted > 0).sum() < BATCH
  np.testing.assert_allclose(values, wanted, rtol=1e-5)


@pytest.mark.thorough
def test_strength_is_the_options():
  plain = _seen(0.0, cutout_size=0)[4]
  assert not (plain == 0.5).any()
  np.testing.assert_array_equal(plain, _seen(0.0, cutout_size=0)[4])
  assert (plain != _seen(0.0, cutout_size=0, magnitude=1.0)[4]).any()
  assert (plain != _seen(0.0, cutout_size=0, num_ops=1)[4]).any()


@pytest.mark.thorough
def test_augmix_compares_the_loss_s_pass_with_two_mixtures():
  view, images, calls = _viewed()
  log_probs = jax.nn.log_softmax(jnp.asarray(np.random.default_rng(1).normal(size=(BATCH, CLASSES))))
  values = terms.augmix(
    jax.random.key(1), dataclasses.replace(view, aux=SimpleNamespace(predictions=log_probs)), severity=9.0
  )
  assert len(calls) == 2
  assert all(bool(key == view.key) for _, key, _ in calls)
  (one, _, first), (other, _, second) = calls
  for left, right in ((images, one), (images, other), (one, other)):
    assert (np.abs(left - right).max(axis=(1, 2, 3)) > 1e-3).mean() > 0.5
  p = np.exp(np.asarray([log_probs, first, second], np.float64))
  wanted = (p * np.log(p / p.mean(0))).sum(-1).mean(0)
  np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-6)
