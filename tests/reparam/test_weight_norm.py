"""Weight normalisation: lengths and directions apart, per unit, and its gradient."""

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg import paths, reparam

weight_norm = jit(reparam.weight_norm, static_argnames="axis")
weight_norm_init = jit(reparam.weight_norm_init, static_argnames="axis")


@pytest.mark.thorough
def test_units_of_an_equinox_model_are_rows():
  """Square layers, whose shapes fit either way; biases stay in the rest of the model."""
  model = eqx.nn.Sequential(
    [eqx.nn.Linear(3, 3, key=jax.random.key(0)), eqx.nn.Conv2d(2, 2, 2, key=jax.random.key(1))]
  )
  kernels, _ = eqx.partition(model, paths.kernels_only(model))
  g = weight_norm_init(kernels)
  chex.assert_trees_all_close(weight_norm(kernels, g), kernels, rtol=1e-5)
  new = weight_norm(kernels, jax.tree.map(lambda g: jnp.arange(1.0, g.size + 1), g))
  for layer, lengths in zip(new.layers, g.layers, strict=True):
    rows = np.asarray(layer.weight, np.float64).reshape(len(layer.weight), -1)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), np.arange(1, len(rows) + 1), rtol=1e-5)
    assert lengths.weight.shape == rows.shape[:1]
  # Of an array alone the axis can be given.
  weight = model.layers[1].weight
  one = weight_norm(weight, jnp.array([1.0, 2.0]), axis=(1, 2, 3))
  np.testing.assert_allclose(one, new.layers[1].weight, rtol=1e-6)
  np.testing.assert_allclose(weight_norm_init(weight, axis=(1, 2, 3)), g.layers[1].weight, rtol=1e-6)


@pytest.mark.thorough
def test_a_layer_without_inputs_or_units():
  for shape in ((0, 3), (3, 0)):
    v = jnp.zeros(shape)
    assert weight_norm(v, weight_norm_init(v)).shape == shape


@pytest.mark.thorough
def test_scale_of_v_does_not_matter_and_its_gradient_is_orthogonal_to_it():
  """As in the paper: d / d v = g / |v| (I - v v^T / |v|^2) d / d w."""
  v, g = jax.random.normal(jax.random.key(0), (6, 3)), jnp.array([1.0, 2.0, 3.0])
  np.testing.assert_allclose(weight_norm(7 * v, g), weight_norm(v, g), rtol=1e-5)
  weights = jax.random.normal(jax.random.key(1), (6, 3))
  by_v, by_g = jit(jax.grad(lambda v, g: (weights * weight_norm(v, g)).sum(), (0, 1)))(v, g)
  np.testing.assert_allclose((by_v * v).sum(0), 0, atol=1e-5)
  u = np.asarray(v / jnp.linalg.norm(v, axis=0, keepdims=True), np.float64)
  w = np.asarray(weights, np.float64)
  np.testing.assert_allclose(by_g, (w * u).sum(0), rtol=1e-4, atol=1e-5)
  want = np.asarray(g) / np.linalg.norm(v, axis=0) * (w - u * (u * w).sum(0))
  np.testing.assert_allclose(by_v, want, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_a_dead_unit_has_no_weights_and_finite_gradients():
  v = jnp.zeros((3, 2)).at[:, 0].set(1.0)
  loss = lambda v, g: weight_norm(v, g).sum() + weight_norm_init(v).sum()
  gradients = jit(jax.grad(loss, (0, 1)))(v, jnp.ones(2))
  assert all(np.isfinite(x).all() for x in gradients)
  np.testing.assert_array_equal(weight_norm(v, jnp.ones(2))[:, 1], 0)


def test_a_unit_of_nan_is_all_nan():
  v = jnp.ones((3, 2)).at[1, 0].set(jnp.nan)
  np.testing.assert_array_equal(np.isnan(weight_norm(v, jnp.ones(2))), [[True, False]] * 3)


@pytest.mark.thorough
def test_any_scale():
  for scale in (1e-30, 1e30):
    v = scale * jax.random.normal(jax.random.key(0), (4, 3))
    kernel = np.asarray(weight_norm(v, jnp.full(3, 2.0)), np.float64)
    np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 2, rtol=1e-5)
    np.testing.assert_allclose(
      weight_norm_init(v), np.linalg.norm(np.asarray(v, np.float64), axis=0), rtol=1e-5
    )
    assert np.isfinite(jit(jax.grad(lambda v: weight_norm(v, jnp.ones(3)).sum()))(v)).all()
