"""Proximal operators against a search of what they minimise, and as the end of an Optax chain."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
from contract import jit

from jaxreg.constraints import (
  prox_elastic_net,
  prox_group_lasso,
  prox_l0,
  prox_l1,
  prox_non_negative,
  proximal,
  soft_threshold,
)
from jaxreg.objective import compose, penalty
from jaxreg.penalties import group_lasso, l1

STEP, WEIGHT, RATIO = 0.25, 1.6, 0.3


def train(loss, tx, params, steps):
  def step(_, carry):
    params, state = carry
    updates, state = tx.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state

  return jit(lambda carry: jax.lax.fori_loop(0, steps, step, carry))((params, tx.init(params)))[0]


@pytest.mark.parametrize(
  ("prox", "penalty"),
  [
    (functools.partial(prox_l1, weight=WEIGHT), np.abs),
    (
      functools.partial(prox_elastic_net, weight=WEIGHT, ratio=RATIO),
      lambda u: RATIO * np.abs(u) + (1 - RATIO) / 2 * u**2,
    ),
    (functools.partial(prox_l0, weight=WEIGHT), lambda u: u != 0),
    (prox_non_negative, lambda u: np.where(u < 0, np.inf, 0)),
  ],
  ids=["l1", "elastic net", "l0", "non-negative"],
)
def test_is_the_minimiser_on_a_grid(prox, penalty, x64):
  grid = np.linspace(-4, 4, 80001)
  x = np.array([-2.5, -0.95, -0.3, 0.0, 0.2, 0.85, 0.95, 3.0])
  want = [grid[np.argmin(0.5 * (grid - each) ** 2 + STEP * WEIGHT * penalty(grid))] for each in x]
  np.testing.assert_allclose(prox(jnp.asarray(x), STEP, mask="*"), want, atol=5.1e-5)


@pytest.mark.thorough
def test_group_lasso_is_the_minimiser(x64):
  """Of a group's objective by a general optimizer, from a start away from 0."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(3, 4)) * np.array([2.0, 1.0, 0.2, 0.05])
  got = prox_group_lasso(jnp.asarray(x), STEP, weight=WEIGHT, mask="*")
  at = STEP * WEIGHT * np.sqrt(3)
  for column, want in zip(x.T, np.asarray(got).T):
    objective = lambda u, column=column: 0.5 * ((u - column) ** 2).sum() + at * np.linalg.norm(u)
    found = scipy.optimize.minimize(
      objective, column, method="Nelder-Mead", tol=1e-12, options={"maxiter": 4000}
    )
    np.testing.assert_allclose(want, found.x, atol=1e-5)
  vanished = np.linalg.norm(x, axis=0) <= at
  assert vanished.tolist() == [False, False, True, True]
  assert not got[:, vanished].any()


@pytest.mark.thorough
def test_soft_threshold_at_its_limits():
  x = jnp.array([-2.0, 0.0, 1.0, 3.0])
  np.testing.assert_array_equal(soft_threshold(x, threshold=jnp.inf), np.zeros(4))
  np.testing.assert_array_equal(soft_threshold(x, threshold=0.0), x)
  np.testing.assert_array_equal(soft_threshold(x, threshold=jnp.array([1.0, 1.0, 1.0, 5.0])), [-1, 0, 0, 0])
  # At the kink too the derivative is one of the two sides', not their mean.
  slope = jax.grad(lambda x: soft_threshold(x, threshold=1.0).sum())(x)
  np.testing.assert_array_equal(slope, [1, 0, 0, 1])


@pytest.mark.thorough
@pytest.mark.parametrize(
  "prox",
  [
    functools.partial(prox_l1, weight=0.1),
    functools.partial(prox_elastic_net, weight=0.1, ratio=0.5),
    functools.partial(prox_group_lasso, weight=0.1, axis=0),
    functools.partial(prox_l0, weight=0.1),
    prox_non_negative,
  ],
)
def test_nan_stays_nan(prox):
  got = np.asarray(prox(jnp.array([[jnp.nan, 1.0], [2.0, 1.0]]), 0.1, mask="*"))
  assert np.isnan(got[0, 0])
  assert np.isfinite(got[:, 1]).all()


