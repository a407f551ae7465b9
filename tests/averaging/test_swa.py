"""The mean of iterates and the BatchNorm statistics of its network, against NumPy."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import averaging


def test_running_mean_is_the_mean():
  iterates = np.random.default_rng(0).normal(size=(7, 3))

  average = averaging.swa()

  def run(iterates):
    step = lambda state, params: (average.update(state, params), None)
    return jax.lax.scan(step, average.init(jax.tree.map(lambda x: x[0], iterates)), iterates)[0]

  with jax.enable_x64(True):
    got = jax.jit(run)({"w": jnp.asarray(iterates), "b": jnp.asarray(iterates, jnp.bfloat16)})
    assert got.count == 7
    np.testing.assert_allclose(got.params["w"], iterates.mean(0), rtol=1e-13)
    # 7 bfloat16 numbers, averaged in float32.
    narrow = np.asarray(jnp.asarray(iterates, jnp.bfloat16), np.float64)
    assert got.params["b"].dtype == np.float32
  np.testing.assert_allclose(got.params["b"], narrow.mean(0), rtol=1e-6, atol=1e-6)


def merged(average, iterates):
  """The means after each of the iterates."""
  state, means = average.init(jnp.zeros(iterates.shape[1:])), []
  for params in iterates:
    state = average.update(state, jnp.asarray(params))
    means.append(np.asarray(average.params(state)))
  return means


def descent(gradient, rates):
  """The iterates of SGD in NumPy, from 1."""
  w = [np.ones(3)]
  for number, rate in enumerate(rates):
    w.append(w[-1] - rate * gradient(w[-1], number))
  return np.array(w)


DECAYS = {
  "linear": lambda t: 1 - t,
  "cosine": lambda t: (1 + np.cos(np.pi * t)) / 2,
  "sqrt": lambda t: 1 - np.sqrt(t),
  "late": lambda t: np.where(t < 0.5, 1.0, 0.25),
}


@pytest.mark.parametrize("name", DECAYS)
def test_the_mean_imitates_a_decayed_learning_rate(name):
  """Exactly where the gradients are the same; in the first order of the rate where they are not."""
  number = 12
  decay = DECAYS[name](np.arange(1, number + 1) / (number + 1))
  average = averaging.swa(learning_rates=decay)
  rng = np.random.default_rng(1)
  noise, curvature = rng.normal(size=(number, 3)), np.array([1.0, 0.5, 0.1])
  with jax.enable_x64(True):
    constant = lambda w, step: noise[step]
    got = merged(average, descent(constant, np.full(number, 0.3)))
    np.testing.assert_allclose(got[-1], descent(constant, 0.3 * decay)[-1], rtol=1e-12)
    differences = []
    for rate in (1e-2, 1e-3):
      quadratic = lambda w, step: curvature * w + noise[step]
      got = merged(average, descent(quadratic, np.full(number, rate)))[-1]
      differences.append(np.abs(got - descent(quadratic, rate * decay)[-1]).max())
    assert 50 < differences[0] / differences[1] < 200  # of the second order


def test_the_plain_mean_imitates_a_linear_decay_and_before_the_end_a_shorter_one():
  iterates = np.random.default_rng(4).normal(size=(8, 3))
  with jax.enable_x64(True):
    linear = merged(averaging.swa(learning_rates=1 - np.arange(1, 8) / 8), iterates)
    for number, mean in enumerate(linear, 1):
      np.testing.assert_allclose(mean, iterates[:number].mean(0), rtol=1e-12)
    average = averaging.swa(learning_rates=[1.0, 1.0, 0.5])
    got = merged(average, iterates)
  # No weight at first, then the shares of 0, 0, 1/2 and 1/2; later iterates count no more.
  np.testing.assert_allclose(got[:3], iterates[:3], rtol=1e-12)
  np.testing.assert_allclose(got[3:], [iterates[2:4].mean(0)] * 5, rtol=1e-12)


def test_learning_rates_that_are_no_decay_are_refused():
  for rates in ([0.5, 0.6], [1.1], [-0.1], [[0.5]], [float("nan")], 0.5):
    with pytest.raises(ValueError, match="learning_rates must be"):
      averaging.swa(learning_rates=rates)


class Net(nn.Module):
  momentum: float = 0.9

  @nn.compact
  def __call__(self, x, *, train):
    x = nn.Dense(3)(x)
    x = nn.BatchNorm(use_running_average=not train, momentum=self.momentum)(x)
    return nn.BatchNorm(use_running_average=not train, momentum=0.9)(jnp.tanh(x))


@pytest.mark.parametrize(("momentum", "first"), [(0.9, 0.9), (None, 0.9), (None, 0.99), (None, 0.0)])
def test_batch_norm_statistics_of_two_layers(momentum, first):
  """A momentum that is measured may differ between the layers."""
  rng = np.random.default_rng(2)
  kernel, batches = rng.normal(size=(4, 3)), rng.normal(size=(5, 16, 4))
  norm = {"scale": jnp.ones(3), "bias": jnp.zeros(3)}
  dense = {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.zeros(3)}
  params = {"Dense_0": dense, "BatchNorm_0": norm, "BatchNorm_1": norm}
  # What the statistics were has no effect.
  old = {"mean": jnp.full(3, 100.0), "var": jnp.full(3, 1e4)}
  state = {"batch_stats": {"BatchNorm_0": old, "BatchNorm_1": old}}

  @functools.partial(jax.jit, static_argnames="train")
  def apply_fn(params, model_state, x, *, key, train):
    return Net(first).apply({"params": params, **model_state}, x, train=train, mutable="batch_stats")

  got = averaging.batch_norm_statistics(apply_fn, params, state, np.float32(batches), momentum=momentum)
  hidden = batches @ kernel
  mean, var = hidden.mean(1, keepdims=True), hidden.var(1, keepdims=True)
  second = np.tanh((hidden - mean) / np.sqrt(var + 1e-5))
  for name, x in (("BatchNorm_0", hidden), ("BatchNorm_1", second)):
    statistics = got["batch_stats"][name]
    np.testing.assert_allclose(statistics["mean"], x.mean(1).mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(statistics["var"], x.var(1).mean(0), rtol=1e-4)


def test_batches_weigh_by_their_examples():
  """The running mean of the inputs is that of all examples, whatever the sizes of the batches are."""
  x = np.random.default_rng(3).normal(size=(11, 2)).astype(np.float32)
  apply_fn = lambda params, mean, x, *, key, train: (x, 0.9 * mean + 0.1 * x.mean(axis=0))
  got = averaging.batch_norm_statistics(apply_fn, None, jnp.zeros(2), np.split(x, [4, 5]), momentum=0.9)
  np.testing.assert_allclose(got, x.mean(axis=0), rtol=1e-5)


def test_each_batch_has_noise_of_its_own():
  def apply_fn(params, mean, x, *, key, train):
    assert train
    return x, 0.5 * mean + 0.5 * jax.random.normal(key)

  batches = [jnp.zeros(1)] * 4
  run = functools.partial(averaging.batch_norm_statistics, apply_fn, None, jnp.zeros(()), momentum=0.5)
  key = jax.random.key(0)
  want = np.mean([jax.random.normal(jax.random.fold_in(key, i)) for i in (1, 2, 3, 4)])
  np.testing.assert_allclose(run(batches, key=key), want, rtol=1e-5)


def test_what_does_not_fit_is_refused():
  apply_fn = lambda params, state, x, *, key, train: (x, state)
  with pytest.raises(ValueError, match="batches must hold at least one"):
    averaging.batch_norm_statistics(apply_fn, None, jnp.zeros(1), [])
  with pytest.raises(ValueError, match="momentum"):
    averaging.batch_norm_statistics(apply_fn, None, jnp.zeros(1), [jnp.zeros(1)], momentum=1.0)
  with pytest.raises(TypeError, match="model_state must be floating"):
    averaging.batch_norm_statistics(apply_fn, None, jnp.zeros(1, int), [jnp.zeros(1)])
  counter = lambda params, state, x, *, key, train: (x, state + 1)
  with pytest.raises(ValueError, match="model_state must hold running averages only"):
    averaging.batch_norm_statistics(counter, None, jnp.zeros(1), [jnp.zeros(1)], momentum=None)
