"""Random resized crops of ramps, colour jitter against Pillow and colorsys, TrivialAugment's magnitudes."""

import colorsys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance

from jaxreg import augment

NUMBER, HEIGHT, WIDTH = 400, 12, 16


@pytest.mark.thorough
def test_a_resized_crop_of_a_ramp_is_a_ramp_within_it():
  """Channels hold the row and the column; a crop stretches both, and its slopes tell its sides."""
  rows, columns = np.mgrid[:HEIGHT, :WIDTH]
  x = np.tile(np.stack([rows, columns], -1).astype(np.float32)[None], (NUMBER, 1, 1, 1))
  crop = jax.jit(lambda key: augment.random_resized_crop(key, {"inputs": x}, area=(0.2, 0.5))["inputs"])
  got = np.asarray(crop(jax.random.key(0)), np.float64)
  middle = got[:, 4:8, 5:11]  # at the edges the outermost pixel is repeated
  down, across = np.diff(middle[..., 0], axis=1), np.diff(middle[..., 1], axis=2)
  for slopes in (down, across):
    np.testing.assert_allclose(slopes - slopes[:, :1, :1], 0, atol=1e-4)
  sides = np.stack([down[:, 0, 0] * HEIGHT, across[:, 0, 0] * WIDTH], 1)
  area, aspect = sides.prod(1) / (HEIGHT * WIDTH), sides[:, 1] / sides[:, 0]
  assert 0.2 - 1e-3 < area.min() < 0.25 < 0.45 < area.max() < 0.5 + 1e-3
  assert 0.75 - 1e-3 < aspect.min() < 0.8 < 1.25 < aspect.max() < 4 / 3 + 1e-3
  # A uniform position has the image's centre as its mean.
  centre = (middle[:, 1:3, 2:4].mean((1, 2)) - [(HEIGHT - 1) / 2, (WIDTH - 1) / 2]) / [HEIGHT, WIDTH]
  assert (abs(centre.mean(0)) < 4 * centre.std(0) / np.sqrt(NUMBER)).all()


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "pillow"), [("brightness", "Brightness"), ("saturation", "Color")])
def test_one_change_of_colour_is_pillow_s(name, pillow):
  x = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 3)).astype(np.uint8)
  strengths = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, name: 0.5}
  key = jax.random.key(3)
  got = augment.color_jitter(jax.random.clone(key), {"inputs": x}, **strengths)["inputs"]
  drawn = np.asarray(jax.random.uniform(key, (4, 5), minval=-1, maxval=1))
  for image, out, by in zip(x, got, drawn[list(strengths).index(name)], strict=True):
    want = getattr(ImageEnhance, pillow)(Image.fromarray(image)).enhance(float(1 + 0.5 * by))
    assert abs(np.asarray(want, int) - np.asarray(out, int)).max() <= 2  # Pillow rounds the grey, and down


@pytest.mark.thorough
def test_contrast_moves_from_the_mean_grey():
  x = np.random.default_rng(0).uniform(0.4, 0.6, (4, 6, 7, 1)).astype(np.float32)
  none = {"brightness": 0.0, "saturation": 0.0}
  key = jax.random.key(1)
  got = augment.color_jitter(jax.random.clone(key), {"inputs": x}, contrast=0.9, **none)["inputs"]
  factor = 1 + 0.9 * np.asarray(jax.random.uniform(key, (4, 4), minval=-1, maxval=1))[1]
  mean = x.mean((1, 2), keepdims=True)
  np.testing.assert_allclose(got, mean + factor[:, None, None, None] * (x - mean), rtol=1e-4)
  with pytest.raises(ValueError, match="contrast must"):
    augment.color_jitter(jax.random.key(0), {"inputs": x}, contrast=1.5)


@pytest.mark.thorough
def test_hue_turns_as_colorsys_has_it():
  """Also for grey, black, white and pure colours; images of one channel stay as they are."""
  x = np.random.default_rng(0).uniform(0, 1, (6, 4, 5, 3)).astype(np.float32)
  x[:, 0] = [[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [1, 0, 0], [0, 0, 1]]
  none, key = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0}, jax.random.key(4)
  turns = 0.5 * np.asarray(jax.random.uniform(key, (4, 6), minval=-1, maxval=1))[3]
  jitter = jax.jit(lambda x: augment.color_jitter(jax.random.clone(key), {"inputs": x}, hue=0.5, **none))
  got = np.asarray(jitter(x)["inputs"])
  for image, out, turn in zip(x, got, turns, strict=True):
    for pixel, changed in zip(image.reshape(-1, 3), out.reshape(-1, 3), strict=True):
      h, s, v = colorsys.rgb_to_hsv(*pixel.astype(float))
      np.testing.assert_allclose(changed, colorsys.hsv_to_rgb((h + turn) % 1, s, v), atol=2e-6)
  assert abs(turns).max() > 0.3
  assert abs(got - x).max() > 0.3
  np.testing.assert_allclose(jitter(x[..., :1])["inputs"], x[..., :1], atol=1e-6)
  with pytest.raises(ValueError, match="hue must lie in"):
    augment.color_jitter(jax.random.key(0), {"inputs": x}, hue=0.6)


@pytest.mark.thorough
def test_trivial_augment_draws_a_magnitude_for_each_image():
  """`solarize` inverts the values above a threshold, which falls with the magnitude."""
  x = jnp.broadcast_to(jnp.linspace(0, 1, 101)[None, None, :, None], (2000, 1, 101, 1))
  out = jax.jit(lambda key: augment.trivial_augment(key, {"inputs": x}, operations=["solarize"])["inputs"])
  inverted = np.asarray((out(jax.random.key(0)) != x).mean((1, 2, 3)))
  # The share of inverted values is about the magnitude over 10, which is uniform.
  quartiles = np.quantile(inverted, [0.25, 0.5, 0.75])
  np.testing.assert_allclose(quartiles, [0.25, 0.5, 0.75], atol=4 * 0.5 / np.sqrt(2000) + 0.02)
