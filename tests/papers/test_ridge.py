"""L2 regularisation in closed form: against the objectives, their minimisers and draws of the data."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contract import jit

from jaxreg.objective import compose, penalty
from jaxreg.penalties import l2
from papers import regularization

ALPHA = 0.7
L2 = "L2 parameter regularization"
LINEAR = "L2 parameter regularization on machine learning"


def regression(seed=0, rows=12, features=4):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(rows, features)), rng.normal(size=rows)


def hessian(seed=0, eigvals=(3.0, 0.8, 0.05)):
  rng = np.random.default_rng(seed)
  q = np.linalg.qr(rng.normal(size=(len(eigvals),) * 2))[0]
  return q * np.array(eigvals) @ q.T, q, np.array(eigvals), rng.normal(size=len(eigvals))


@pytest.mark.thorough
def test_half_is_stationary_for_its_objective(x64):
  x, y = regression()
  w = np.asarray(regularization.ridge(x, y, alpha=ALPHA))
  np.testing.assert_allclose(x.T @ (x @ w - y) + ALPHA * w, 0, atol=1e-13)


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization",
  LINEAR,
  "(Xw - y)'(Xw - y) + alpha w'w / 2 has its minimum at (X'X + alpha I)^-1 X'y; it is at alpha / 2",
  status="erratum",
)
def test_lecture_s_objective_has_half_of_alpha(x64):
  x, y = regression()
  gradient = lambda w: 2 * x.T @ (x @ w - y) + ALPHA * w
  w = np.asarray(regularization.ridge(x, y, alpha=ALPHA, convention="lecture"))
  np.testing.assert_allclose(gradient(w), 0, atol=1e-13)
  printed = np.linalg.solve(x.T @ x + ALPHA * np.eye(4), x.T @ y)
  assert np.linalg.norm(gradient(printed)) > 0.1
  np.testing.assert_allclose(regularization.ridge(x, y, alpha=ALPHA), printed, rtol=1e-12)
  np.testing.assert_allclose(
    regularization.ridge(x, y, alpha=2 * ALPHA, convention="lecture"), printed, rtol=1e-12
  )


@pytest.mark.claim("regularization", LINEAR, "alpha adds to the variance of each input")
def test_ridge_is_least_squares_with_more_rows(x64):
  x, y = regression()
  more = np.concatenate([x, np.sqrt(ALPHA) * np.eye(4)]), np.concatenate([y, np.zeros(4)])
  np.testing.assert_allclose(
    regularization.ridge(x, y, alpha=ALPHA), np.linalg.lstsq(*more, rcond=None)[0], rtol=1e-12
  )
  plain = np.linalg.lstsq(x, y, rcond=None)[0]
  np.testing.assert_allclose(regularization.ridge(x, y, alpha=0.0), plain, rtol=1e-11)
  several = np.stack([y, -2 * y], axis=1)
  columns = regularization.ridge(x, several, alpha=ALPHA)
  np.testing.assert_allclose(columns[:, 1], -2 * columns[:, 0], rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization", L2, "the minimum is (H + alpha I)^-1 H w*, each component at lambda / (lambda + alpha)"
)
def test_minimum_and_its_shrinkage(x64):
  h, q, eigvals, w_star = hessian()
  got = regularization.l2_solution(h, w_star, alpha=ALPHA)
  np.testing.assert_allclose(h @ (got - w_star) + ALPHA * got, 0, atol=1e-14)
  shrunk = q @ (np.asarray(regularization.l2_shrinkage(eigvals, alpha=ALPHA)) * (q.T @ w_star))
  np.testing.assert_allclose(got, shrunk, rtol=1e-12)
  # Gradient descent on the penalised objective arrives there.
  loss = lambda params, batch, *, key: (
    0.5 * jnp.dot(params["kernel"] - w_star, jnp.matmul(h, params["kernel"] - w_star))
  )
  objective, tx = compose(loss, {"l2": penalty(l2, weight=ALPHA)}), optax.sgd(0.4)

  def step(_, carry):
    params, state = carry
    updates, state = tx.update(jax.grad(objective)(params, None), state)
    return optax.apply_updates(params, updates), state

  start = {"kernel": jnp.zeros(3)}
  run = jit(lambda carry: jax.lax.fori_loop(0, 300, step, carry))
  np.testing.assert_allclose(run((start, tx.init(start)))[0]["kernel"], got, rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization", L2, "far above alpha an eigenvalue's component stays, far below it is erased"
)
def test_limits_of_the_shrinkage(x64):
  np.testing.assert_allclose(regularization.l2_shrinkage(np.array([1e6, 1e-6]), alpha=1.0), [1, 0], atol=1e-5)
  h, _, _, w_star = hessian()
  np.testing.assert_allclose(regularization.l2_solution(h, w_star, alpha=0.0), w_star, rtol=1e-10)
  norms = [np.linalg.norm(regularization.l2_solution(h, w_star, alpha=a)) for a in (0.0, 0.1, 1.0, 10.0, 1e6)]
  assert (np.diff(norms) < 0).all()
  assert norms[-1] < 1e-5
  np.testing.assert_array_equal(regularization.l2_shrinkage(np.array([0.0, 2.0]), alpha=0.0), [0, 1])


def test_effective_degrees_of_freedom(x64):
  x, _ = regression()
  hat = x @ np.linalg.solve(x.T @ x + ALPHA * np.eye(4), x.T)
  eigvals = np.linalg.eigvalsh(x.T @ x)
  np.testing.assert_allclose(regularization.effective_dof(eigvals, alpha=ALPHA), np.trace(hat), rtol=1e-12)
  assert regularization.effective_dof(eigvals, alpha=0.0) == 4


@pytest.mark.claim(
  "regularization",
  "regularization",
  "less variance for more bias; some penalty has the smaller error",
  size="toy",
)
def test_bias_and_variance_against_draws(x64):
  rng = np.random.default_rng(3)
  x, w_star, noise = rng.normal(size=(10, 3)) * [1.0, 0.3, 0.1], np.array([0.5, -0.3, 0.2]), 0.4
  eigvals, q = np.linalg.eigh(x.T @ x)
  draws = 40000
  y = x @ w_star + noise * rng.normal(size=(draws, 10))
  for alpha in (0.0, 0.1, 1.0):
    estimates = y @ x @ np.linalg.inv(x.T @ x + alpha * np.eye(3))
    parts = regularization.ridge_bias_variance(eigvals, q.T @ w_star, alpha=alpha, noise=noise)
    deviations = ((estimates - estimates.mean(0)) ** 2).sum(1)
    sigma = deviations.std() / np.sqrt(draws)
    assert abs(deviations.mean() - parts["variance"]) < 4 * sigma
    bias = ((estimates.mean(0) - w_star) ** 2).sum()
    # The mean of the draws is off by its own variance.
    spread = 4 * np.sqrt(parts["variance"] / draws)
    assert abs(np.sqrt(bias) - np.sqrt(parts["bias_squared"])) < spread
  at = lambda alpha: regularization.ridge_bias_variance(eigvals, q.T @ w_star, alpha=alpha, noise=noise)
  errors = {alpha: sum(at(alpha).values()) for alpha in (0.0, 1e-3, 0.01, 0.1, 1.0)}
  assert errors[1e-3] < errors[0.0]
  assert min(errors.values()) < 0.5 * errors[0.0]
  assert at(0.1)["variance"] < at(0.0)["variance"]
  assert at(0.0)["bias_squared"] == 0


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization",
  "regularization and under-constrained problems",
  "the pseudo-inverse is the limit of (X'X + alpha I)^-1 X' where X'X is singular",
)
def test_pseudo_inverse_is_the_limit(x64):
  rng = np.random.default_rng(4)
  x = rng.normal(size=(3, 6))
  errors = []
  for alpha in (1e-2, 1e-4, 1e-6):
    got = np.asarray(regularization.pinv_limit(x, alpha=alpha))
    direct = np.linalg.solve(x.T @ x + alpha * np.eye(6), x.T)
    np.testing.assert_allclose(got, direct, atol=1e-9)
    errors.append(np.abs(got - np.linalg.pinv(x)).max())
  np.testing.assert_allclose(np.divide(errors[:-1], errors[1:]), 100, rtol=0.05)
  low_rank = np.outer(rng.normal(size=4), rng.normal(size=3))
  np.testing.assert_allclose(
    regularization.pinv_limit(low_rank, alpha=0.0), np.linalg.pinv(low_rank), atol=1e-13
  )


@pytest.mark.thorough
def test_pseudo_inverse_in_float32():
  """Where the inverse of X'X + alpha I itself is lost to rounding."""
  x = np.random.default_rng(5).normal(size=(3, 6)).astype(np.float32)
  want = np.linalg.pinv(x.astype(np.float64))
  error = lambda inverse: np.abs(inverse - want).max()
  through_svd = [error(regularization.pinv_limit(x, alpha=alpha)) for alpha in (1e-4, 1e-7)]
  direct = np.linalg.solve(x.T @ x + np.float32(1e-7) * np.eye(6, dtype=np.float32), x.T)
  assert through_svd[1] < 3e-6
  assert through_svd[1] < through_svd[0]
  assert error(direct) > 100 * through_svd[1]


