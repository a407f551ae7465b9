"""A batch in parts gives the step of the whole batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg._sums import weighted
from jaxreg.train.step.state import TrainState
from jaxreg.train.step.step import make_train_step

SIZE, FEATURES, CLASSES = 24, 5, 3
RATE = 0.5


def linear(params, state, batch, key):
  """A linear softmax whose metric `noise` is a draw an example."""
  logits = batch["inputs"] @ params["kernel"]
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
  total, count = weighted(losses, batch["weights"])
  noise = jax.random.uniform(key, losses.shape)
  metrics = {"loss": (total, count), "noise": weighted(noise, batch["weights"])}
  return total / jnp.where(count > 0, count, 1), (state.model_state, metrics)


def make_batch(weights):
  generator = np.random.default_rng(0)
  return {
    "inputs": generator.normal(size=(SIZE, FEATURES)).astype(np.float32),
    "labels": generator.integers(0, CLASSES, SIZE).astype(np.int32),
    "weights": np.asarray(weights, np.float32),
  }


@functools.cache
def step(parts):
  return jax.jit(make_train_step(linear, optax.sgd(RATE), optax.constant_schedule(RATE), accumulate=parts))


def start():
  kernel = jnp.asarray(np.random.default_rng(1).normal(size=(FEATURES, CLASSES)), jnp.float32)
  params = {"kernel": kernel}
  return TrainState(jnp.int32(0), jax.random.key(0), params, {}, optax.sgd(RATE).init(params))


def oracle(batch):
  """The kernel after one step and the loss, in float64."""
  x, weights = batch["inputs"].astype(np.float64), batch["weights"].astype(np.float64)
  kernel = np.asarray(start().params["kernel"], np.float64)
  probs = np.exp(x @ kernel)
  probs /= probs.sum(-1, keepdims=True)
  gap = (probs - np.eye(CLASSES)[batch["labels"]]) * weights[:, None] / weights.sum()
  loss = -(weights * np.log(probs[np.arange(SIZE), batch["labels"]])).sum() / weights.sum()
  return kernel - RATE * x.T @ gap, loss


WEIGHTS = {
  "even": np.ones(SIZE),
  "padded": np.arange(SIZE) < 17,
  "whole parts without": np.arange(SIZE) % 4 == 1,
  "fractions": np.linspace(0, 2, SIZE),
}


@pytest.mark.thorough
@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("parts", [1, 2, 4, SIZE])
def test_the_parts_make_the_step_of_the_whole_batch(parts, weights):
  batch = make_batch(weights)
  state, metrics = step(parts)(start(), batch)
  kernel, loss = oracle(batch)
  np.testing.assert_allclose(state.params["kernel"], kernel, rtol=1e-5, atol=1e-6)
  total, count = metrics["loss"]
  np.testing.assert_allclose(total / count, loss, rtol=1e-5)
  np.testing.assert_allclose(count, np.sum(weights), rtol=1e-6)
  assert state.step == 1


def test_each_part_draws_its_own_noise():
  """With an example a part, as many different draws as examples."""
  draws = [
    float(step(SIZE)(start(), make_batch(np.eye(SIZE)[example]))[1]["noise"][0]) for example in range(SIZE)
  ]
  assert len(set(draws)) == SIZE
  assert 0 <= min(draws) < 0.3 < 0.7 < max(draws) < 1


@pytest.mark.thorough
def test_on_eight_devices_it_is_the_same():
  mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
  batch = make_batch(WEIGHTS["fractions"])
  state, metrics = step(3)(
    jax.device_put(start(), NamedSharding(mesh, P())), jax.device_put(batch, NamedSharding(mesh, P("data")))
  )
  plain, plain_metrics = step(3)(start(), batch)
  np.testing.assert_allclose(state.params["kernel"], plain.params["kernel"], rtol=1e-6, atol=1e-7)
  # The noise, too: to the bit in each draw, up to the order of the sum here.
  np.testing.assert_allclose(metrics["noise"][0], plain_metrics["noise"][0], rtol=1e-6)


@pytest.mark.thorough
def test_moments_are_the_mean_of_those_of_the_parts():
  """BatchNorm's running mean after a step: 0.9 of the old and 0.1 of the mean over the parts."""
  norm = nn.BatchNorm(use_running_average=False, momentum=0.9)
  batch = make_batch(np.ones(SIZE))
  variables = norm.init(jax.random.key(0), batch["inputs"])

  def objective(params, state, batch, key):
    y, updated = norm.apply({"params": params, **state.model_state}, batch["inputs"], mutable=["batch_stats"])
    total, count = weighted((y**3).sum(-1), batch["weights"])
    return total / count, (updated, {"loss": (total, count)})

  train_step = make_train_step(objective, optax.sgd(RATE), optax.constant_schedule(RATE), accumulate=3)
  model_state = {"batch_stats": variables["batch_stats"]}
  params = variables["params"]
  state = TrainState(jnp.int32(0), jax.random.key(0), params, model_state, optax.sgd(RATE).init(params))
  state, _ = jax.jit(train_step)(state, batch)
  x = batch["inputs"].astype(np.float64)
  stats = state.model_state["batch_stats"]
  np.testing.assert_allclose(stats["mean"], 0.1 * x.mean(0), rtol=1e-4, atol=1e-6)
  # Every third example makes a part.
  variances = np.mean([x[part::3].var(0) for part in range(3)], axis=0)
  np.testing.assert_allclose(stats["var"], 0.9 + 0.1 * variances, rtol=1e-4)
  assert np.abs(x.var(0) - variances).max() > 1e-2
