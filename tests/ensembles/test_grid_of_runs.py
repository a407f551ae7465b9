"""A grid of strengths and seeds in one program, against separate runs and the closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreg import noise, objective, penalties
from jaxreg.ensembles import sweep

RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(20, 3)), np.array([1.0, -2.0, 0.5])
Y = X @ W
ALPHAS, STDS = np.array([0.01, 0.1, 1.0]), np.array([0.0, 0.3])


def loss_fn(params, batch, *, key):
  return 0.5 * jnp.square(jnp.matmul(batch["inputs"], params["kernel"]) - batch["labels"])


def training(num_steps, traces=None):
  def train(strengths, key):
    if traces is not None:
      traces.append(strengths)
    terms = {
      "l2": objective.penalty(penalties.l2, weight=strengths["l2"]),
      "noise": objective.perturbation(noise.gaussian_noise, on="inputs", std=strengths["std"]),
    }
    composed, optimizer = objective.compose(loss_fn, terms), optax.sgd(0.3)
    params = {"kernel": jnp.zeros(3)}
    data = {"inputs": jnp.asarray(X), "labels": jnp.asarray(Y)}

    def step(carry, number):
      params, state = carry
      grads = jax.grad(composed)(params, data, key=jax.random.fold_in(key, number))
      updates, state = optimizer.update(grads, state, params)
      return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(num_steps))
    return params["kernel"]

  return train


def grid():
  return {"l2": jnp.asarray(ALPHAS), "std": jnp.asarray(STDS)}


@pytest.mark.thorough
@pytest.mark.parametrize("by", ["vmap", "map"])
def test_a_grid_equals_separate_runs_and_ridge(by, x64):
  train = training(300)
  keys = lambda: jax.random.split(jax.random.key(0), 2)
  got = sweep(train, grid(), keys(), by=by)
  assert got.shape == (3, 2, 2, 3)
  for a, alpha in enumerate(ALPHAS):
    ridge = np.linalg.solve(X.T @ X / 20 + alpha * np.eye(3), X.T @ Y / 20)
    np.testing.assert_allclose(got[a, 0], np.broadcast_to(ridge, (2, 3)), rtol=1e-6)
    for s, std in enumerate(STDS):
      alone = jax.jit(train)({"l2": alpha, "std": std}, keys()[1])
      np.testing.assert_allclose(got[a, s, 1], alone, rtol=1e-9)
  assert np.abs(np.asarray(got[:, 1, 0] - got[:, 1, 1])).min() > 1e-6  # the seeds differ


@pytest.mark.thorough
def test_another_strength_compiles_nothing():
  traces = []
  train = training(2, traces)
  keys = lambda: jax.random.split(jax.random.key(0), 2)
  first = sweep(train, grid(), keys())
  number = len(traces)
  assert number > 0
  second = sweep(train, {name: 2 * values for name, values in grid().items()}, keys())
  assert len(traces) == number
  assert np.abs(first - second).max() > 1e-3


def test_strengths_of_one_entry_change_together():
  both = {"pair": {"a": jnp.array([1.0, 2.0]), "b": jnp.array([3.0, 4.0])}}
  got = sweep(lambda strengths, key: strengths["pair"]["a"] * strengths["pair"]["b"], both, jnp.arange(2))
  np.testing.assert_array_equal(got, [[3.0, 3.0], [8.0, 8.0]])


def test_what_is_no_such_function_is_refused():
  with pytest.raises(TypeError, match=r"function must be a function \(strengths, key\) -> result"):
    sweep(lambda strengths: 0.0, grid(), jnp.arange(2))  # type: ignore[arg-type]
  with pytest.raises(ValueError, match="by must be one of vmap, map"):
    sweep(training(1), grid(), jnp.arange(2), by="pmap")  # type: ignore[arg-type]
