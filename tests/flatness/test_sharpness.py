"""Sharpness of quadratics in closed form and by enumeration, and the plane of a trajectory against NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import flatness


@pytest.fixture(autouse=True)
def _x64():
  with jax.enable_x64(True):
    yield


ROOT = np.random.default_rng(0).normal(size=(5, 5))
MATRIX, POINT = ROOT @ ROOT.T, np.random.default_rng(1).normal(size=5)


def loss(params, batch, *, key):
  return 0.5 * params["w"] @ (batch @ params["w"]) + params["still"].sum()


PARAMS = {"still": np.ones(2), "w": POINT}


def test_sam_sharpness_of_a_quadratic():
  """rho |g| + rho^2 g' H g / 2 |g|^2, and 0 at the minimum."""
  g = MATRIX @ POINT
  expected = 0.3 * np.linalg.norm(g) + 0.5 * 0.09 * g @ MATRIX @ g / (g @ g)
  found = flatness.sam_sharpness(loss, PARAMS, jnp.asarray(MATRIX), rho=0.3, mask="w")
  assert float(found) == pytest.approx(expected, rel=1e-12)
  at_minimum = {**PARAMS, "w": jnp.zeros(5)}
  assert float(flatness.sam_sharpness(loss, at_minimum, jnp.asarray(MATRIX), rho=0.3, mask="w")) == 0


def test_keskar_sharpness_is_that_of_the_best_corner():
  """A convex function is largest in a corner of the box: all 32 are tried."""
  eps = 0.2
  value = lambda w: 0.5 * w @ MATRIX @ w + 2
  corners = [
    value(POINT + eps * (np.abs(POINT) + 1) * np.array(c)) for c in itertools.product((-1, 1), repeat=5)
  ]
  expected = 100 * (max(corners) - value(POINT)) / (1 + value(POINT))
  found = flatness.keskar_sharpness(
    loss, PARAMS, jnp.asarray(MATRIX), key=jax.random.key(0), eps=eps, mask="w", num_starts=8
  )
  assert float(found) == pytest.approx(expected, rel=1e-9)


def test_trajectory_plane_is_numpy_s():
  """Right singular vectors of the centred points; a surface in them has the losses of the path."""
  path = np.random.default_rng(2).normal(size=(6, 5)) * np.array([5, 1, 3, 0.1, 0.1])
  points = [{"still": jnp.ones(2), "w": jnp.asarray(row)} for row in path]
  plane = flatness.trajectory_plane(points, mask="w")
  _, values, rows = np.linalg.svd(path - path.mean(axis=0))
  found = np.stack([direction["w"] for direction in plane.directions])
  np.testing.assert_allclose(np.abs(np.sum(found * rows[:2], axis=1)), 1, rtol=1e-12)
  np.testing.assert_allclose(plane.explained, values[:2] ** 2 / (values**2).sum(), rtol=1e-12)
  np.testing.assert_allclose(plane.coordinates, (path - path[-1]) @ found.T, atol=1e-12)
  assert not plane.directions[0]["still"].any()
  np.testing.assert_array_equal(
    flatness.trajectory_plane(iter(points), mask="w").coordinates, plane.coordinates
  )
  for few, message in (
    (points[:2], "at least three trees"),
    ([jnp.ones(1)] * 3, "at least two parameters"),
    ([jnp.ones(2)] * 3, "points must be finite and differ"),
    ([jnp.ones(2), jnp.zeros(2), jnp.ones(3)], "another structure or shape at index 2"),
  ):
    with pytest.raises(ValueError, match=message):
      flatness.trajectory_plane(few)


def test_bad_arguments():
  key = jax.random.key(0)
  for message, call in (
    ("rho must", lambda: flatness.sam_sharpness(loss, PARAMS, MATRIX, rho=0.0)),
    ("eps must", lambda: flatness.keskar_sharpness(loss, PARAMS, MATRIX, key=key, eps=0.0)),
    (
      "num_steps must be at least 1",
      lambda: flatness.keskar_sharpness(loss, PARAMS, MATRIX, key=key, num_steps=0),
    ),
  ):
    with pytest.raises(ValueError, match=message):
      call()
