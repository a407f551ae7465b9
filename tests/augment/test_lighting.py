"""Colour noise along the principal components of ImageNet's colours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import augment
from jaxreg.augment._lighting import EIGENVALUES, EIGENVECTORS


def test_the_components_are_orthonormal():
  vectors = np.array(EIGENVECTORS)
  np.testing.assert_allclose(vectors.T @ vectors, np.eye(3), atol=1e-3)
  assert list(EIGENVALUES) == sorted(EIGENVALUES, reverse=True)


@pytest.mark.thorough
@pytest.mark.parametrize(("dtype", "middle", "unit"), [(np.uint8, 127, 255.0), (np.float32, 0.5, 1.0)])
def test_one_colour_for_all_pixels_of_an_image(dtype, middle, unit):
  x = np.full((400, 2, 3, 3), middle, dtype)
  batch = {"inputs": jnp.asarray(x), "labels": jnp.arange(400)}
  moved = augment.lighting(jax.random.key(0), batch)
  assert moved["inputs"].dtype == dtype
  np.testing.assert_array_equal(moved["labels"], np.arange(400))
  shift = (np.asarray(moved["inputs"], np.float64) - middle) / unit
  np.testing.assert_array_equal(shift, np.broadcast_to(shift[:, :1, :1], shift.shape))
  # In the basis of the components each coordinate is normal by itself, of 0.1 times its eigenvalue.
  coordinates = shift[:, 0, 0] @ np.array(EIGENVECTORS)
  rounding = 0.3 / unit if dtype is np.uint8 else 0
  for j, eigenvalue in enumerate(EIGENVALUES):
    std = np.hypot(0.1 * eigenvalue, rounding)
    assert abs(coordinates[:, j].std() - std) < 5 * std / np.sqrt(2 * 400)
    assert abs(coordinates[:, j].mean()) < 4 * std / np.sqrt(400)


@pytest.mark.thorough
def test_values_stay_in_their_range():
  x = jnp.concatenate([jnp.zeros((50, 1, 1, 3)), jnp.ones((50, 1, 1, 3))])
  moved = augment.lighting(jax.random.key(1), {"inputs": x}, std=5.0)["inputs"]
  assert moved.min() == 0
  assert moved.max() == 1


def test_float64_keeps_its_digits():
  with jax.enable_x64(True):
    x = np.random.default_rng(0).uniform(size=(2, 2, 2, 3))
    moved = augment.lighting(jax.random.key(0), {"inputs": jnp.asarray(x)}, std=0.0)["inputs"]
  np.testing.assert_array_equal(moved, x)


def test_misfits():
  with pytest.raises(ValueError, match="three channels"):
    augment.lighting(jax.random.key(0), {"inputs": jnp.zeros((1, 2, 2, 1))})
  with pytest.raises(TypeError, match="uint8 or floating"):
    augment.lighting(jax.random.key(0), {"inputs": jnp.zeros((1, 2, 2, 3), int)})
  with pytest.raises(ValueError, match="std"):
    augment.lighting(jax.random.key(0), {"inputs": jnp.zeros((1, 2, 2, 3))}, std=-1.0)