HESSIAN, OPTIMUM, ALPHA = np.array([2.0, 0.5, 1.0]), np.array([1.0, -0.6, 0.3]), 0.4
SOLUTION = np.array([1.0 - ALPHA / 2.0, 0.0, 0.0])


def quadratic(params):
  return 0.5 * (jnp.asarray(HESSIAN, params["kernel"].dtype) * (params["kernel"] - OPTIMUM) ** 2).sum()


@pytest.mark.claim(
  "regularization",
  "L1 regularization",
  "L1 gives a sparse solution: exact zeros where alpha / H is the larger",
)
def test_a_chain_reaches_the_solution_with_exact_zeros(x64):
  start = {"kernel": jnp.asarray([0.7, 0.7, -0.7])}
  tx = optax.chain(optax.sgd(0.3), proximal(functools.partial(prox_l1, weight=ALPHA), 0.3))
  got = train(quadratic, tx, start, 200)["kernel"]
  np.testing.assert_allclose(got, SOLUTION, atol=1e-14)
  assert np.asarray(got).tobytes()[8:] == bytes(16)  # +0.0, bit for bit
  # Steps down the penalty's gradient go to and fro, and reach no zero.
  loss = lambda params: compose(lambda p, b, *, key: quadratic(p), {"l1": penalty(l1, weight=ALPHA)})(
    params, None
  )
  plain = train(loss, optax.sgd(0.3), start, 200)["kernel"]
  assert (plain != 0).all()
  assert np.abs(plain - SOLUTION).max() > 1e-2


def test_the_threshold_follows_the_schedule(x64):
  """That of the step, and that of the penalty's weight."""
  schedule = lambda count: 0.3 / (1 + count)
  for weight in (lambda count: ALPHA, lambda count: ALPHA / (2 + count)):
    prox = functools.partial(prox_l1, weight=weight if weight(1) != ALPHA else ALPHA)
    tx = optax.chain(optax.sgd(schedule), proximal(prox, schedule))
    got = train(quadratic, tx, {"kernel": jnp.asarray([0.7, 0.7, -0.7])}, 9)["kernel"]
    w = np.array([0.7, 0.7, -0.7])
    for t in range(9):
      rate = 0.3 / (1 + t)
      w = w - rate * HESSIAN * (w - OPTIMUM)
      w = np.sign(w) * np.maximum(np.abs(w) - rate * weight(t), 0)
    np.testing.assert_allclose(got, w, rtol=1e-12, atol=1e-15)


def test_a_learning_rate_that_is_injected(x64):
  @optax.inject_hyperparams
  def make(learning_rate):
    prox = functools.partial(prox_l1, weight=ALPHA)
    return optax.chain(optax.sgd(learning_rate), proximal(prox, learning_rate))

  got = train(quadratic, make(0.3), {"kernel": jnp.zeros(3)}, 200)["kernel"]
  np.testing.assert_allclose(got, SOLUTION, atol=1e-14)


@pytest.mark.thorough
def test_what_is_not_selected_is_updated_as_it_comes():
  params = {"kernel": jnp.full(3, 0.1), "bias": jnp.full(3, 0.1)}
  gradient = jax.tree.map(lambda x: jnp.full_like(x, 0.3), params)
  plain, tx = optax.adam(0.01), proximal(functools.partial(prox_l1, weight=100.0), 0.01)
  want = plain.update(gradient, plain.init(params), params)[0]
  chain = optax.chain(plain, tx)
  got = chain.update(gradient, chain.init(params), params)[0]
  np.testing.assert_array_equal(got["bias"], want["bias"])
  assert not optax.apply_updates(params, got)["kernel"].any()


