"""Directions, profiles and surfaces of the loss, and the plane of a trajectory."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest

from jaxreg import flatness

PARAMS = {
  "conv": {"kernel": jnp.arange(1.0, 55.0).reshape(3, 3, 2, 3), "bias": jnp.ones(3)},
  "dense": {"kernel": jnp.arange(1.0, 9.0).reshape(2, 4)},
}


def _norm(x, axis=None):
  return np.sqrt((np.asarray(x) ** 2).sum(axis))


@pytest.mark.thorough
@pytest.mark.claim(
  "flatness", "section 5", "each filter of the direction has the norm of the parameters' filter"
)
def test_filters_have_the_norm_of_the_parameters():
  layer = flatness.filter_normalized_direction(jax.random.key(0), PARAMS)
  for name in ("conv", "dense"):
    np.testing.assert_allclose(_norm(layer[name]["kernel"]), _norm(PARAMS[name]["kernel"]), rtol=1e-6)
  one = flatness.filter_normalized_direction(jax.random.key(0), PARAMS, granularity="filter")
  np.testing.assert_allclose(
    _norm(one["conv"]["kernel"], (0, 1, 2)), _norm(PARAMS["conv"]["kernel"], (0, 1, 2)), rtol=1e-6
  )
  np.testing.assert_allclose(_norm(one["dense"]["kernel"], 0), _norm(PARAMS["dense"]["kernel"], 0), rtol=1e-6)
  first = flatness.filter_normalized_direction(jax.random.key(0), PARAMS, granularity="filter", filter_axis=0)
  np.testing.assert_allclose(
    _norm(first["dense"]["kernel"], 1), _norm(PARAMS["dense"]["kernel"], 1), rtol=1e-6
  )


@pytest.mark.thorough
def test_filters_of_other_layouts():
  """By the name of the leaf: rows of a `weight` as in Equinox and PyTorch, vectors of an embedding."""
  shapes = {"conv": {"weight": (3, 3, 3, 3)}, "dense": {"weight": (4, 4)}, "embed": {"embedding": (4, 4)}}
  params = jax.tree.map(jnp.ones, shapes, is_leaf=lambda x: isinstance(x, tuple))
  scale = lambda x: x * jnp.arange(1.0, len(x) + 1).reshape(-1, *[1] * (x.ndim - 1))
  params = jax.tree.map(scale, params)
  got = flatness.filter_normalized_direction(jax.random.key(0), params, granularity="filter")
  for x, direction in zip(jax.tree.leaves(params), jax.tree.leaves(got), strict=True):
    axes = tuple(range(1, x.ndim))
    np.testing.assert_allclose(_norm(direction, axes), _norm(x, axes), rtol=1e-5)


@pytest.mark.thorough
def test_biases_stay_or_move():
  still = flatness.filter_normalized_direction(jax.random.key(0), PARAMS)
  np.testing.assert_array_equal(still["conv"]["bias"], 0)
  moved = flatness.filter_normalized_direction(jax.random.key(0), PARAMS, one_dim="keep")
  np.testing.assert_allclose(_norm(moved["conv"]["bias"]), _norm(PARAMS["conv"]["bias"]), rtol=1e-6)
  assert np.asarray(moved["conv"]["bias"]).std() > 0, "a direction of its own, not the weights"


@pytest.mark.thorough
def test_biases_of_attention_heads_are_biases():
  """`[heads, size]` as in Flax, whose kernels `[features, heads, size]` have the inputs on the first axis."""
  params = {"query": {"kernel": jnp.arange(1.0, 25).reshape(4, 2, 3), "bias": jnp.ones((2, 3))}}
  got = flatness.filter_normalized_direction(jax.random.key(0), params, granularity="filter")["query"]
  np.testing.assert_array_equal(got["bias"], 0)
  np.testing.assert_allclose(_norm(got["kernel"], 0), _norm(params["query"]["kernel"], 0), rtol=1e-5)
  moved = flatness.filter_normalized_direction(
    jax.random.key(0), params, granularity="filter", one_dim="keep"
  )
  np.testing.assert_allclose(_norm(moved["query"]["bias"]), np.sqrt(6), rtol=1e-5)


@pytest.mark.thorough
def test_norms_above_the_range_of_the_leaf():
  """The square of a norm of 9000 overflows float16."""
  kernel = jnp.full((30, 30), 300, np.float16)
  got = flatness.filter_normalized_direction(jax.random.key(0), {"kernel": kernel})["kernel"]
  assert got.dtype == np.float16
  np.testing.assert_allclose(_norm(got.astype(np.float32)), 9000, rtol=1e-3)


def test_norms_whose_squares_underflow():
  got = flatness.filter_normalized_direction(jax.random.key(0), {"kernel": jnp.full((3, 3), 1e-25)})["kernel"]
  np.testing.assert_allclose(_norm(1e25 * got), 3, rtol=1e-5)


def test_mask_and_keys():
  part = flatness.filter_normalized_direction(jax.random.key(0), PARAMS, mask="dense/*")
  np.testing.assert_array_equal(part["conv"]["kernel"], 0)
  other = flatness.filter_normalized_direction(jax.random.key(1), PARAMS, mask="dense/*")
  assert not np.allclose(part["dense"]["kernel"], other["dense"]["kernel"])


@pytest.mark.thorough
@pytest.mark.claim("flatness", "section 5", "the profile is the loss at params + alpha direction")
def test_profile_and_surface_of_a_quadratic():
  loss = lambda params, batch, *, key: 0.5 * batch * (params["w"] ** 2).sum()
  params, ones = {"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([1.0, 0.0])}
  other = {"w": jnp.array([0.0, 1.0])}
  alphas = jnp.linspace(-1, 1, 5)
  profile = flatness.loss_profile(loss, params, ones, alphas, jnp.float32(3), chunk_size=2)
  np.testing.assert_allclose(profile, 1.5 * ((1 + alphas) ** 2 + 4), rtol=1e-6)
  surface = flatness.loss_surface(loss, params, (ones, other), alphas, alphas[:3], jnp.float32(3))
  expected = 1.5 * ((1 + alphas[:, None]) ** 2 + (2 + alphas[None, :3]) ** 2)
  np.testing.assert_allclose(surface, expected, rtol=1e-6)


@pytest.mark.thorough
def test_bad_arguments():
  with pytest.raises(ValueError, match="granularity must be one of layer, filter, got 'row'"):
    flatness.filter_normalized_direction(jax.random.key(0), PARAMS, granularity="row")
  with pytest.raises(ValueError, match=r"filter_axis must be an axis of every kernel, got 3 for \(2, 4\)"):
    flatness.filter_normalized_direction(jax.random.key(0), PARAMS, granularity="filter", filter_axis=3)
  with pytest.raises(ValueError, match=r"mask: 'Dense/\*' selects no parameter; there are conv/bias"):
    flatness.filter_normalized_direction(jax.random.key(0), PARAMS, mask="Dense/*")
  params = nets.make_params(dtype=np.float32)
  direction = params | {"Dense_1": {**params["Dense_1"], "bias": jnp.zeros(9)}}
  with pytest.raises(
    ValueError, match=r"direction must be shaped like params: Dense_1/bias must have \(4,\), got \(9,\)"
  ):
    flatness.loss_profile(nets.loss_fn, params, direction, jnp.zeros(2), nets.make_batch(dtype=np.float32))
  with pytest.raises(ValueError, match=r"the one leaf must have \(2,\), got nothing"):
    flatness.loss_profile(nets.loss_fn, jnp.ones(2), params, jnp.zeros(2), None)
  flat = flatness.subset(params).flat
  for run in (
    lambda: flatness.loss_profile(nets.loss_fn, params, flat, jnp.zeros(2), None),
    lambda: flatness.loss_surface(nets.loss_fn, params, (flat, flat), jnp.zeros(2), jnp.zeros(2), None),
  ):
    with pytest.raises(TypeError, match=rf"got an array of shape \({flat.size},\).*merge"):
      run()
  with pytest.raises(TypeError, match="directions must be two trees like params, got one dict"):
    flatness.loss_surface(nets.loss_fn, params, params, jnp.zeros(2), jnp.zeros(2), None)
  with pytest.raises(ValueError, match=r"alphas must be \[points\], got \(\)"):
    flatness.loss_profile(nets.loss_fn, params, params, 0.5, None)
  with pytest.raises(ValueError, match=r"betas must be \[points\], got \(2, 2\)"):
    flatness.loss_surface(nets.loss_fn, params, (params, params), jnp.ones(2), jnp.ones((2, 2)), None)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
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
    ([jnp.ones(2), jnp.zeros(2), jnp.ones(3)], "one structure and shapes, got a different tree at index 2"),
  ):
    with pytest.raises(ValueError, match=message):
      flatness.trajectory_plane(few)
