"""Norms of each unit's incoming weights: which axes, what is left alone, in which precision."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from contract import jit
from flax import linen as nn
from flax import nnx, traverse_util

from jaxreg import paths, penalties
from jaxreg.constraints import max_norm, min_max_norm, unit_norm


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization",
  "norm penalties as constrained optimization",
  "the norm of each column is bounded, so no unit has very large weights",
)
def test_the_axis_is_that_of_the_incoming_weights(x64):
  rng, limit = np.random.default_rng(0), 1.5
  weights = {
    tuple(name.split("/")): rng.normal(size=shape) * np.linspace(0.2, 2, shape[-1])
    for name, shape, _ in oracles.LAYOUTS
  }
  bounded = jit(functools.partial(max_norm, limit=limit))
  once = bounded(traverse_util.unflatten_dict(weights))
  got, again = (traverse_util.flatten_dict(params) for params in (once, bounded(once)))
  for (name, w), (_, shape, axes) in zip(weights.items(), oracles.LAYOUTS):
    norms = np.sqrt((w**2).sum(axes, keepdims=True))
    assert (norms > limit).any()
    np.testing.assert_allclose(got[name], w * np.minimum(1, limit / norms), rtol=1e-14)
    inside = np.broadcast_to(norms <= limit, shape)
    np.testing.assert_array_equal(got[name][inside], w[inside])  # bit for bit
    assert (np.sqrt((got[name] ** 2).sum(axes)) <= limit * (1 + 1e-6)).all()
    np.testing.assert_allclose(again[name], got[name], rtol=1e-14)


def test_a_point_inside_does_not_shrink_in_a_thousand_steps():
  """A divisor of the norm plus a small number would take 6e-7 off at each."""
  params = {"kernel": jnp.asarray(np.random.default_rng(3).normal(size=(4, 3)), jnp.float32)}
  limit = float(np.linalg.norm(params["kernel"], axis=0).max()) * 1.001
  step = lambda _, params: max_norm(params, limit=limit)
  often = jit(lambda params: jax.lax.fori_loop(0, 1000, step, params))(params)
  np.testing.assert_array_equal(often["kernel"], params["kernel"])


def test_unit_norm_and_a_unit_of_zeros(x64):
  w = np.random.default_rng(4).normal(size=(4, 3))
  w[:, 0] = 0
  got = jit(unit_norm)({"kernel": w})["kernel"]
  np.testing.assert_allclose(np.linalg.norm(got, axis=0), [0, 1, 1], rtol=1e-14)
  np.testing.assert_allclose(got[:, 1:], w[:, 1:] / np.linalg.norm(w[:, 1:], axis=0), rtol=1e-14)
  assert np.isnan(optax.projections.projection_l2_sphere(jnp.zeros(3))).all()  # the trap


def test_min_max_norm(x64):
  w = np.array([[0.0, 0.3, 3.0, 6.0], [0.0, 0.4, 4.0, 8.0]])
  run = jit(lambda w, rate: min_max_norm({"kernel": w}, low=1.0, high=7.0, rate=rate)["kernel"])
  for rate in (0.0, 0.3, 1.0):
    got = run(w, rate)
    want = [0, rate * 1 + (1 - rate) * 0.5, 5, rate * 7 + (1 - rate) * 10]
    np.testing.assert_allclose(np.linalg.norm(got, axis=0), want, rtol=1e-14)
    np.testing.assert_array_equal(got[:, 2], w[:, 2])


def test_incoming_axes_of_real_modules():
  """Each unit's norm is its module's response to its own weights, whatever the layout."""
  attention = nn.MultiHeadDotProductAttention(2)
  shapes = jax.eval_shape(attention.init, jax.random.key(0), jnp.ones((1, 3, 8)))["params"]
  axes = lambda name: paths.incoming_axes(f"{name}/kernel", shapes[name]["kernel"].ndim)
  size = lambda name: np.prod([shapes[name]["kernel"].shape[axis] for axis in axes(name)])
  assert [size(name) for name in ("query", "key", "value", "out")] == [8, 8, 8, 8]
  conv = jax.eval_shape(nn.Conv(5, (3, 3)).init, jax.random.key(0), jnp.ones((1, 4, 4, 2)))["params"]
  assert paths.incoming_axes("kernel", conv["kernel"].ndim) == (0, 1, 2)
  embed = jax.eval_shape(nn.Embed(7, 4).init, jax.random.key(0), jnp.ones((1,), jnp.int32))["params"]
  assert paths.incoming_axes("embed/embedding", embed["embedding"].ndim) == (1,)
  assert [paths.incoming_axes("layers/0/weight", ndim) for ndim in (1, 2, 4)] == [(0,), (1,), (1, 2, 3)]
  assert paths.incoming_axes("kernel", 1) == (0,)
  assert paths.incoming_axes("kernel", 0) == ()
  # A name within NNX's state.
  assert paths.incoming_axes("attention/value/kernel", 3) == (0,)
  assert paths.incoming_axes("embed/embedding", 2) == (1,)


@pytest.mark.thorough
def test_the_same_call_on_nnx_and_equinox():
  kernel = np.array([[3.0, 0.3], [4.0, 0.4]], np.float32)
  want = np.array([[1.5, 0.3], [2.0, 0.4]], np.float32)
  layer = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
  layer.kernel[...] = jnp.asarray(kernel)
  graph, state = nnx.split(layer)
  projected = nnx.merge(graph, max_norm(state, limit=2.5))
  np.testing.assert_allclose(projected.kernel[...], want, rtol=1e-6)
  equinox = eqx.tree_at(lambda m: m.weight, eqx.nn.Linear(2, 2, key=jax.random.key(0)), jnp.asarray(kernel.T))
  arrays, static = eqx.partition(equinox, eqx.is_array)
  projected = eqx.combine(max_norm(arrays, limit=2.5), static)
  np.testing.assert_allclose(projected.weight, want.T, rtol=1e-6)


@pytest.mark.parametrize(
  "layer",
  [
    lambda key: eqx.nn.Linear(3, 2, key=key),
    lambda key: eqx.nn.Conv2d(3, 4, 2, key=key),
    lambda key: eqx.nn.ConvTranspose2d(3, 4, 2, key=key),
    lambda key: eqx.nn.Embedding(5, 3, key=key),
  ],
)
def test_units_of_equinox_are_rows(layer):
  layer = layer(jax.random.key(0))
  rows = lambda layer: np.asarray(layer.weight, np.float64).reshape(layer.weight.shape[0], -1)
  norms = np.linalg.norm(rows(layer), axis=1)
  limit = np.median(norms)
  params = eqx.filter(layer, eqx.is_array)

  @jit
  def run(layer):
    projected = {
      "unit": unit_norm(layer),
      "max": max_norm(layer, limit=limit),
      "between": min_max_norm(layer, low=limit, high=limit),
    }
    return projected, penalties.group_lasso(layer, size_weighted=False), penalties.orthogonality(layer)

  got, lasso, orthogonality = run(params)
  want = {"unit": np.ones_like(norms), "max": np.minimum(norms, limit), "between": np.full_like(norms, limit)}
  for name, projected in got.items():
    np.testing.assert_allclose(np.linalg.norm(rows(projected), axis=1), want[name], rtol=1e-6)
  np.testing.assert_allclose(lasso, norms.sum(), rtol=1e-6)
  matrix = rows(layer)
  gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
  off = np.square(gram - np.eye(len(gram))).sum()
  np.testing.assert_allclose(orthogonality, off, rtol=1e-5)


def test_limits_may_be_traced():
  w = {"kernel": jnp.full((4, 2), 2.0)}
  got = jit(lambda limit: max_norm(w, limit=limit))(2.0)
  np.testing.assert_array_equal(got["kernel"], np.ones((4, 2)))
  got = jit(lambda low: min_max_norm(w, low=low, high=low + 1))(0.0)
  np.testing.assert_array_equal(got["kernel"], np.full((4, 2), 0.5))
