"""Models of NNX and Equinox as they are split: what is averaged, what is taken over, what is refused."""

import functools
import re

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxreg import averaging

AVERAGES = {
  "swa": averaging.swa(),
  "ema": averaging.ema(),
  "early_stopping": averaging.early_stopping(patience=1),
}
by_name = pytest.mark.parametrize("name", AVERAGES)


def functions(name):
  """`init` and `update`; early stopping gets the metric 1."""
  average = AVERAGES[name]
  metric = {"metric": jnp.float32(1)} if name == "early_stopping" else {}
  return average.init, functools.partial(average.update, **metric)


@pytest.mark.parametrize("name", [*AVERAGES, "swag"])
@pytest.mark.parametrize("shape", [(1,), (3, 2), (), (2, 1)])
def test_parameters_of_another_shape_do_not_broadcast(name, shape):
  if name == "swag":
    average = averaging.swag(rank=2)
    init, update = average.init, average.update
  else:
    init, update = functions(name)
  for call in (update, jax.jit(update)):
    match = re.escape(f"params/w must have the shape given to init, (2,), got {shape}")
    with pytest.raises(ValueError, match=match):
      call(init({"w": jnp.zeros(2)}), {"w": jnp.ones(shape)})
    with pytest.raises(ValueError, match="params must have the structure given to init"):
      call(init({"w": jnp.zeros(2)}), {"v": jnp.ones(2)})


class Net(nnx.Module):
  def __init__(self, rngs):
    self.linear, self.norm = nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
    self.dropout = nnx.Dropout(0.5, rngs=rngs)

  def __call__(self, x):
    return self.dropout(self.norm(self.linear(x)))


@pytest.mark.thorough
@by_name
@jax.debug_key_reuse(False)  # to choose between two copies of a key is no draw
def test_all_that_nnx_splits_off(name):
  """Counters and keys of its noise included: these are the newest, the rest is of float32 and averaged."""
  init, update = functions(name)
  model = Net(nnx.Rngs(0))
  snapshot = lambda: nnx.split(nnx.clone(model))[1]
  state = jax.jit(update)(init(snapshot()), snapshot())
  before = np.asarray(model.norm.mean[...])
  model(jnp.ones((2, 3)))  # which draws, and moves BatchNorm's statistics
  after = np.asarray(model.norm.mean[...])
  assert (before != after).all()
  state = jax.jit(update)(state, snapshot())
  got = nnx.merge(nnx.split(model)[0], state.params)
  best = name == "early_stopping"  # a tie is no improvement: the first
  assert got.dropout.rngs.count[...] == (0 if best else 1)
  np.testing.assert_allclose(got.norm.mean[...], before if best else (before + after) / 2, rtol=1e-6)
  got.eval()
  assert np.isfinite(got(jnp.ones((2, 3)))).all()


@pytest.mark.thorough
@by_name
def test_an_equinox_model_says_which_leaf_is_no_array(name):
  init, update = functions(name)
  model = eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0))
  with pytest.raises(TypeError, match=r"^activation must be an array, .* eqx.filter"):
    init(model)
  params, static = eqx.partition(model, eqx.is_array)
  state = update(update(init(params), params), jax.tree.map(lambda leaf: 3 * leaf, params))
  factor = 1 if name == "early_stopping" else 2
  want = jax.tree.map(lambda leaf: factor * leaf, params)
  chex.assert_trees_all_close(state.params, want, rtol=1e-6)
  assert eqx.combine(state.params, static)(jnp.ones(2)).shape == (3,)


@by_name
def test_before_any_update_the_parameters_are_a_copy_of_the_start(name):
  start = {"w": jnp.arange(3.0)}
  state = AVERAGES[name].init(start)
  np.testing.assert_array_equal(state.params["w"], [0, 1, 2])
  # A buffer of its own: both may be donated.
  assert state.params["w"].unsafe_buffer_pointer() != start["w"].unsafe_buffer_pointer()


@pytest.mark.parametrize("momentum", [0.99, None])
def test_batch_norm_statistics_of_nnx_are_the_means_over_the_batches(momentum):
  """`nnx.merge` shares its variables, so that a pass changes the statistics it was given in place."""
  graph, params, stats = nnx.split(nnx.BatchNorm(3, rngs=nnx.Rngs(0)), nnx.Param, nnx.BatchStat)

  def apply_fn(params, stats, x, *, key, train):
    norm = nnx.view(nnx.merge(graph, params, stats), use_running_average=not train)
    return norm(x), nnx.state(norm, nnx.BatchStat)

  batches = np.random.default_rng(0).normal(3, 2, (4, 25, 3)).astype(np.float32)
  statistics = averaging.batch_norm_statistics(apply_fn, params, stats, batches, momentum=momentum)
  np.testing.assert_allclose(statistics["mean"][...], batches.mean(axis=(0, 1)), rtol=1e-4)
  np.testing.assert_allclose(statistics["var"][...], batches.var(axis=1).mean(axis=0), rtol=1e-4)
  assert not stats["mean"][...].any()