@pytest.mark.thorough
def test_the_operator_sees_only_what_is_selected():
  """Axes that the bias has not: all weights are 1, so that a filter's norm is the root of its size."""
  params = {"kernel": jnp.ones((3, 3, 2, 4)), "bias": jnp.zeros(4)}
  tx = proximal(functools.partial(prox_group_lasso, weight=0.1, axis=(0, 1, 2)), 0.1)
  updates, _ = tx.update(jax.tree.map(jnp.zeros_like, params), tx.init(params), params)
  np.testing.assert_allclose(updates["kernel"], -0.01, rtol=1e-5)
  np.testing.assert_array_equal(updates["bias"], 0)


def test_updates_of_other_leaves_are_not_mixed_up():
  params = {"a": jnp.ones(2), "b": jnp.zeros(2)}
  tx = proximal(functools.partial(prox_l1, weight=1.0, mask="*"), 0.1)
  with pytest.raises(ValueError, match="key"):
    tx.update({"b": jnp.ones(2)}, tx.init(params), params)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_zeros_are_exact_in_every_dtype(dtype):
  rng = np.random.default_rng(1)
  params = {"kernel": jnp.asarray(rng.normal(size=(50, 4)), dtype)}
  updates = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape) * 0.1, dtype), params)
  tx = proximal(functools.partial(prox_l1, weight=1.0), 0.5)
  new, _ = tx.update(updates, tx.init(params), params)
  after = optax.apply_updates(params, new)["kernel"]
  assert new["kernel"].dtype == after.dtype == dtype
  moved = np.asarray(params["kernel"], np.float64) + np.asarray(updates["kernel"], np.float64)
  np.testing.assert_array_equal(after == 0, np.abs(moved) <= 0.5)


@pytest.mark.thorough
def test_units_are_pruned_as_wholes(x64):
  """Of a regression on 4 outputs, two of which are noise: the optimality conditions of the group lasso."""
  rng = np.random.default_rng(2)
  x = rng.normal(size=(40, 3))
  y = x @ np.array([[2.0, 0, 0, -1], [0, 0, 0, 1], [1, 0, 0, 0]]) + 0.01 * rng.normal(size=(40, 4))
  loss = lambda params: 0.5 * jnp.square(jnp.matmul(x, params["kernel"]) - y).sum() / 40
  prox = functools.partial(prox_group_lasso, weight=0.1)
  start = {"kernel": jnp.asarray(rng.normal(size=(3, 4)))}
  w = train(loss, optax.chain(optax.sgd(0.3), proximal(prox, 0.3)), start, 400)["kernel"]
  norms = np.linalg.norm(w, axis=0)
  assert (norms == 0).tolist() == [False, True, True, False]
  gradient = np.asarray(jax.grad(loss)({"kernel": w})["kernel"])
  of_penalty = np.asarray(jax.grad(group_lasso)({"kernel": w})["kernel"])
  np.testing.assert_allclose((gradient + 0.1 * of_penalty)[:, norms > 0], 0, atol=1e-12)
  assert (np.linalg.norm(gradient[:, norms == 0], axis=0) < 0.1 * np.sqrt(3)).all()


def test_refusals():
  with pytest.raises(TypeError, match="prox must be a function"):
    proximal(0.1, 0.1)  # type: ignore[arg-type]
  with pytest.raises(
    TypeError, match="weight must be a number; a schedule belongs in the operator of proximal"
  ):
    prox_l1(jnp.ones(2), 0.1, weight=lambda count: 0.1)
  tx = proximal(functools.partial(prox_l1, weight=1.0), 0.1)
  with pytest.raises(ValueError, match="mask selects no parameter"):
    tx.update({"weight": jnp.ones(2)}, tx.init(None), {"weight": jnp.ones(2)})
  params = {"kernel": jnp.ones(2)}
  with pytest.raises(ValueError, match="params must be given"):
    tx.update(params, tx.init(params))
