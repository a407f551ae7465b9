"""The noise of a gradient by its parts, against its covariance in closed form and by enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import flatness


def loss_fn(params, batch, *, key):
  """Keeps each input of all examples of a batch with probability 1/2: noise that couples the examples."""
  mask = 1.0 if key is None else 2.0 * jax.random.bernoulli(key, 0.5, (2,))
  return 0.5 * ((batch["x"] @ (params["w"] * mask) - batch["y"]) ** 2).mean()


PARAMS = {"w": jnp.array([0.7, -0.4])}
RNG = np.random.default_rng(0)
PARTS = [
  {"x": jnp.asarray(RNG.normal(size=(3, 2)), jnp.float32), "y": jnp.asarray(RNG.normal(size=3), jnp.float32)}
  for _ in range(4)
]


def enumerated():
  """The covariance of the mean gradient, from all masks of each part in float64."""
  w, total = np.array([0.7, -0.4]), np.zeros((2, 2))
  for part in PARTS:
    x, y = (np.asarray(part[name], np.float64) for name in "xy")
    masks = [2.0 * np.array(mask) for mask in itertools.product((0, 1), repeat=2)]
    gradients = np.stack([mask * (x.T @ (x @ (w * mask) - y)) / 3 for mask in masks])
    total += np.cov(gradients.T, ddof=0)
  return total / len(PARTS) ** 2


@pytest.mark.parametrize("num", [2, pytest.param(1000, marks=pytest.mark.thorough)])
def test_the_covariance_of_the_mean_gradient_is_enumerated_over_all_masks(num):
  """It is unbiased for two draws, too: over 300 keys the mean is within five standard errors."""
  keys = jax.random.split(jax.random.key(0), 300 if num == 2 else 1)
  found = []
  for key in keys:
    samples = flatness.sample_noise_by_parts(loss_fn, PARAMS, PARTS, key=key, num_samples=num)
    assert samples.shape == (num * 4, 2)
    found.append(np.asarray(samples.T @ samples) / len(samples))
  error = np.std(found, axis=0, ddof=1) / np.sqrt(len(keys)) if num == 2 else 0.01
  assert (np.abs(np.mean(found, axis=0) - enumerated()) < 5 * error).all()


def test_each_draw_has_all_parts_and_repeats_with_its_key():
  draw = lambda key: flatness.sample_noise_by_parts(loss_fn, PARAMS, PARTS, key=key, num_samples=3, mask="w")
  first, again, other = draw(jax.random.key(0)), draw(jax.random.key(0)), draw(jax.random.key(1))
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)
  np.testing.assert_allclose(first.reshape(3, 4, 2).sum(axis=0), 0, atol=1e-6)
  gradient = lambda k, j: jax.grad(loss_fn)(
    PARAMS, PARTS[j], key=jax.random.fold_in(jax.random.fold_in(jax.random.key(0), k), j)
  )["w"]
  of_part = np.stack([gradient(k, 2) for k in range(3)])
  expected = np.sqrt(3 / (4 * 2)) * (of_part - of_part.mean(axis=0))
  np.testing.assert_allclose(first.reshape(3, 4, 2)[:, 2], expected, rtol=1e-5)


def test_bad_arguments():
  for parts, num, message in (
    (PARTS, 1, "num_samples must be at least 2, got 1"),
    ([], 2, r"parts must be batches with equal numbers of examples, got \[\]"),
    ([jnp.zeros(2), jnp.zeros(3)], 2, r"parts must be batches with equal numbers of examples, got \[2, 3\]"),
  ):
    with pytest.raises(ValueError, match=message):
      flatness.sample_noise_by_parts(loss_fn, PARAMS, parts, key=jax.random.key(0), num_samples=num)
