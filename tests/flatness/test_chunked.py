"""`chunked`: the mean over chunks, its derivatives and its memory."""

import functools

import chex
import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg import flatness


def _gradient_and_hessian(loss):
  run = lambda p, batch: (
    jax.grad(loss)(p, batch, key=None),
    flatness.hessian(loss, p, batch, mask="Dense_2/*"),
  )
  return jax.jit(run)(nets.make_params(), nets.make_batch())


@functools.cache
def _whole():
  return _gradient_and_hessian(nets.loss_fn)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [7, *(pytest.param(size, marks=pytest.mark.thorough) for size in (10, 64))])
def test_value_gradient_and_hessian_are_those_of_the_whole(size):
  """Sizes that divide 40 and that do not, and one above it."""
  with jax.enable_x64(True):
    params, batch = nets.make_params(), nets.make_batch()
    loss = flatness.chunked(nets.loss_fn, size)
    np.testing.assert_allclose(
      loss(params, batch, key=None), nets.loss_fn(params, batch, key=None), rtol=1e-13
    )
    chex.assert_trees_all_close(_gradient_and_hessian(loss), _whole(), rtol=1e-7, atol=1e-13)


@pytest.mark.thorough
def test_every_example_counts_once():
  loss = flatness.chunked(lambda params, batch, *, key: (params * batch).mean(), 4)
  weights = jax.grad(lambda x: loss(jnp.float32(1), x, key=None))(jnp.zeros(11))
  np.testing.assert_allclose(weights, np.full(11, 1 / 11), rtol=1e-6)


def test_chunks_are_dealt_out():
  """So that each device that has consecutive examples takes part in each chunk: 0 and 3, 1 and 4, 2 and 5."""
  extent = flatness.chunked(lambda params, batch, *, key: batch.max() - batch.min(), 2)
  assert float(extent(None, jnp.arange(6.0), key=None)) == 3
  assert float(extent(None, jnp.arange(7.0), key=None)) == pytest.approx(3 * 6 / 7)


@pytest.mark.thorough
def test_chunks_draw_different_noise():
  noise = lambda params, batch, *, key: params * jax.random.normal(key) + 0 * batch.mean()
  loss = flatness.chunked(noise, 2)
  values = [
    float(flatness.chunked(noise, size)(jnp.float32(1), jnp.zeros(6), key=jax.random.key(0)))
    for size in (2, 6)
  ]
  draws = [float(jax.random.normal(jax.random.fold_in(jax.random.key(0), c))) for c in range(3)]
  assert values[1] == pytest.approx(draws[0])
  assert values[0] == pytest.approx(np.mean(draws))
  # Two whole chunks and one example.
  rest = float(loss(jnp.float32(1), jnp.zeros(5), key=jax.random.key(0)))
  assert rest == pytest.approx(np.dot(draws, [0.4, 0.4, 0.2]))
  assert loss is flatness.chunked(noise, 2), "equal losses must be one, or everything compiles again"


@pytest.mark.parametrize("examples", [pytest.param(20_000, marks=pytest.mark.thorough), 20_050])
def test_memory_is_that_of_a_chunk(examples):
  """The second derivative of a wide layer over many examples; the data, 0.8 MB, are not copied either."""

  def wide(params, batch, *, key):
    del key
    return (jnp.tanh(batch @ params) ** 2).mean()

  params, batch = jnp.ones((10, 50)), jnp.ones((examples, 10))
  needs = [
    jax.jit(lambda p, x, fn=fn: jax.grad(lambda p: fn(p, x, key=None))(p))
    .lower(params, batch)
    .compile()
    .memory_analysis()
    .temp_size_in_bytes
    for fn in (wide, flatness.chunked(wide, 100))
  ]
  assert needs[0] >= examples * 50 * 4
  assert needs[1] < 2e5


@pytest.mark.thorough
def test_sharded_data_give_the_same():
  with jax.enable_x64(True):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    params, batch = nets.make_params(), nets.make_batch()
    there = jax.device_put(batch, NamedSharding(mesh, P("data")))
    for fn in (nets.loss_fn, flatness.chunked(nets.loss_fn, 16)):
      found = [flatness.hessian(fn, params, data, mask="Dense_1/bias") for data in (batch, there)]
      np.testing.assert_allclose(*found, atol=1e-12)


def test_bad_arguments():
  with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
    flatness.chunked(nets.loss_fn, 0)
  loss = flatness.chunked(lambda params, batch, *, key: params, 2)
  with pytest.raises(ValueError, match="batch: its leaves must share a leading axis"):
    loss(jnp.float32(0), {"x": jnp.zeros(3), "y": jnp.zeros(4)}, key=None)
  with pytest.raises(ValueError, match=r"leading axis of examples, got shapes \[\(0, 2\)\]"):
    loss(jnp.float32(0), jnp.zeros((0, 2)), key=None)
