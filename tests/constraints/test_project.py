"""Steps with reprojection: feasibility, dead units, explosions, low precision."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contract import jit

from jaxreg.constraints import max_norm, project, prox_non_negative
from jaxreg.objective import compose, penalty
from jaxreg.penalties import l2

non_negative = optax.projections.projection_non_negative
WHERE = "norm penalties as constrained optimization"


def train(loss, tx, params, steps):
  """The parameters after each step."""

  def step(carry, _):
    params, state = carry
    updates, state = tx.update(jax.grad(loss)(params), state, params)
    params = optax.apply_updates(params, updates)
    return (params, state), params

  return jit(lambda carry: jax.lax.scan(step, carry, length=steps)[1])((params, tx.init(params)))


@pytest.mark.thorough
def test_feasible_after_every_step_if_it_comes_last(x64):
  rng = np.random.default_rng(0)
  target, start = rng.normal(size=(2, 4, 3)) * 3
  loss = lambda params: 0.5 * jnp.square(params["kernel"] - target).sum()
  bounded = project(functools.partial(max_norm, limit=2.0))
  start = {"kernel": jnp.asarray(start / 10)}
  after = train(loss, optax.chain(optax.sgd(0.3, momentum=0.9), bounded), start, 60)["kernel"]
  norms = np.linalg.norm(after, axis=1)
  assert (norms <= 2 * (1 + 1e-12)).all()
  # The nearest feasible point to each column of the target, which is the constrained minimum.
  nearest = target * np.minimum(1, 2 / np.linalg.norm(target, axis=0))
  last = train(loss, optax.chain(optax.sgd(0.3), bounded), start, 200)["kernel"][-1]
  np.testing.assert_allclose(last, nearest, rtol=1e-9)
  wrong_order = train(loss, optax.chain(bounded, optax.sgd(0.3)), start, 60)["kernel"]
  assert np.linalg.norm(wrong_order, axis=1).max() > 2.5


@pytest.mark.thorough
def test_interior_steps_are_untouched():
  params = {"kernel": jnp.asarray(np.random.default_rng(1).normal(size=(4, 3)), jnp.float32)}
  updates = jax.tree.map(lambda w: 0.01 * w, params)
  tx = project(functools.partial(max_norm, limit=1e3))
  new, _ = tx.update(updates, tx.init(params), params)
  np.testing.assert_array_equal(new["kernel"], updates["kernel"])


@pytest.mark.thorough
@pytest.mark.parametrize("projection", [non_negative, functools.partial(prox_non_negative, mask="*")])
def test_is_keep_params_nonnegative(projection):
  rng = np.random.default_rng(2)
  params = {"a": jnp.abs(jnp.asarray(rng.normal(size=(5, 2)), jnp.float32)), "b": jnp.zeros(3)}
  updates = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape), jnp.float32), params)
  got, want = (
    optax.apply_updates(params, tx.update(updates, tx.init(params), params)[0])
    for tx in (project(projection), optax.keep_params_nonnegative())
  )
  chex.assert_trees_all_close(got, want, rtol=3e-7, atol=1e-7)
  jax.tree.map(lambda a, b: np.testing.assert_array_equal(a == 0, b == 0), got, want)


def product_loss(params):
  return jnp.square(params["a"] * params["b"] - 1)


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization",
  WHERE,
  "a penalty can make dead units a minimum; reprojection does not pull to the origin",
  size="toy",
)
def test_dead_units(x64):
  """(ab - 1)^2 with alpha (a^2 + b^2) / 2: above alpha = 2 the origin is its only minimum."""
  alpha = 2.5
  objective = compose(lambda p, b, *, key: product_loss(p), {"l2": penalty(l2, weight=alpha, mask="*")})
  vector = lambda w: objective({"a": w[0], "b": w[1]}, None)
  np.testing.assert_allclose(
    np.linalg.eigvalsh(jit(jax.hessian(vector))(jnp.zeros(2))), [alpha - 2, alpha + 2]
  )
  starts = np.stack(np.meshgrid(np.linspace(-2, 2, 8), np.linspace(-2, 2, 8)), -1).reshape(-1, 2)
  start = {"a": jnp.asarray(starts[:, 0]), "b": jnp.asarray(starts[:, 1])}
  of_all = lambda p: jax.vmap(lambda a, b: objective({"a": a, "b": b}, None))(p["a"], p["b"]).sum()
  dead = train(of_all, optax.sgd(0.05), start, 1500)
  assert max(np.abs(dead["a"][-1]).max(), np.abs(dead["b"][-1]).max()) < 1e-6
  ball = lambda params: optax.projections.projection_l2_ball(params, scale=2**0.5)
  single = {"a": jnp.asarray(0.1), "b": jnp.asarray(0.2)}
  alive = train(product_loss, optax.chain(optax.sgd(0.05), project(ball)), single, 300)
  assert product_loss(jax.tree.map(lambda x: x[-1], alive)) < 1e-6


@pytest.mark.claim(
  "regularization", WHERE, "reprojection bounds the feedback of ever larger steps", size="toy"
)
def test_explosion():
  loss = lambda params: jnp.square(jnp.square(params["kernel"])).sum() / 4
  start = {"kernel": jnp.array([1.5, -1.0])}
  free = train(loss, optax.sgd(1.2), start, 30)["kernel"]
  assert not np.isfinite(free[-1]).all()
  ball = functools.partial(optax.projections.projection_l2_ball, scale=1.5)
  bounded = train(loss, optax.chain(optax.sgd(1.2), project(ball)), start, 30)["kernel"]
  assert (np.linalg.norm(bounded, axis=1) <= 1.5 * (1 + 1e-6)).all()


@pytest.mark.thorough
def test_bfloat16_needs_the_projection_after_the_update():
  rng = np.random.default_rng(3)
  # From a start that is not feasible: the way to the projected point is long, and so is what it loses.
  params = {"kernel": jnp.asarray(8 * rng.normal(size=(64, 32)), jnp.bfloat16)}
  updates = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape), jnp.bfloat16), params)
  projection = functools.partial(max_norm, limit=2.0)
  tx = project(projection)
  new, _ = tx.update(updates, tx.init(params), params)
  excess = lambda w: np.linalg.norm(np.asarray(w, np.float64), axis=0).max() - 2
  moved = optax.apply_updates(params, updates)
  direct = projection(moved)["kernel"]
  assert direct.dtype == new["kernel"].dtype == jnp.bfloat16
  assert excess(direct) < 2e-3
  # One rounding, at the end.
  moved = np.asarray(moved["kernel"], np.float64)
  want = moved * np.minimum(1, 2 / np.linalg.norm(moved, axis=0))
  np.testing.assert_allclose(np.asarray(direct, np.float64), want, rtol=2**-8 * 1.001)
  assert excess(optax.apply_updates(params, new)["kernel"]) > 4 * excess(direct)


def test_works_inside_masked_and_multi_steps():
  params = {"first": {"kernel": jnp.full((2, 2), 3.0)}, "last": {"kernel": jnp.full((2, 2), 3.0)}}
  bounded = optax.masked(project(functools.partial(max_norm, limit=1.0)), {"first": True, "last": False})
  tx = optax.MultiSteps(optax.chain(optax.sgd(0.1), bounded), every_k_schedule=2)
  state = tx.init(params)
  zero = jax.tree.map(jnp.zeros_like, params)
  for _ in range(2):
    updates, state = tx.update(zero, state, params)
    params = optax.apply_updates(params, updates)
  np.testing.assert_allclose(np.linalg.norm(params["first"]["kernel"], axis=0), 1, rtol=1e-6)
  np.testing.assert_array_equal(params["last"]["kernel"], np.full((2, 2), 3.0))


def test_a_group_without_parameters():
  """As `optax.partition` makes them."""
  params = {"kernel": jnp.full((2, 1), 3.0)}
  bounded = project(functools.partial(max_norm, limit=1.0))
  tx = optax.partition({"bounded": bounded, "frozen": optax.set_to_zero()}, {"kernel": "frozen"})
  updates, _ = tx.update(params, tx.init(params), params)
  np.testing.assert_array_equal(updates["kernel"], np.zeros((2, 1)))


def test_refusals():
  with pytest.raises(TypeError, match="projection must be a function"):
    project(2.0)  # type: ignore[arg-type]
  with pytest.raises(ValueError, match="params must be given"):
    project(non_negative).update(jnp.ones(2), optax.EmptyState())
