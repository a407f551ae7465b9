"""Samples of gradients, of their parts and of trajectories, and the covariance by examples."""

import itertools

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest

from jaxreg import flatness


def _noisy_gradient_loss(params, batch, *, key):
  """Its gradient is `batch + key's normal draw`."""
  return params["w"] @ (batch + jax.random.normal(key, batch.shape, batch.dtype))


@pytest.mark.thorough
def test_gradients_are_those_of_the_loss_under_each_key():
  params, batch = {"w": jnp.ones(3), "other": jnp.ones(2)}, jnp.arange(3.0)
  key = jax.random.key(0)
  samples = flatness.sample_gradients(
    _noisy_gradient_loss, params, batch, key=key, num_samples=5, mask="w", chunk_size=2
  )
  expected = [batch + jax.random.normal(jax.random.fold_in(key, j), (3,)) for j in range(5)]
  np.testing.assert_allclose(samples, np.stack(expected), rtol=1e-6)
  more = flatness.sample_gradients(_noisy_gradient_loss, params, batch, key=key, num_samples=7, mask="w")
  np.testing.assert_allclose(more[:5], samples, rtol=1e-6)
  last = flatness.sample_gradients(
    _noisy_gradient_loss, params, batch, key=key, num_samples=2, first=5, mask="w"
  )
  np.testing.assert_allclose(last, more[5:], rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("chunk_size", [pytest.param(1, marks=pytest.mark.thorough), 7])
def test_per_example_covariance_agrees_with_samples_of_the_whole_gradient(chunk_size):
  """Within four standard errors of 4000 sampled full-batch gradients, entry by entry and in the trace."""
  with jax.enable_x64(True):
    params, batch = nets.make_params(), nets.make_batch(examples=10)
    samples = flatness.sample_gradients(
      nets.loss_fn, params, batch, key=jax.random.key(0), num_samples=4000, mask="Dense_1/*", chunk_size=500
    )
    sampled = np.asarray(flatness.noise_covariance(samples, ddof=1))
    found = np.asarray(
      flatness.per_example_noise_covariance(
        nets.loss_fn,
        params,
        batch,
        key=jax.random.key(1),
        num_samples=2000,
        mask="Dense_1/*",
        chunk_size=chunk_size,
      )
    )
    scale = np.sqrt(np.outer(np.diag(sampled), np.diag(sampled)))
    # Each entry's standard error is at most about scale * sqrt(kurtosis / N) on either side.
    assert np.abs(found - sampled).max() < 4 * (scale * np.sqrt(2 * 3 / 4000)).max() * 1.5
    np.testing.assert_allclose(np.trace(found), np.trace(sampled), rtol=0.05)


def test_few_draws_are_unbiased():
  """One example whose gradient is a sign: the variance is 1, and two draws find it on average."""
  loss = lambda params, batch, *, key: (
    (params * jax.random.rademacher(key, (1,), float)).sum() + 0 * batch.sum()
  )
  found = flatness.per_example_noise_covariance(
    loss, jnp.ones(1), jnp.zeros(4000), key=jax.random.key(0), num_samples=2, chunk_size=4000
  )
  # Variances of two signs are 0 or 2: the standard error of the mean of 4000 is 1 / sqrt(4000).
  assert float(found[0, 0] * 4000) == pytest.approx(1, abs=4 / np.sqrt(4000))


def test_bad_arguments():
  with pytest.raises(ValueError, match=r"samples must be \[num, size\]"):
    flatness.noise_covariance(jnp.zeros(3))
  with pytest.raises(ValueError, match=r"samples must be \[num, size\] with num above ddof=1, got \(1, 3\)"):
    flatness.noise_covariance(jnp.zeros((1, 3)), ddof=1)
  with pytest.raises(ValueError, match=r"directions must be \[k, 5\].*got \(5,\)"):
    flatness.projected_variance(jnp.zeros((3, 5)), jnp.zeros(5))
  for batch in ({"x": jnp.zeros(3), "y": jnp.zeros(4)}, jnp.zeros(())):
    with pytest.raises(ValueError, match="batch: its leaves must share a leading axis of examples"):
      flatness.per_example_noise_covariance(nets.loss_fn, jnp.ones(2), batch, key=jax.random.key(0))
  with pytest.raises(ValueError, match="num_components must be at most 2"):
    flatness.principal_components(jnp.zeros((3, 5)), num_components=4)
  with pytest.raises(ValueError, match="num_samples must be at least 2, got 1"):
    flatness.per_example_noise_covariance(
      nets.loss_fn, {}, jnp.zeros(3), key=jax.random.key(0), num_samples=1
    )


@pytest.mark.thorough
def test_many_narrow_examples_are_all_counted():
  sign = lambda key: jax.random.rademacher(key, (1,), jnp.bfloat16)
  loss = lambda params, batch, *, key: (params * sign(key)).sum() + batch.sum()
  params, batch = jnp.ones(1, jnp.bfloat16), jnp.zeros(2000, jnp.bfloat16)
  got = flatness.per_example_noise_covariance(loss, params, batch, key=jax.random.key(0))
  assert got.dtype == jnp.float32
  # Half of the pairs differ, which count 2 each: the standard error is 1 / sqrt(2000).
  np.testing.assert_allclose(2000 * got, 1, atol=4 / np.sqrt(2000))


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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


def test_bad_arguments_of_parts():
  for parts, num, message in (
    (PARTS, 1, "num_samples must be at least 2, got 1"),
    ([], 2, "parts must be at least one batch, got none"),
  ):
    with pytest.raises(ValueError, match=message):
      flatness.sample_noise_by_parts(loss_fn, PARAMS, parts, key=jax.random.key(0), num_samples=num)
