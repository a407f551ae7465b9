"""Members from several seeds: initialised, trained and asked together as one by one."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contract import jit

from jaxreg import ensembles

X = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)), jnp.float32)
TX = optax.adam(0.1)


def init_fn(key):
  return {"kernel": jax.random.normal(key, (3, 2)), "bias": jnp.zeros(2)}


def apply_fn(params, x):
  return x @ params["kernel"] + params["bias"][None]


def step(member, x):
  params, state = member
  grads = jax.grad(lambda params: (apply_fn(params, x) ** 2).mean())(params)
  updates, state = TX.update(grads, state, params)
  return optax.apply_updates(params, updates), state


@pytest.mark.thorough
@pytest.mark.parametrize("by", ["vmap", "map"])
def test_a_stacked_training_is_a_loop_of_trainings(by):
  """Parameters, Adam's state and predictions, three steps."""

  def train(key):
    params = ensembles.ensemble_init(key, init_fn, num_members=3)
    members = params, ensembles.ensemble_apply(TX.init, params, by=by)
    for _ in range(3):
      members = ensembles.ensemble_apply(step, members, X, by=by)
    return members, ensembles.ensemble_apply(apply_fn, members[0], X, by=by)

  members, outputs = jit(train)(jax.random.key(0))
  assert outputs.shape == (3, 8, 2)
  one = jit(lambda key: (params := init_fn(key), TX.init(params)))
  alone = jit(step)
  for i, key in enumerate(jax.random.split(jax.random.key(0), 3)):
    member = one(key)
    for _ in range(3):
      member = alone(member, X)
    mine = jax.tree.map(lambda leaf, i=i: leaf[i], members)
    chex.assert_trees_all_close(mine, member, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs[i], apply_fn(member[0], X), rtol=1e-4, atol=1e-5)
  # Each from a start of its own.
  assert len(np.unique(members[0]["kernel"], axis=0)) == 3


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization", "bagging", "model averaging: several models, each with its own examples, as one"
)
def test_members_on_resampled_examples_make_one_prediction():
  """What is a member's own goes among the members: here the examples of a least-squares fit."""
  rng = np.random.default_rng(1)
  y = jnp.asarray(rng.normal(size=(8, 2)), jnp.float32)

  def run(key):
    indices = ensembles.bootstrap_indices(key, num_examples=8, num_members=4)
    kernels = ensembles.ensemble_apply(lambda chosen: fit(X[chosen], y[chosen]), indices)
    logits = ensembles.ensemble_apply(lambda kernel, x: x @ kernel, kernels, X)
    return indices, kernels, ensembles.arithmetic(jax.nn.log_softmax(logits))

  fit = lambda x, y: jnp.linalg.solve(x.T @ x + 0.1 * jnp.eye(3), x.T @ y)
  indices, kernels, got = jit(run)(jax.random.key(1))
  x64, y64 = np.asarray(X, np.float64), np.asarray(y, np.float64)
  for i, chosen in enumerate(np.asarray(indices)):
    a, b = x64[chosen], y64[chosen]
    np.testing.assert_allclose(kernels[i], np.linalg.solve(a.T @ a + 0.1 * np.eye(3), a.T @ b), atol=1e-4)
  logits = x64 @ np.asarray(kernels, np.float64)
  probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  np.testing.assert_allclose(np.exp(got), probs.mean(0), atol=1e-5)


def test_refusals():
  with pytest.raises(ValueError, match="num_members must be at least 1"):
    ensembles.ensemble_init(jax.random.key(0), init_fn, num_members=0)
  with pytest.raises(TypeError, match="key must be a typed key"):
    ensembles.ensemble_init(0, init_fn, num_members=2)
  with pytest.raises(ValueError, match="by must be one of vmap, map"):
    ensembles.ensemble_apply(apply_fn, {"kernel": jnp.ones((2, 3, 2))}, X, by="loop")  # pyright: ignore
