import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest

from jaxreg import flatness


def _noisy_gradient_loss(params, batch, *, key):
  """Its gradient is `batch + key's normal draw`."""
  return params["w"] @ (batch + jax.random.normal(key, batch.shape, batch.dtype))


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


def test_trajectory_of_a_random_walk():
  step = lambda state, batch, *, key: {
    "w": state["w"] + batch * jax.random.normal(key, (2,)),
    "n": state["n"] + 1,
  }
  state = {"w": jnp.zeros(2), "n": 0}
  key = jax.random.key(1)
  end, samples = flatness.sample_trajectory(
    step, state, jnp.float32(2), key=key, num_samples=6, mask="w", params_of=lambda state: {"w": state["w"]}
  )
  steps = [2 * np.asarray(jax.random.normal(jax.random.fold_in(key, j), (2,))) for j in range(6)]
  np.testing.assert_allclose(samples, np.cumsum(steps, axis=0), rtol=1e-5)
  np.testing.assert_allclose(end["w"], samples[-1])
  assert end["n"] == 6


@pytest.mark.claim("flatness", "definition 3", "the projected variance divides by N, and is v' Sigma v")
@pytest.mark.parametrize("ddof", [0, 1])
def test_covariance_and_projected_variance(ddof):
  with jax.enable_x64(True):
    samples = np.random.default_rng(0).normal(size=(30, 8)) @ np.diag(np.arange(1.0, 9))
    expected = np.cov(samples.T, ddof=ddof)
    np.testing.assert_allclose(flatness.noise_covariance(samples, ddof=ddof), expected, rtol=1e-12)
    directions = np.random.default_rng(1).normal(size=(4, 8))
    projected = flatness.projected_variance(samples, directions, ddof=ddof)
    np.testing.assert_allclose(projected, np.diag(directions @ expected @ directions.T), rtol=1e-12)


@pytest.mark.claim(
  "flatness", "definition 1", "the variance at an eigen-direction is that eigenvalue of the covariance"
)
@pytest.mark.parametrize(("num_samples", "ddof"), [(5, 0), (5, 1), (50, 0), (50, 1)])
def test_principal_components_are_those_of_numpy(num_samples, ddof):
  """Fewer samples than parameters, and more."""
  with jax.enable_x64(True):
    samples = np.random.default_rng(0).normal(size=(num_samples, 12)) @ np.diag(np.arange(1.0, 13)) + 3
    found = flatness.principal_components(samples, ddof=ddof)
    values, vectors = np.linalg.eigh(np.cov(samples.T, ddof=ddof))
    number = min(num_samples - 1, 12)
    np.testing.assert_allclose(found.variances, values[::-1][:number], rtol=1e-10)
    overlap = np.abs(np.sum(np.asarray(found.directions) * vectors.T[::-1][:number], axis=1))
    np.testing.assert_allclose(overlap, 1, rtol=1e-9)
    np.testing.assert_allclose(found.mean, samples.mean(axis=0))
    assert found.rank == number


def test_dead_units_are_no_components():
  """Directions without variance, as dead ReLUs leave, are counted out instead of giving tiny negatives."""
  samples = np.random.default_rng(0).normal(size=(50, 10)).astype(np.float32)
  samples[:, 3:6] = 0
  found = flatness.principal_components(samples)
  assert found.rank == 7
  np.testing.assert_array_equal(found.variances[7:], 0)
  np.testing.assert_array_equal(found.directions[7:], 0)
  assert (np.asarray(found.variances[:7]) > 0).all()


def test_spectrum_is_biased_where_the_projected_variance_is_not():
  """300 samples of isotropic noise in 200 dimensions find eigenvalues far below and far above 1."""
  samples = np.random.default_rng(0).normal(size=(300, 200)).astype(np.float32)
  variances = np.asarray(flatness.principal_components(samples).variances)
  # Marchenko and Pastur: (1 +- sqrt(200 / 300))^2.
  np.testing.assert_allclose(
    variances[[0, -1]], [(1 + np.sqrt(2 / 3)) ** 2, (1 - np.sqrt(2 / 3)) ** 2], rtol=0.25
  )
  projected = np.asarray(flatness.projected_variance(samples, np.eye(200, dtype=np.float32)))
  assert projected.mean() == pytest.approx(1, abs=0.02)
  assert projected.max() < 1.5


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
  step = lambda w, batch, *, key: (w, {"loss": w.sum()})
  with pytest.raises(ValueError, match="step_fn must return a state with the structure of state, PyTreeDef"):
    flatness.sample_trajectory(
      step, jnp.ones(2), None, key=jax.random.key(0), num_samples=2, params_of=lambda w: w
    )
  for batch in ({"x": jnp.zeros(3), "y": jnp.zeros(4)}, jnp.zeros(())):
    with pytest.raises(ValueError, match="batch: its leaves must share a leading axis of examples"):
      flatness.per_example_noise_covariance(nets.loss_fn, jnp.ones(2), batch, key=jax.random.key(0))
  with pytest.raises(ValueError, match="num_components must be at most 2"):
    flatness.principal_components(jnp.zeros((3, 5)), num_components=4)
  with pytest.raises(ValueError, match="num_samples must be at least 2, got 1"):
    flatness.per_example_noise_covariance(
      nets.loss_fn, {}, jnp.zeros(3), key=jax.random.key(0), num_samples=1
    )


def test_many_narrow_examples_are_all_counted():
  sign = lambda key: jax.random.rademacher(key, (1,), jnp.bfloat16)
  loss = lambda params, batch, *, key: (params * sign(key)).sum() + batch.sum()
  params, batch = jnp.ones(1, jnp.bfloat16), jnp.zeros(2000, jnp.bfloat16)
  got = flatness.per_example_noise_covariance(loss, params, batch, key=jax.random.key(0))
  assert got.dtype == jnp.float32
  # Half of the pairs differ, which count 2 each: the standard error is 1 / sqrt(2000).
  np.testing.assert_allclose(2000 * got, 1, atol=4 / np.sqrt(2000))
