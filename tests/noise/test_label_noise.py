"""Label noise: how often, to what, and the smoothed labels that it amounts to."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxreg import losses, noise

RATE, CLASSES = 0.3, 4


@pytest.mark.thorough
def test_frequencies_are_those_of_smoothed_targets():
  """Of 40 000 draws, within four standard deviations."""
  labels = jnp.tile(jnp.arange(CLASSES), 10_000)
  found = noise.label_noise(jax.random.key(0), labels, num_classes=CLASSES, rate=RATE)
  assert found.dtype == labels.dtype
  for label in range(CLASSES):
    share = np.bincount(np.asarray(found)[label::CLASSES], minlength=CLASSES) / 10_000
    wanted = np.where(np.arange(CLASSES) == label, 1 - RATE + RATE / CLASSES, RATE / CLASSES)
    assert (np.abs(share - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / 10_000)).all()


@pytest.mark.thorough
def test_limits_and_examples_without_a_label():
  labels = jnp.array([2, -1, 0], jnp.int8)
  for key, rate in ((jax.random.key(1), 0.0), (None, 1.0)):
    same = noise.label_noise(key, labels, num_classes=CLASSES, rate=rate)
    np.testing.assert_array_equal(same, labels)
  drawn = [
    np.asarray(noise.label_noise(jax.random.key(seed), labels, num_classes=CLASSES, rate=1.0))
    for seed in range(40)
  ]
  assert {int(x[1]) for x in drawn} == {-1}
  assert {int(x[0]) for x in drawn} == set(range(CLASSES))


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization",
  "noise robustness",
  "cross-entropy under label noise is, in expectation, that with targets eps / k and 1 - (k - 1) eps / k",
)
def test_the_expected_loss_is_that_of_smoothed_labels():
  """Enumeration of the classes that a label can become, in float64."""
  logits = np.random.default_rng(0).normal(size=(3, CLASSES))
  labels = np.array([0, 3, 1])
  chances = np.where(oracles.one_hot(labels, CLASSES) > 0, 1 - RATE + RATE / CLASSES, RATE / CLASSES)
  with jax.enable_x64(True):
    smoothed = losses.label_smoothing(jnp.asarray(logits), jnp.asarray(labels), smoothing=RATE)
  for row in range(3):
    expected = sum(
      chance * oracles.cross_entropy(logits[row], np.array(k)) for k, chance in enumerate(chances[row])
    )
    assert smoothed[row] == pytest.approx(float(expected), abs=1e-12)


def test_refusals():
  with pytest.raises(TypeError, match="labels must be integers"):
    noise.label_noise(jax.random.key(0), jnp.zeros(2), num_classes=3, rate=0.1)
  with pytest.raises(ValueError, match="rate must lie in"):
    noise.label_noise(jax.random.key(0), jnp.zeros(2, int), num_classes=3, rate=1.1)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.uint32])
def test_labels_that_are_no_classes(dtype):
  """A known one is refused; under `jit` it stays, so that the loss is NaN."""
  labels = np.array([0, 4, 100, 3], dtype)
  run = functools.partial(noise.label_noise, num_classes=4, rate=1.0)
  for known in (labels, jnp.asarray(labels)):
    with pytest.raises(ValueError, match="labels must be below num_classes, 4, got 100"):
      run(jax.random.key(0), known)
  for seed in range(5):
    found = jax.jit(run)(jax.random.key(seed), labels)
    assert found.dtype == dtype
    assert found[1:3].tolist() == [4, 100]
    assert max(found[::3].tolist()) < 4


@pytest.mark.thorough
def test_classes_that_the_dtype_of_labels_does_not_hold_are_refused():
  with pytest.raises(ValueError, match="num_classes must fit the dtype of labels, int8, got 129"):
    noise.label_noise(jax.random.key(0), jnp.zeros(2, jnp.int8), num_classes=129, rate=0.5)
  noise.label_noise(jax.random.key(0), jnp.zeros(2, jnp.int8), num_classes=128, rate=0.5)
