"""Descent in a metric and in other coordinates: Newton, natural gradient, x = A y and beyond."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contract import jit

from jaxreg.optim import mahalanobis, reparameterize, trust_region

ALPHA = 0.2


def step(tx, g, params=None):
  params = g if params is None else params
  return jit(lambda g, params: tx.update(g, tx.init(params), params)[0])(g, params)


def draw(seed=0):
  rng = np.random.default_rng(seed)
  a = rng.normal(size=(4, 4)) + 2 * np.eye(4)
  return a, a @ a.T, rng.normal(size=4), rng.normal(size=4)


@pytest.mark.claim(
  "adaptive_sgd",
  "Proximal Problem",
  "printed is the norm over 2 alpha, not squared; -alpha M^-1 J minimises the one with the square, "
  "the other has its minimum at 0 or nowhere",
  status="erratum",
)
def test_minimises_the_squared_problem(x64):
  _, m, g, _ = draw()
  delta = np.asarray(step(mahalanobis(ALPHA, dense=m), g))
  np.testing.assert_allclose(g + m @ delta / ALPHA, 0, atol=1e-12)
  # With the root, what the problem is at t times the step is t times what it is at the step.
  unsquared = lambda d: g @ d + np.sqrt(d @ m @ d) / (2 * ALPHA)
  for t in (1e-3, 10.0, 1e3):
    np.testing.assert_allclose(unsquared(t * delta), t * unsquared(delta), rtol=1e-9)
  squared = lambda d: g @ d + d @ m @ d / (2 * ALPHA)
  assert min(squared(0.9 * delta), squared(1.1 * delta), squared(0 * delta)) > squared(delta)


def test_nan_stays_nan_and_a_metric_of_0_does_not_move():
  tx = lambda metric: mahalanobis(-1.0, diagonal=metric)
  np.testing.assert_array_equal(step(tx(jnp.ones(2)), jnp.array([jnp.nan, 3.0])), [np.nan, 3.0])
  move = jit(lambda metric: step(tx(metric), jnp.ones(3)))
  np.testing.assert_array_equal(move(jnp.array([jnp.nan, 0.0, 0.5])), [np.nan, 0.0, 2.0])


@pytest.mark.thorough
def test_trees_and_leaves(x64):
  _, m, g, _ = draw(2)
  tree = {"a": g[:1], "b": g[1:].reshape(3, 1)}
  got = step(mahalanobis(ALPHA, dense=m), tree)
  flat = np.concatenate([got["a"], got["b"][:, 0]])
  np.testing.assert_allclose(flat, -ALPHA * np.linalg.solve(m, g), rtol=1e-10)
  by_leaf = step(mahalanobis(ALPHA, dense={"a": m[:1, :1], "b": m[1:, 1:]}), tree)
  np.testing.assert_allclose(by_leaf["b"][:, 0], -ALPHA * np.linalg.solve(m[1:, 1:], g[1:]), rtol=1e-10)
  np.testing.assert_allclose(by_leaf["a"], -ALPHA * g[:1] / m[0, 0], rtol=1e-10)
  halves = step(mahalanobis(ALPHA, diagonal=2.0), tree)
  np.testing.assert_allclose(halves["b"], -ALPHA / 2 * tree["b"], rtol=1e-12)


def test_newton_arrives_in_one_step(x64):
  _, h, w, w_star = draw(3)
  gradient = h @ (w - w_star)
  np.testing.assert_allclose(w + step(mahalanobis(1.0, dense=h), gradient), w_star, atol=1e-12)
  loss = lambda w: 0.5 * (w - w_star) @ h @ (w - w_star)
  newton = lambda g, params: jnp.linalg.solve(jax.hessian(loss)(params), g)
  np.testing.assert_allclose(w + step(mahalanobis(1.0, solve=newton), gradient, w), w_star, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.claim(
  "adaptive_sgd", "Conclusions", "natural gradient is descent in a metric that respects invariances"
)
def test_natural_gradient_does_not_see_the_parameters(x64):
  """A normal by (mean, log deviation) and by (mean, variance): the same distributions, to first order."""
  x = np.array([0.3, 1.9, -0.7])
  nll = lambda mean, variance: 0.5 * jnp.mean((x - mean) ** 2) / variance + 0.5 * jnp.log(variance)
  first = lambda params: nll(params[0], jnp.exp(2 * params[1]))
  second = lambda params: nll(params[0], params[1])
  fishers = (
    lambda params: jnp.diag(jnp.stack([jnp.exp(-2 * params[1]), 2.0 + 0 * params[1]])),
    lambda params: jnp.diag(jnp.stack([1 / params[1], 0.5 / params[1] ** 2])),
  )
  starts = np.array([0.1, np.log(0.8)]), np.array([0.1, 0.64])
  moved = []
  for loss, fisher, start in zip((first, second), fishers, starts, strict=True):
    solve = lambda g, params, fisher=fisher: jnp.linalg.solve(fisher(params), g)
    moved.append(start + step(mahalanobis(1e-6, solve=solve), np.asarray(jax.grad(loss)(start)), start))
  np.testing.assert_allclose(moved[0][0], moved[1][0], rtol=1e-12)
  np.testing.assert_allclose(np.exp(2 * moved[0][1]), moved[1][1], rtol=1e-11)


@pytest.mark.claim(
  "adaptive_sgd", "Basic Example", "with y = 2x gradient descent in x takes a step of alpha / 4"
)
def test_a_quarter_of_the_step(x64):
  g = np.array([0.7, -3.0])
  got = step(reparameterize(optax.sgd(ALPHA), lambda y: y / 2, lambda x: 2 * x), g)
  np.testing.assert_allclose(got, -ALPHA * g / 4, rtol=1e-14)
  linear = step(reparameterize(optax.sgd(ALPHA), lambda y: y / 2), g)
  np.testing.assert_allclose(linear, -ALPHA * g / 4, rtol=1e-15)
  affine = step(reparameterize(optax.sgd(ALPHA), lambda y: y / 2 + 1), g)
  np.testing.assert_allclose(affine, -ALPHA * g / 4, rtol=1e-15)


@pytest.mark.claim(
  "adaptive_sgd",
  "Gradient Descent under Reparameterization",
  "with x = A y gradient descent in y is x - alpha (A A^T) J^T, which is descent in the metric (A A^T)^-1",
)
def test_linear_coordinates(x64):
  a, _, x, target = draw(4)
  gradient = lambda x: np.sin(x) + (x - target)
  y, z, w = np.linalg.solve(a, x), x.copy(), x.copy()
  tx, metric = reparameterize(optax.sgd(ALPHA / 10), a), mahalanobis(ALPHA / 10, dense=np.linalg.inv(a @ a.T))
  update, other = (
    jit(lambda g, x: tx.update(g, tx.init(x), x)[0]),
    jit(lambda g: metric.update(g, metric.init(g))[0]),
  )
  for _ in range(5):
    y = y - ALPHA / 10 * a.T @ gradient(a @ y)
    z = z + update(gradient(z), z)
    w = w + other(gradient(w))
  np.testing.assert_allclose(z, a @ y, rtol=1e-10)
  np.testing.assert_allclose(w, a @ y, rtol=1e-9)


def test_orthogonal_coordinates_change_nothing(x64):
  a, _, g, _ = draw(5)
  q = np.linalg.qr(a)[0]
  np.testing.assert_allclose(step(reparameterize(optax.sgd(ALPHA), q), g), -ALPHA * g, rtol=1e-12)
  # Sign descent is not linear in the gradient: it is another method in other coordinates.
  rotated = step(reparameterize(optax.sign_sgd(ALPHA), q), g)
  np.testing.assert_allclose(rotated, -ALPHA * q @ np.sign(q.T @ g), rtol=1e-12)
  assert np.abs(rotated + ALPHA * np.sign(g)).max() > 0.05
  # The ball is round in them too.
  np.testing.assert_allclose(
    step(reparameterize(trust_region(ALPHA), q), g), step(trust_region(ALPHA), g), rtol=1e-12
  )


@pytest.mark.claim(
  "adaptive_sgd",
  "Gradient Descent under Reparameterization",
  "similar for a non-linear change of coordinates",
)
def test_smooth_coordinates(x64):
  """x = sinh(y), with momentum: the optimizer in y, step by step."""
  target = np.array([1.5, -0.2, 3.0])
  tx = reparameterize(optax.sgd(ALPHA, momentum=0.5), jnp.sinh, jnp.arcsinh)
  x, y, velocity = np.array([0.5, 0.1, -2.0]), np.arcsinh([0.5, 0.1, -2.0]), 0.0
  state, update = tx.init(x), jit(tx.update)
  for _ in range(4):
    updates, state = update(x - target, state, x)
    velocity = 0.5 * velocity + np.cosh(y) * (np.sinh(y) - target)
    x, y = x + np.asarray(updates), y - ALPHA * velocity
    np.testing.assert_allclose(x, np.sinh(y), rtol=1e-12)
  still, _ = update(np.zeros(3), tx.init(x), x)
  np.testing.assert_array_equal(still, 0)


@pytest.mark.thorough
def test_inner_optimizers_see_their_own_coordinates(x64):
  """Decay acts on y."""
  a, _, x, g = draw(6)
  tx = reparameterize(optax.chain(optax.add_decayed_weights(0.5), optax.sgd(ALPHA)), a)
  y = np.linalg.solve(a, x)
  np.testing.assert_allclose(step(tx, g, x), -ALPHA * a @ (a.T @ g + 0.5 * y), rtol=1e-9)


def test_refusals():
  with pytest.raises(ValueError, match="one of dense, diagonal and solve must be given, got none"):
    mahalanobis(1.0)
  with pytest.raises(ValueError, match="got dense, diagonal"):
    mahalanobis(1.0, dense=np.eye(2), diagonal=1.0)
  with pytest.raises(ValueError, match="positive definite"):
    mahalanobis(1.0, dense=np.diag([1.0, -1.0]))
  with pytest.raises(ValueError, match="symmetric"):
    mahalanobis(1.0, dense=np.array([[1.0, 0.5], [0.0, 1.0]]))
  with pytest.raises(ValueError, match="diagonal must lie in"):
    mahalanobis(1.0, diagonal=np.array([1.0, -1.0]))
  with pytest.raises(TypeError, match="solve must be a function"):
    mahalanobis(1.0, solve=3.0)  # type: ignore[arg-type]
  with pytest.raises(ValueError, match=r"dense must be \[3, 3\]"):
    step(mahalanobis(1.0, dense=np.eye(2)), np.ones(3, np.float32))
  with pytest.raises(ValueError, match="forward must be square"):
    reparameterize(optax.sgd(0.1), jnp.ones((2, 3)))
  with pytest.raises(ValueError, match="singular"):
    reparameterize(optax.sgd(0.1), np.ones((2, 2)))
  with pytest.raises(ValueError, match="forward must be linear"):
    step(reparameterize(optax.sgd(0.1), jnp.sinh), np.ones(2, np.float32))
  with pytest.raises(ValueError, match="inverse must be None"):
    reparameterize(optax.sgd(0.1), np.eye(2), lambda x: x)
