"""The penalised objective: gradients, what it leaves alone, several devices."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contract import jit

from jaxreg.penalties import l1, l2, penalized

ALPHA, BETA = 0.3, 0.07


def network(seed=0):
  rng = np.random.default_rng(seed)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape))
  params = {
    "Dense_0": {"kernel": draw(3, 4), "bias": draw(4)},
    "Dense_1": {"kernel": draw(4, 1), "bias": draw(1)},
  }
  return params, {"x": draw(8, 3), "y": draw(8)}


def loss_fn(params, batch, *, key=None):
  hidden = jnp.tanh(jnp.matmul(batch["x"], params["Dense_0"]["kernel"]) + params["Dense_0"]["bias"][None])
  outputs = jnp.matmul(hidden, params["Dense_1"]["kernel"]) + params["Dense_1"]["bias"][None]
  noise = 0 if key is None else jax.random.normal(key)
  return jnp.square(outputs[:, 0] - batch["y"] + noise).mean()


@pytest.mark.claim(
  "regularization",
  "parameter norm penalties",
  "the objective is J + alpha Omega, on affine weights, not biases",
)
def test_gradient_is_that_of_the_loss_and_alpha_times_the_penalty_s(x64):
  params, batch = network()
  # Not compiled: fused, the plain gradient would be rounded otherwise in the last bit.
  plain = jax.grad(loss_fn)(params, batch)
  got = jax.grad(penalized(loss_fn, (ALPHA, l2), (BETA, l1)))(params, batch)
  for layer in params:
    w = np.asarray(params[layer]["kernel"])
    want = plain[layer]["kernel"] + ALPHA * w + BETA * np.sign(w)
    np.testing.assert_allclose(got[layer]["kernel"], want, rtol=1e-13)
    # Bit for bit: nothing is added to what the mask leaves out.
    np.testing.assert_array_equal(got[layer]["bias"], plain[layer]["bias"])
  with_biases = jax.grad(penalized(loss_fn, (ALPHA, functools.partial(l2, mask="*"))))(params, batch)
  want = plain["Dense_0"]["bias"] + ALPHA * params["Dense_0"]["bias"]
  np.testing.assert_allclose(with_biases["Dense_0"]["bias"], want, rtol=1e-13)


def test_weight_zero_is_the_loss_itself():
  params, batch = network()
  plain = jax.value_and_grad(loss_fn)(params, batch)
  got = jax.value_and_grad(penalized(loss_fn, (0.0, l2), (0.0, l1)))(params, batch)
  chex.assert_trees_all_equal(got, plain)
  bare = jax.value_and_grad(penalized(loss_fn))(params, batch)
  chex.assert_trees_all_equal(bare, plain)


def test_terms_add_up():
  params, batch = network()
  biases = functools.partial(l2, mask="*/bias")
  terms = ((ALPHA, l2), (BETA, l1), (2.0, biases), (1.0, lambda params: jnp.ones(())))
  w = [np.asarray(params[layer]["kernel"], np.float64) for layer in params]
  b = [np.asarray(params[layer]["bias"], np.float64) for layer in params]
  want = float(loss_fn(params, batch)) + ALPHA / 2 * sum((x**2).sum() for x in w)
  want += BETA * sum(np.abs(x).sum() for x in w) + sum((x**2).sum() for x in b) + 1.0
  np.testing.assert_allclose(penalized(loss_fn, *terms)(params, batch), want, rtol=1e-6)


def test_the_key_reaches_the_loss_and_weights_may_be_traced():
  params, batch = network()
  objective = lambda weight, key: penalized(loss_fn, (weight, l2))(params, batch, key=key)
  got = jax.jit(objective)(jnp.float32(ALPHA), jax.random.key(3))
  want = loss_fn(params, batch, key=jax.random.key(3)) + ALPHA * l2(params)
  np.testing.assert_allclose(got, want, rtol=1e-6)
  assert abs(float(got) - float(objective(ALPHA, None))) > 1e-3


def test_weights_may_be_schedules():
  params, batch = network()
  schedule = optax.linear_schedule(0.0, ALPHA, transition_steps=10)
  objective = jax.jit(penalized(loss_fn, (schedule, l2), (BETA, l1)))
  for step in (0, 5, 20):
    want = loss_fn(params, batch) + ALPHA * min(step / 10, 1) * l2(params) + BETA * l1(params)
    np.testing.assert_allclose(objective(params, batch, step=step), want, rtol=1e-6)
  with pytest.raises(ValueError, match="step must be given: a weight is a schedule"):
    penalized(loss_fn, (schedule, l2))(params, batch)


def test_a_half_precision_loss_is_widened():
  for terms in ((), ((1.0, l2),)):
    objective = penalized(lambda params, batch, *, key: params["kernel"].sum(), *terms)
    assert objective({"kernel": jnp.ones((2, 2), jnp.bfloat16)}, None).dtype == jnp.float32


def test_devices_are_averaged_for_a_sum_counts_the_penalty_once_a_device():
  params, batch = network()
  objective = penalized(loss_fn, (ALPHA, l2))
  whole = jit(jax.grad(objective))(params, batch)
  parts = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), batch)

  def shard(reduce):
    step = lambda batch: reduce(jax.grad(objective)(params, batch), "data")
    return jit(jax.vmap(step, axis_name="data", out_axes=None))(parts)

  mean, total = shard(jax.lax.pmean), shard(jax.lax.psum)
  chex.assert_trees_all_close(mean, whole, rtol=1e-4, atol=1e-6)
  w = params["Dense_0"]["kernel"]
  extra = total["Dense_0"]["kernel"] - 4 * (whole["Dense_0"]["kernel"] - ALPHA * w)
  np.testing.assert_allclose(extra, 4 * ALPHA * w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("term", [l2, (l2,), (1.0, 2.0), (1.0, l2, "l2")])
def test_a_term_is_a_pair(term):
  with pytest.raises(TypeError, match="terms must be pairs"):
    penalized(loss_fn, term)


def test_a_weight_is_not_negative_and_a_loss_a_scalar():
  with pytest.raises(ValueError, match="weight must lie in"):
    penalized(loss_fn, (-0.1, l2))
  with pytest.raises(ValueError, match="the value of loss_fn must have shape"):
    penalized(lambda params, batch, *, key: jnp.ones(3), (0.1, l2))({"kernel": jnp.ones(2)}, None)


def test_what_comes_with_the_loss_comes_with_the_penalised_one(x64):
  """As `jax.value_and_grad` has it, with BatchNorm's statistics for instance."""
  params, batch = network()
  with_aux = lambda params, batch, *, key: (loss_fn(params, batch, key=key), {"seen": batch["y"].size})
  step = jax.jit(jax.value_and_grad(penalized(with_aux, (ALPHA, l2), has_aux=True), has_aux=True))
  (loss, aux), grads = step(params, batch)
  w = [np.asarray(params[layer]["kernel"]) for layer in params]
  squares = sum((x**2).sum() for x in w)
  np.testing.assert_allclose(loss, loss_fn(params, batch) + ALPHA / 2 * squares, rtol=1e-12)
  assert aux == {"seen": 8}
  want = jax.grad(loss_fn)(params, batch)["Dense_0"]["kernel"] + ALPHA * w[0]
  np.testing.assert_allclose(grads["Dense_0"]["kernel"], want, rtol=1e-12)


@pytest.mark.parametrize(
  ("value", "has_aux", "message"),
  [
    ((1.0, 2.0), False, r"the loss must be a scalar, got a tuple; \(loss, aux\) needs has_aux=True"),
    (1.0, True, r"must return \(loss, aux\) with has_aux=True, got a float"),
    ((1.0, 2.0, 3.0), True, r"must return \(loss, aux\)"),
    (((1.0, 2.0), 3.0), True, "the loss must be a scalar, got a tuple"),
  ],
)
def test_a_loss_comes_with_the_rest_as_a_pair_or_alone(value, has_aux, message):
  objective = penalized(lambda params, batch, *, key: value, (0.1, l2), has_aux=has_aux)
  with pytest.raises(TypeError, match=message):
    objective({"kernel": jnp.ones(2)}, None)
