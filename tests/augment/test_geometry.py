"""Rotations, scalings and holes: against rot90, linear ramps and NumPy loops over the examples."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg import augment
from jaxreg.augment._moved import warped
from jaxreg.augment._rotate import rotations

SOURCE = "regularization"


def key(seed=0):
  return jax.random.key(seed)


def batch(dtype=np.uint8, number=8):
  pixels = np.random.default_rng(0).integers(1, 256, (number, 7, 7, 2))
  return {"inputs": jnp.asarray(pixels, dtype), "labels": jnp.arange(number)}


def test_a_quarter_turn_is_rot90():
  turn = jit(lambda x, degrees: warped(x, rotations(degrees), fill=0))
  x = batch()["inputs"]
  got = np.asarray(turn(x, jnp.array([0.0, 90.0, 180.0, -90.0] * 2)))
  for i, image in enumerate(np.asarray(x)):
    np.testing.assert_array_equal(got[i], np.rot90(image, i % 4))


@pytest.mark.claim(SOURCE, "dataset augmentation", "new data by rotating the image or scaling the image")
def test_a_ramp_is_turned_and_scaled_about_its_middle():
  """Bilinear sampling of a linear function is exact: the value is that of the point that came there."""
  rows, columns = np.mgrid[:9, :9] - 4.0
  x = jnp.asarray(np.tile((2 * rows - columns)[None, ..., None], (8, 1, 1, 1)), jnp.float32)
  middle = np.hypot(rows, columns) < 3  # nothing comes there from outside

  def both(x):
    turned = augment.rotate(key(1), {"inputs": x}, max_degrees=40.0)["inputs"]
    return turned, augment.scale(key(1), {"inputs": x}, max_factor=1.3)["inputs"]

  turned, scaled = (np.asarray(x)[..., 0][:, middle] for x in jit(both)(x))
  draw = np.asarray(jax.random.uniform(key(1), (8,), minval=-1), np.float64)[:, None]
  angle, r, c = np.deg2rad(40 * draw), rows[middle], columns[middle]
  # Counterclockwise in a plane whose rows go down.
  source = np.cos(angle) * r + np.sin(angle) * c, np.cos(angle) * c - np.sin(angle) * r
  np.testing.assert_allclose(turned, 2 * source[0] - source[1], atol=1e-4)
  np.testing.assert_allclose(scaled, (2 * r - c) / 1.3**draw, atol=1e-4)


def test_cutout_is_a_square_around_a_pixel_cut_at_the_edge():
  x = batch()["inputs"]
  got = np.asarray(jit(lambda b: augment.cutout(key(), b, size=3, fill=7))({"inputs": x})["inputs"])
  row, column = np.asarray(jax.random.uniform(key(), (2, 8)), np.float64) * 7
  for image, want, r, c in zip(got, np.array(x), row.astype(int), column.astype(int), strict=True):
    want[max(r - 1, 0) : r + 2, max(c - 1, 0) : c + 2] = 7
    np.testing.assert_array_equal(image, want)


def test_random_erasing_takes_its_area_inside_the_image_at_its_rate():
  x, area = jnp.ones((4000, 20, 20, 1), jnp.uint8), (0.1, 0.3)
  erase = jit(lambda x: augment.random_erasing(key(2), {"inputs": x}, rate=0.3, area=area)["inputs"])
  holes = 1 - np.asarray(erase(x))[..., 0]
  sizes = holes.sum((1, 2))
  assert abs((sizes > 0).mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 4000)
  holes, sizes = holes[sizes > 0], sizes[sizes > 0]
  heights, widths = holes.any(2).sum(1), holes.any(1).sum(1)
  np.testing.assert_array_equal(sizes, heights * widths)  # whole boxes, none cut off
  assert abs(sizes.mean() / 400 - 0.2) < 0.01
  assert abs(np.log(heights / widths).mean()) < 0.1  # as often high as wide
  assert (heights / widths).max() > 2.5
  assert (heights / widths).max() < 4.5  # 1 / 0.3, up to whole pixels
  assert holes.any(0).all()  # everywhere in the image


FILLED = {
  "cutout": {"size": 4},
  "random_erasing": {"rate": 1.0},
  "rotate": {"max_degrees": 45.0},
  "scale": {"max_factor": 2.0},
  "translate": {},
  "pad_crop": {},
  "rand_augment": {"operations": ("translate_x", "rotate"), "value_range": (0.0, 9.0)},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", FILLED)
def test_fill_is_what_comes_in(name):
  """Of an image of fives, and nothing else does: no border of zeros."""
  x = jnp.full((32, 9, 9, 1), 5.0)
  run = lambda key: getattr(augment, name)(key, {"inputs": x}, fill=9.0, **FILLED[name])["inputs"]
  got = np.asarray(jit(run)(key(1)))
  np.testing.assert_allclose([got.min(), got.max()], [5, 9], rtol=1e-5)


OTHERS = {
  "flip": {},
  "normalize": {"mean": jnp.arange(3.0), "std": jnp.arange(1.0, 4.0)},
  "lighting": {"value_range": (0.0, 9.0)},
  "cutmix": {"num_classes": 4},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*FILLED, *OTHERS])
def test_channels_first_are_channels_last_moved(name):
  """No two axes of one length; in range of the photometric operations."""
  x = jnp.asarray(np.random.default_rng(0).uniform(0, 9, (4, 6, 7, 3)), jnp.float32)
  run = functools.partial(getattr(augment, name), **{**FILLED, **OTHERS}[name])

  def both(key, x):
    batch = {"inputs": x, "labels": jnp.arange(4)}
    last = run(key, batch)["inputs"]
    first = run(jax.random.clone(key), {**batch, "inputs": jnp.moveaxis(x, -1, 1)}, channel_axis=1)["inputs"]
    return last, first

  last, first = jit(both)(key(2), x)
  assert first.shape == (4, 3, 6, 7)
  np.testing.assert_allclose(np.moveaxis(first, 1, -1), last, rtol=1e-6)
  assert (last != x).any()
  with pytest.raises(ValueError, match="channel_axis must be one of the axes -3, -2, -1, 1, 2, 3, got 0"):
    run(key(), {"inputs": x, "labels": jnp.arange(4)}, channel_axis=0)


@pytest.mark.thorough
def test_no_magnitude_is_the_identity_and_dtypes_stay():
  def still(b):
    return [
      augment.rotate(key(), b, max_degrees=0.0),
      augment.scale(key(), b, max_factor=1.0),
      augment.cutout(key(), b, size=0),
      augment.random_erasing(key(), b, rate=0.0),
    ]

  for out in jit(still)(batch()):
    chex.assert_trees_all_equal(out, batch())
  narrow = jax.eval_shape(still, batch(jnp.bfloat16))
  assert {out["inputs"].dtype for out in narrow} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize(
  ("function", "options", "name"),
  [
    (augment.rotate, {"max_degrees": 181.0}, "max_degrees"),
    (augment.scale, {"max_factor": 0.5}, "max_factor"),
    (augment.cutout, {"size": -1}, "size"),
    (augment.random_erasing, {"rate": 1.5}, "rate"),
    (augment.random_erasing, {"area": (0.5, 0.2)}, "area"),
    (augment.random_erasing, {"max_aspect": 0.5}, "max_aspect"),
  ],
)
def test_refusals(function, options, name):
  with pytest.raises(ValueError, match=name):
    function(key(), batch(), **options)
  with pytest.raises(ValueError, match="inputs must be images"):
    function(key(), {"inputs": jnp.zeros((2, 3))})
  with pytest.raises(TypeError, match="key must be a typed key"):
    function(0, batch())
