"""A bound on the squared norm, by dual ascent and by projection: the same solution."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
from contract import jit

from jaxreg.constraints import dual_init, dual_step, lagrangian

WHERE = "norm penalties as constrained optimization"
HESSIAN = np.array([[3.0, 1.0], [1.0, 2.0]])
OPTIMUM = np.array([2.0, -3.0])


def loss(w):
  return 0.5 * jnp.dot(w - OPTIMUM, jnp.matmul(HESSIAN, w - OPTIMUM))


def penalty(w):
  return jnp.square(w).sum()


def penalised_minimum(alpha):
  """Of J + alpha w'w."""
  return np.linalg.solve(HESSIAN + 2 * alpha * np.eye(2), HESSIAN @ OPTIMUM)


def exact(bound):
  """The multiplier at which the penalised minimum is on the boundary."""
  return scipy.optimize.brentq(
    lambda alpha: (penalised_minimum(alpha) ** 2).sum() - bound, 0, 1e3, xtol=1e-14
  )


def ascend(bound, steps=4000):
  def step(_, carry):
    w, state = carry
    w -= 0.05 * jax.grad(lambda w: lagrangian(loss(w), penalty(w), state, bound=bound))(w)
    return w, dual_step(state, penalty(w), bound=bound, learning_rate=0.05)

  return jit(lambda: jax.lax.fori_loop(0, steps, step, (jnp.zeros(2), dual_init())))()


def projected(bound, steps=2000):
  def step(_, w):
    return optax.projections.projection_l2_ball(w - 0.2 * jax.grad(loss)(w), scale=bound**0.5)

  return jit(lambda: jax.lax.fori_loop(0, steps, step, jnp.zeros(2)))()


@pytest.mark.claim(
  "regularization",
  WHERE,
  "with the multiplier fixed at its optimum, the constraint is the penalty",
  size="toy",
)
@pytest.mark.parametrize("bound", [0.5, 4.0])
def test_ascent_penalty_and_projection_agree(bound, x64):
  w, state = ascend(bound)
  alpha = exact(bound)
  np.testing.assert_allclose(penalty(w), bound, rtol=1e-12)
  np.testing.assert_allclose(state.multiplier, alpha, rtol=1e-10)
  np.testing.assert_allclose(w, penalised_minimum(alpha), rtol=1e-10)
  np.testing.assert_allclose(projected(bound), penalised_minimum(alpha), rtol=1e-10)


@pytest.mark.claim(
  "regularization", WHERE, "a larger multiplier makes the region of the constraint smaller", size="toy"
)
def test_a_larger_multiplier_is_a_smaller_region():
  norms = [(penalised_minimum(alpha) ** 2).sum() for alpha in (0.0, 0.1, 1.0, 10.0)]
  assert (np.diff(norms) < 0).all()
  assert exact(0.5) > exact(4.0) > 0


def test_a_constraint_that_does_not_bind_has_no_multiplier(x64):
  w, state = ascend(bound=14.0)
  np.testing.assert_allclose(w, OPTIMUM, rtol=1e-9)  # of squared norm 13
  assert state.multiplier == 0
  # Complementary slackness, in both cases.
  assert state.multiplier * (penalty(w) - 14.0) == 0


@pytest.mark.claim(
  "regularization", WHERE, "alpha rises where Omega is above k, and falls below it, down to 0"
)
def test_a_step_of_ascent():
  state = dual_init(0.5)
  rise = dual_step(state, 5.0, bound=4.0, learning_rate=0.1)
  fall = dual_step(state, 2.0, bound=4.0, learning_rate=0.1)
  floor = dual_step(state, 0.0, bound=40.0, learning_rate=0.1)
  np.testing.assert_allclose([rise.multiplier, fall.multiplier, floor.multiplier], [0.6, 0.3, 0.0], rtol=1e-6)
  stepped = lambda penalty: dual_step(dual_init(0.5), penalty, bound=4.0, learning_rate=0.25).multiplier
  assert jax.grad(stepped)(5.0) == 0  # the multiplier is a constant to the parameters


@pytest.mark.thorough
def test_the_gradient_reaches_the_parameters_and_not_the_multiplier(x64):
  w, state = jnp.asarray([1.0, 2.0]), dual_init(0.7)
  of = lambda w, state: lagrangian(loss(w), penalty(w), state, bound=3.0)
  np.testing.assert_allclose(of(w, state), loss(w) + 0.7 * (5.0 - 3.0), rtol=1e-14)
  in_w, in_state = jax.grad(of, (0, 1))(w, state)
  np.testing.assert_allclose(in_w, HESSIAN @ (np.asarray(w) - OPTIMUM) + 2 * 0.7 * w, rtol=1e-14)
  assert not any(x.any() for x in jax.tree.leaves(in_state))


def test_a_running_mean_of_noisy_penalties(x64):
  values, decay = np.random.default_rng(0).normal(size=20) + 4.2, 0.9
  state, alpha = dual_init(1.0), 1.0
  for t, value in enumerate(values):
    state = dual_step(state, value, bound=4.0, learning_rate=0.1, decay=decay)
    weights = decay ** np.arange(t, -1, -1.0)
    mean = (weights * values[: t + 1]).sum() / weights.sum()
    alpha = max(0.0, alpha + 0.1 * (mean - 4.0))
    np.testing.assert_allclose(state.multiplier, alpha, rtol=1e-12)


def test_dtypes_and_transforms():
  state = dual_step(dual_init(), jnp.bfloat16(5), bound=4.0, learning_rate=0.5)
  assert {x.dtype for x in state} == {jnp.dtype(jnp.float32)}
  assert lagrangian(jnp.bfloat16(1), jnp.bfloat16(5), state, bound=4.0) == 1.5
  penalties = jnp.array([1.0, 5.0, 9.0])
  step = lambda state, value: dual_step(state, value, bound=4.0, learning_rate=0.5)
  several = jit(jax.vmap(step, (None, 0)))(dual_init(), penalties)
  assert several._fields == ("multiplier", "mean", "weight")
  np.testing.assert_allclose(several.multiplier, [0, 0.5, 2.5])


def test_refusals():
  state = dual_init()
  with pytest.raises(ValueError, match="multiplier must lie in"):
    dual_init(-1.0)
  with pytest.raises(TypeError, match="penalty must be floating"):
    dual_step(state, jnp.array(1), bound=1.0, learning_rate=0.1)
  with pytest.raises(ValueError, match="learning_rate must lie in"):
    dual_step(state, 1.0, bound=1.0, learning_rate=0.0)
  with pytest.raises(ValueError, match=r"decay must lie in \[0, 1\)"):
    dual_step(state, 1.0, bound=1.0, learning_rate=0.1, decay=1.0)
  with pytest.raises(ValueError, match="loss must have shape"):
    lagrangian(jnp.ones(3), 1.0, state, bound=1.0)
  with pytest.raises(TypeError, match="penalty must be floating"):
    lagrangian(1.0, jnp.array(1), state, bound=1.0)
