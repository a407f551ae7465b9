"""Norms, groups, orthogonality and priors of weights."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from contract import jit
from flax import nnx, traverse_util

from jaxreg import noise, paths, penalties
from jaxreg.objective import compose, penalty
from jaxreg.penalties import group_lasso, l1, l2, orthogonality

ALPHA, RATE = 0.3, 0.1


def regression(seed=0):
  rng = np.random.default_rng(seed)
  x, y = rng.normal(size=(20, 4)), rng.normal(size=20)
  params = {"kernel": jnp.asarray(rng.normal(size=4)), "bias": jnp.asarray(rng.normal())}
  loss = lambda params, batch, *, key=None: (
    0.5 * jnp.square(jnp.matmul(x, params["kernel"]) + params["bias"] - y).mean()
  )
  return params, loss, x, y


def descend(loss, tx, params, steps):
  state = tx.init(params)

  def step(_, carry):
    params, state = carry
    updates, state = tx.update(jax.grad(loss)(params, None), state, params)
    return optax.apply_updates(params, updates), state

  return jax.jit(lambda carry: jax.lax.fori_loop(0, steps, step, carry))((params, state))[0]


@pytest.mark.claim(
  "regularization", "L2 parameter regularization", "a step is w - eps alpha w - eps times the gradient"
)
def test_l2_step(x64):
  params, loss, x, y = regression()
  after = descend(compose(loss, {"l2": penalty(l2, weight=ALPHA)}), optax.sgd(RATE), params, 1)
  w, b = np.asarray(params["kernel"]), float(params["bias"])
  residual = x @ w + b - y
  np.testing.assert_allclose(after["kernel"], (1 - RATE * ALPHA) * w - RATE * residual @ x / 20, rtol=1e-14)
  np.testing.assert_allclose(after["bias"], b - RATE * residual.mean(), rtol=1e-14)


def test_penalty_and_coupled_decay_are_one_trajectory(x64):
  params, loss, *_ = regression()
  decay = optax.chain(optax.add_decayed_weights(ALPHA, paths.kernels_only), optax.sgd(RATE, momentum=0.9))
  got = descend(compose(loss, {"l2": penalty(l2, weight=ALPHA)}), optax.sgd(RATE, momentum=0.9), params, 30)
  chex.assert_trees_all_close(got, descend(loss, decay, params, 30), rtol=1e-12)


@pytest.mark.claim(
  "regularization",
  "L2 parameter regularization",
  "Omega is the squared norm; with it, what follows would have 2 alpha for alpha",
  status="erratum",
)
def test_the_factor_of_a_half(x64):
  """The minimum of alpha Omega + lambda (w - 1)^2 / 2 is lambda / (lambda + alpha) if Omega has the half."""
  curvature = 0.7
  loss = lambda params, batch, *, key=None: 0.5 * curvature * jnp.square(params["kernel"] - 1).sum()
  start = {"kernel": jnp.zeros(1)}
  minimum = descend(compose(loss, {"l2": penalty(l2, weight=ALPHA)}), optax.sgd(0.5), start, 200)["kernel"]
  np.testing.assert_allclose(minimum, curvature / (curvature + ALPHA), rtol=1e-12)
  squared = lambda params: 2 * l2(params)
  minimum = descend(compose(loss, {"squared": penalty(squared, weight=ALPHA)}), optax.sgd(0.5), start, 200)[
    "kernel"
  ]
  np.testing.assert_allclose(minimum, curvature / (curvature + 2 * ALPHA), rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.claim("regularization", "L1 regularization", "the gradient is sign(w), 0 at 0")
def test_l1_gradient_at_zero():
  w = jnp.array([-2.0, 0.0, -0.0, 1e-30, 3.0])
  np.testing.assert_array_equal(jax.grad(l1)({"kernel": w})["kernel"], [-1, 0, 0, 1, 1])
  assert jax.grad(jnp.abs)(0.0) == 1  # what a plain absolute value would do
  np.testing.assert_array_equal(l1({"kernel": w}), np.float32(5.0))


@pytest.mark.thorough
def test_hoyer_and_its_gradient_whatever_the_scale():
  """Of two leaves and one of zeros, at sizes whose squares are no float32."""
  rng = np.random.default_rng(0)
  kernels = [rng.normal(size=(4, 3)), rng.normal(size=7), np.zeros(2)]
  value_and_grad = jax.jit(jax.value_and_grad(penalties.hoyer))
  for scale in (1.0, 2.0**90, 2.0**-90):
    scaled = {str(i): {"kernel": jnp.asarray(w * scale, jnp.float32)} for i, w in enumerate(kernels)}
    value, gradient = value_and_grad(scaled)
    ratios = [np.abs(w).sum() / (w**2).sum() for w in kernels[:2]]
    of_each = [np.abs(w).sum() * ratio for w, ratio in zip(kernels, ratios)]
    np.testing.assert_allclose(value, sum(of_each), rtol=1e-6)
    for i, (w, ratio) in enumerate(zip(kernels, ratios)):
      slope = 2 * ratio * (np.sign(w) - ratio * w)
      np.testing.assert_allclose(gradient[str(i)]["kernel"] * scale, slope, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(gradient["2"]["kernel"], 0)
  assert penalties.hoyer({"kernel": jnp.array([[2.0, 0.0], [0.0, -2.0]])}) == pytest.approx(2)


@pytest.mark.thorough
def test_a_group_is_what_comes_into_a_unit():
  rng = np.random.default_rng(0)
  weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape, _ in oracles.LAYOUTS}
  plain = functools.partial(group_lasso, size_weighted=False)

  @jit
  def run(weights):
    trees = {n: traverse_util.unflatten_dict({tuple(n.split("/")): w}) for n, w in weights.items()}
    return {n: (group_lasso(tree), plain(tree), plain(tree, axis=-1)) for n, tree in trees.items()}

  got = run(weights)
  for name, shape, axes in oracles.LAYOUTS:
    w = np.float64(weights[name])
    norms = np.sqrt((w**2).sum(axes)).sum()
    weighted = np.sqrt(np.prod([shape[axis] for axis in axes])) * norms
    np.testing.assert_allclose(got[name], [weighted, norms, np.sqrt((w**2).sum(-1)).sum()], rtol=1e-5)


def test_a_group_of_zeros_has_a_gradient_of_zero():
  w = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
  w[:, 1] = 0
  gradient = jit(jax.grad(functools.partial(group_lasso, size_weighted=False)))({"kernel": w})
  norms = np.linalg.norm(w, axis=0)
  np.testing.assert_allclose(gradient["kernel"], w / np.where(norms > 0, norms, 1), rtol=1e-5)
  assert np.isnan(jax.grad(jnp.linalg.norm)(jnp.zeros(3))).all()  # what a plain norm would do


def test_a_group_of_nan_costs_nan():
  w = {"kernel": jnp.ones((3, 4)).at[0, 0].set(jnp.nan)}
  value, gradient = jit(jax.value_and_grad(group_lasso))(w)
  assert np.isnan(value)
  np.testing.assert_array_equal(np.isnan(gradient["kernel"]), np.arange(4) < np.ones((3, 1)))


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (2, 2, 2, 3)])
def test_orthonormal_columns_or_rows_cost_nothing(shape, x64):
  rng = np.random.default_rng(2)
  fan_in, units = int(np.prod(shape[:-1])), shape[-1]
  q = np.linalg.qr(rng.normal(size=(max(fan_in, units), min(fan_in, units))))[0]
  w = (q if fan_in >= units else q.T).reshape(shape)
  of = jit(jax.value_and_grad(orthogonality))
  value, gradient = of({"kernel": w})
  assert value < 1e-28
  assert np.abs(gradient["kernel"]).max() < 1e-14
  np.testing.assert_allclose(of({"kernel": 2 * w})[0], 9 * min(fan_in, units), rtol=1e-12)


def test_the_bias_of_a_layer_has_no_orthogonal_units():
  params = {"a": {"kernel": jnp.eye(3), "bias": jnp.zeros(3)}}
  with pytest.raises(ValueError, match=r"mask must select matrices, .* got params/a/bias \(3,\)"):
    orthogonality(params, mask="a/*")
  assert orthogonality(params, mask="a/kernel") == 0


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_layers_without_inputs_or_units_cost_nothing(shape):
  empty = jnp.zeros(shape)

  @jit
  def costs(empty, x):
    of_weights = [penalty({"kernel": empty}) for penalty in (orthogonality, group_lasso, l2)]
    slope = penalties.jacobian_penalty(lambda w, x: x @ w, empty, x)
    return *of_weights, slope

  for cost in costs(empty, jnp.ones((2, shape[0]))):
    np.testing.assert_array_equal(cost, 0)


@pytest.mark.thorough
def test_learned_dropout_finds_the_leaves_of_an_nnx_state():
  layer = {"kernel": jnp.ones((2, 2)), "log_alpha": jnp.zeros(2), "rate_logit": jnp.ones(())}
  state = nnx.State({"Dense_0": {name: nnx.Param(leaf) for name, leaf in layer.items()}})
  assert "Dense_0/log_alpha" in paths.leaf_names(state)
  want = 2 * noise.variational_dropout_kl(0.0) + noise.concrete_dropout_kl(layer["kernel"], rate_logit=1.0)
  np.testing.assert_allclose(penalties.learned_dropout(state), want, rtol=1e-6)


@pytest.mark.parametrize(("name", "axis"), [("kernel", None), ("weight", None), ("kernel", 1)])
def test_orthogonality_of_stacked_layers_is_the_sum_over_layers(name, axis):
  layers = np.random.default_rng(0).normal(size=(3, 4, 5))
  want = sum(float(np.square(w @ w.T - np.eye(4)).sum()) for w in layers)
  got = penalties.orthogonality({"stacked": {"hidden": {name: jnp.asarray(layers)}}}, axis=axis)
  np.testing.assert_allclose(got, want, rtol=1e-5)
