"""Weight noise in recurrent networks: four kinds, their spread over time, and the contract's checks."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import noise

STD, LENGTH, DRAWS, WEIGHT = 0.1, 50, 4000, 1.5
KINDS = [("additive", False), ("additive", True), ("multiplicative", False), ("multiplicative", True)]


@functools.partial(jax.jit, static_argnames=("kind", "cumulative", "per_step", "length"))
def paths_of(key, params, *, kind, cumulative, per_step=True, length=LENGTH, std=STD):
  """The noisy parameters at each step, inside a scan."""

  def body(carry, _):
    noisy, carry = noise.rnn_weight_noise(
      key, params, carry, std=std, kind=kind, cumulative=cumulative, per_step=per_step
    )
    return carry, noisy

  return jax.lax.scan(body, noise.rnn_weight_noise_init(params), length=length)[1]


def many(**options):
  """`[steps, draws]`, of a single weight."""
  params = {"kernel": jnp.full(DRAWS, WEIGHT)}
  return np.asarray(paths_of(jax.random.key(0), params, **options)["kernel"], np.float64)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "cumulative"), KINDS)
@pytest.mark.claim(
  "regularization",
  "noise robustness, RNNs",
  "additive or multiplicative, not cumulative or cumulative: standard deviations s, s sqrt(t), s and "
  "sqrt((1 + s^2)^t - 1) of the weight",
  size="toy",
)
def test_spread_over_time(kind, cumulative):
  got = many(kind=kind, cumulative=cumulative)
  steps = np.arange(1, LENGTH + 1)
  if kind == "additive":
    std = STD * (np.sqrt(steps) if cumulative else np.ones(LENGTH))
  else:
    std = WEIGHT * (np.sqrt((1 + STD**2) ** steps - 1) if cumulative else np.full(LENGTH, STD))
  assert (np.abs(got.mean(1) - WEIGHT) < 4.5 * std / math.sqrt(DRAWS)).all()
  # Products have heavier tails: log-normal, kurtosis 3 + 16 s^2 t and more.
  slack = 4.5 if kind == "additive" or not cumulative else 12
  assert (np.abs(got.std(1) / std - 1) < slack / math.sqrt(2 * DRAWS)).all()


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "cumulative"), KINDS)
def test_steps_are_independent_or_accumulate(kind, cumulative):
  got = many(kind=kind, cumulative=cumulative)
  one, two = got[10] - WEIGHT, got[40] - WEIGHT
  correlation = np.corrcoef(one, two)[0, 1]
  # A random walk's correlation of times 11 and 41.
  want = math.sqrt(11 / 41) if cumulative else 0
  assert abs(correlation - want) < 4 / math.sqrt(DRAWS) + (0.03 if cumulative else 0)


@pytest.mark.thorough
def test_cumulative_noise_is_the_sum_and_the_product_of_the_steps_own():
  """The same key: the deltas are those that are not accumulated."""
  params = {"kernel": jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)}
  ones = {"kernel": jnp.ones((3, 4))}
  run = lambda p, kind, cumulative: np.asarray(
    paths_of(jax.random.key(1), p, kind=kind, cumulative=cumulative, length=6)["kernel"], np.float64
  )
  delta = run(ones, "additive", False) - 1
  w = np.asarray(params["kernel"], np.float64)
  np.testing.assert_allclose(run(params, "additive", True), w + delta.cumsum(0), rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(run(params, "multiplicative", False), w * (1 + delta), rtol=1e-5)
  np.testing.assert_allclose(run(params, "multiplicative", True), w * (1 + delta).cumprod(0), rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "cumulative"), KINDS)
def test_one_draw_for_a_sequence(kind, cumulative):
  got = np.asarray(
    paths_of(
      jax.random.key(2), {"kernel": jnp.ones(5)}, kind=kind, cumulative=cumulative, per_step=False, length=4
    )["kernel"],
    np.float64,
  )
  delta, t = got[0] - 1, np.arange(1, 5)[:, None]
  want = {"additive": 1 + t * delta, "multiplicative": (1 + delta) ** t}[kind] if cumulative else got[:1]
  np.testing.assert_allclose(got, np.broadcast_to(want, got.shape), rtol=1e-5)


@pytest.mark.thorough
def test_each_sequence_begins_anew():
  """From a fresh carry the first step is the first step; from the last one's carry noise goes on."""
  params = {"kernel": jnp.ones(3)}
  step = lambda carry: noise.rnn_weight_noise(jax.random.key(3), params, carry, std=0.1, cumulative=True)
  first, carry = step(noise.rnn_weight_noise_init(params))
  again, _ = step(noise.rnn_weight_noise_init(params))
  second, carry = step(carry)
  np.testing.assert_array_equal(first["kernel"], again["kernel"])
  assert (first["kernel"] != second["kernel"]).all()
  assert int(carry.step) == 2


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "cumulative"), KINDS)
def test_limits_and_gradients(kind, cumulative):
  for value in (0.0, 1e4):
    params = {"kernel": jnp.full(3, value), "bias": jnp.ones(2)}
    still = paths_of(jax.random.key(4), params, kind=kind, cumulative=cumulative, std=0.0, length=3)
    np.testing.assert_array_equal(still["kernel"], value)
    np.testing.assert_array_equal(still["bias"], 1)

    def loss(params, std):
      noisy = paths_of(jax.random.key(4), params, kind=kind, cumulative=cumulative, std=std, length=3)
      return noisy["kernel"].sum()

    for std in (0.0, 0.5):
      by_params, by_std = jax.grad(loss, (0, 1))(params, std)
      assert np.isfinite(by_params["kernel"]).all()
      assert np.isfinite(by_std)
      if kind == "additive":
        np.testing.assert_array_equal(by_params["kernel"], 3)


def test_contract():
  """What `cases_functions` has not: no key, the carry's dtypes and refusals."""
  params = {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}
  carry = noise.rnn_weight_noise_init(params)
  step = functools.partial(noise.rnn_weight_noise, carry=carry, std=0.1)
  chex.assert_trees_all_equal(step(None, params)[0], params)
  shapes = jax.eval_shape(noise.rnn_weight_noise_init, jax.tree.map(jnp.bfloat16, params))
  assert {x.dtype for x in jax.tree.leaves(shapes.total)} == {np.dtype(np.float32)}
  for wrong in (0, jax.random.split(jax.random.key(0), 2)):
    with pytest.raises((TypeError, ValueError), match="key"):
      step(wrong, params)
  with pytest.raises(TypeError, match="kernel must be floating"):
    step(jax.random.key(0), {**params, "kernel": jnp.ones((2, 3), int)})
  for name, value in (("kind", "other"), ("std", -1.0)):
    with pytest.raises(ValueError, match=name):
      step(jax.random.key(0), params, **{name: value})