@pytest.mark.thorough
def test_dtypes_and_refusals():
  half = jnp.ones((3, 2), jnp.bfloat16)
  assert regularization.ridge(half, jnp.ones(3), alpha=1.0).dtype == jnp.float32
  assert regularization.pinv_limit(half, alpha=1.0).dtype == jnp.float32
  x, y = jnp.ones((3, 2)), jnp.ones(3)
  with pytest.raises(TypeError, match="y must be floating"):
    regularization.ridge(x, jnp.ones(3, jnp.int32), alpha=1.0)
  with pytest.raises(ValueError, match="y must have the 3 rows"):
    regularization.ridge(x, jnp.ones(2), alpha=1.0)
  with pytest.raises(ValueError, match=r"x must be \[rows, features\]"):
    regularization.ridge(y, y, alpha=1.0)
  with pytest.raises(ValueError, match="alpha must lie in"):
    regularization.ridge(x, y, alpha=-1.0)
  with pytest.raises(ValueError, match="convention must be 'half' or 'lecture'"):
    regularization.ridge(x, y, alpha=1.0, convention="seed")  # type: ignore[arg-type]
  with pytest.raises(ValueError, match=r"hessian must have shape \(2, 2\)"):
    regularization.l2_solution(x, jnp.ones(2), alpha=1.0)
  with pytest.raises(ValueError, match="w_star must have shape"):
    regularization.ridge_bias_variance(jnp.ones(3), jnp.ones(2), alpha=1.0, noise=1.0)
