"""The sharpness along an update on functions with a closed form, and the noise scale of known gradients."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import optax
import pytest

from jaxreg import flatness

RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(6, 6))
MATRIX, POINT, UPDATE = ROOT @ ROOT.T, RNG.normal(size=6), RNG.normal(size=6)


def quadratic(params, batch, *, key):
  w = jnp.concatenate([params["a"], params["b"]])
  return 0.5 * w @ batch @ w


def split(w):
  return {"a": jnp.asarray(w[:2]), "b": jnp.asarray(w[2:])}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("length", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("tol", [1 / 16, 1e-9])
def test_of_a_quadratic_all_are_known(length, tol):
  """A step of 2 g'u / u'Hu along a descent brings the loss back; by NumPy."""
  gradient = MATRIX @ POINT
  update = -length * (0.7 * gradient + 0.1 * UPDATE)
  assert gradient @ update < 0
  found = flatness.update_sharpness(quadratic, split(POINT), split(update), jnp.asarray(MATRIX), tol=tol)
  curvature = update @ MATRIX @ update
  np.testing.assert_allclose(found.directional, curvature / -(gradient @ update), rtol=1e-9)
  np.testing.assert_allclose(found.normalized, curvature / (update @ update), rtol=1e-9)
  np.testing.assert_allclose(found.critical, found.directional, rtol=tol)
  assert found.normalized <= np.linalg.eigvalsh(MATRIX).max() * (1 + 1e-12)


@pytest.mark.usefixtures("x64")
def test_two_is_the_edge_of_gradient_descent():
  """Along the sharpest direction, gradient descent at the rate 2 / largest eigenvalue just keeps the loss."""
  values, vectors = np.linalg.eigh(MATRIX)
  params, batch = split(vectors[:, -1]), jnp.asarray(MATRIX)
  for rate, critical in ((1 / values[-1], 1.0), (2 / values[-1], 2.0), (3 / values[-1], 3.0)):
    optimizer = optax.sgd(rate)
    gradient = jax.grad(lambda params: quadratic(params, batch, key=None))(params)
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    found = flatness.update_sharpness(quadratic, params, updates, batch, tol=1e-9)
    np.testing.assert_allclose([found.critical, found.directional], critical, rtol=1e-7)
    # In the source's units, divided by the learning rate, it is the largest eigenvalue.
    np.testing.assert_allclose(found.critical / rate, values[-1], rtol=1e-7)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("first_step", [1e-3, 1.0, 40.0])
def test_beyond_the_quadratic_only_the_critical_sharpness_sees_the_loss(first_step):
  """w^4 - w along 1 is 0 again at 1: the critical step is 1 where the second derivative is 0."""
  loss = lambda w, batch, *, key: w**4 - w
  found = flatness.update_sharpness(
    loss, jnp.float64(0), jnp.float64(1), None, tol=1e-6, first_step=first_step
  )
  np.testing.assert_allclose(found.critical, 2, rtol=1e-6)
  assert found.directional == 0


def test_updates_that_never_or_always_raise_the_loss():
  linear = lambda w, batch, *, key: w.sum()
  down, up = (flatness.update_sharpness(linear, jnp.ones(2), s * jnp.ones(2), None) for s in (-1, 1))
  assert down.critical == 0
  assert jnp.isinf(up.critical)
  broken = lambda w, batch, *, key: jnp.where(w.sum() > 1, jnp.nan, -w.sum())
  wall = flatness.update_sharpness(broken, jnp.zeros(2), jnp.ones(2), None, tol=1e-3)
  np.testing.assert_allclose(wall.critical, 4, rtol=2e-3)  # NaN counts as a rise, from a step of 1/2 on


@pytest.mark.usefixtures("x64")
@pytest.mark.thorough
def test_of_a_network_against_a_dense_scan():
  params, batch = nets.make_params(), nets.make_batch()
  key = jax.random.key(0)
  gradient = jax.grad(nets.loss_fn)(params, batch, key=jax.random.clone(key))
  update = jax.tree.map(lambda g: -0.5 * g, gradient)
  found = flatness.update_sharpness(nets.loss_fn, params, update, batch, key=key, tol=1e-3)
  steps = np.linspace(0, 4 / found.critical, 4001)[1:]
  at = lambda t: nets.loss_fn(
    jax.tree.map(lambda w, u: w + t * u, params, update), batch, key=jax.random.clone(key)
  )
  losses = np.asarray(jax.jit(jax.vmap(at))(steps))
  first = steps[np.argmax(losses > float(jax.jit(at)(0.0)))]
  np.testing.assert_allclose(2 / found.critical, first, rtol=3e-3)
  hessian, flat = nets.jax_hessian(params, batch, "*", key=key), flatness.subset(update).flat
  np.testing.assert_allclose(found.normalized, flat @ hessian @ flat / (flat @ flat), rtol=1e-8)


def test_the_search_takes_as_few_losses_as_the_source_says():
  """From a start within a factor of 2: two doublings and four halvings."""
  found = flatness.update_sharpness(
    quadratic, split(np.float32(POINT)), split(np.float32(-0.02 * MATRIX @ POINT)), jnp.float32(MATRIX)
  )
  again = flatness.update_sharpness(
    quadratic,
    split(np.float32(POINT)),
    split(np.float32(-0.02 * MATRIX @ POINT)),
    jnp.float32(MATRIX),
    first_step=2 / found.critical,
  )
  assert again.evaluations <= 6


@pytest.mark.parametrize(
  ("call", "match"),
  [
    (lambda loss: flatness.update_sharpness(loss, jnp.ones(2), jnp.ones(3), None), "shapes of params"),
    (lambda loss: flatness.update_sharpness(loss, jnp.ones(2), {"a": jnp.ones(2)}, None), "tree like params"),
    (lambda loss: flatness.update_sharpness(loss, jnp.ones(2), jnp.ones(2), None, tol=0.0), "tol must lie"),
    (lambda loss: flatness.gradient_noise_scale(jnp.ones((1, 3)), jnp.ones(1)), "k >= 2"),
    (lambda loss: flatness.gradient_noise_scale(jnp.ones((2, 3)), jnp.ones(3)), "k >= 2"),
  ],
)
def test_bad_arguments(call, match):
  with pytest.raises(ValueError, match=match):
    call(lambda w, batch, *, key: w.sum())


@pytest.mark.usefixtures("x64")
def test_the_noise_scale_of_equal_batches_is_that_of_two_batch_sizes():
  """McCandlish et al., appendix A.1, by NumPy."""
  gradients, size = RNG.normal(size=(4, 7)) + 1, 16
  found = flatness.gradient_noise_scale({"a": gradients[:, :3], "b": gradients[:, 3:]}, np.full(4, size))
  small, big = (gradients**2).sum(1).mean(), (gradients.mean(0) ** 2).sum()
  squared = (4 * size * big - size * small) / (4 * size - size)
  trace = (small - big) / (1 / size - 1 / (4 * size))
  np.testing.assert_allclose([found.trace, found.squared_norm], [trace, squared], rtol=1e-12)
  np.testing.assert_allclose(found.noise_scale, trace / squared, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_both_estimates_are_unbiased_also_of_batches_of_several_sizes():
  """The gradient of an example is normal with a known mean and covariance."""
  mean, deviations, sizes = np.array([1.0, -2.0, 0.5]), np.array([1.0, 3.0, 2.0]), np.array([4, 8, 20])
  rng, number = np.random.default_rng(1), 20_000
  noise = rng.normal(size=(number, 3, 3)) * deviations / np.sqrt(sizes)[:, None]
  found = jax.jit(jax.vmap(lambda g: flatness.gradient_noise_scale(g, sizes)))(mean + noise)
  for estimates, want in ((found.trace, (deviations**2).sum()), (found.squared_norm, (mean**2).sum())):
    assert abs(estimates.mean() - want) < 4 * estimates.std() / np.sqrt(number)


def test_a_small_noise_keeps_its_digits():
  """Of two squared norms near 1e6 the difference would be rounding."""
  gradients = np.float32([[1000.0, 0.25], [1000.0, -0.25]])
  np.testing.assert_allclose(flatness.gradient_noise_scale(gradients, np.array([2, 2])).trace, 0.25)
