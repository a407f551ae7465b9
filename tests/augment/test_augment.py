"""Augmentations against NumPy loops over the examples, their statistics, and under every transformation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import augment

STOCHASTIC = {
  "flip": augment.flip,
  "translate": lambda key, batch: augment.translate(key, batch, max_shift=3),
  "pad_crop": augment.pad_crop,
}


def key(seed=0):
  return jax.random.key(seed)


def batch(number=16, dtype=np.uint8, seed=0):
  rng = np.random.default_rng(seed)
  pixels = rng.integers(1, 256, (number, 8, 10, 3))
  return {"inputs": jnp.asarray(pixels, dtype), "labels": jnp.arange(number)}


@pytest.mark.thorough
def test_flip_mirrors_every_image_at_rate_one_and_none_at_zero():
  b = batch()
  x = np.asarray(b["inputs"])
  np.testing.assert_array_equal(augment.flip(key(), b, rate=1.0)["inputs"], x[:, :, ::-1])
  np.testing.assert_array_equal(augment.flip(key(), b, rate=0.0)["inputs"], x)


@pytest.mark.thorough
def test_flip_flips_whole_images_at_its_rate():
  x = jnp.tile(jnp.arange(2.0)[None, None, :, None], (4000, 1, 1, 1))
  flipped = np.asarray(augment.flip(key(3), {"inputs": x}, rate=0.3)["inputs"])
  chosen = flipped[:, 0, 0, 0] == 1
  np.testing.assert_array_equal(flipped[:, 0, 1, 0], np.where(chosen, 0, 1))
  assert abs(chosen.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 4000)


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization",
  "dataset augmentation",
  "new data by translating the images a few pixels in each direction",
  size="enumeration",
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_translate_is_one_of_all_shifts_with_the_fill_outside(dtype):
  b, shift = batch(dtype=dtype), 2
  x = np.asarray(b["inputs"])
  moved = np.asarray(augment.translate(key(), b, max_shift=shift, fill=7)["inputs"])
  assert moved.dtype == dtype
  padded = np.pad(x, ((0, 0), (shift, shift), (shift, shift), (0, 0)), constant_values=7)
  found = []
  for i in range(len(x)):
    windows = {
      (a, c): padded[i, a : a + 8, c : c + 10] for a in range(2 * shift + 1) for c in range(2 * shift + 1)
    }
    same = [at for at, window in windows.items() if np.array_equal(window, moved[i])]
    assert len(same) == 1
    found.append(same[0])
  assert len(set(found)) > 5


@pytest.mark.thorough
def test_translate_draws_every_shift_equally_often():
  x = jnp.zeros((9000, 5, 5, 1)).at[:, 2, 2].set(1.0)
  moved = np.asarray(augment.translate(key(5), {"inputs": x}, max_shift=1)["inputs"])[..., 0]
  counts = moved.sum(axis=0)[1:4, 1:4]
  assert counts.sum() == 9000
  assert np.abs(counts - 1000).max() < 4 * np.sqrt(9000 * 1 / 9 * 8 / 9)


@pytest.mark.thorough
def test_pad_crop_is_a_translation_by_the_padding():
  b = batch()
  np.testing.assert_array_equal(
    augment.pad_crop(key(1), b, padding=3)["inputs"], augment.translate(key(1), b, max_shift=3)["inputs"]
  )


@pytest.mark.thorough
def test_normalize_standardises_channels():
  b = batch(dtype=np.float32)
  x = np.asarray(b["inputs"], np.float64)
  mean, std = x.mean(axis=(0, 1, 2)), x.std(axis=(0, 1, 2))
  got = np.asarray(augment.normalize(None, b, mean=mean, std=std)["inputs"])
  np.testing.assert_allclose(got, (x - mean) / std, rtol=1e-5, atol=1e-5)
  narrow = {"inputs": jnp.ones((1, 1, 1, 3), jnp.bfloat16)}
  got = augment.normalize(None, narrow, mean=0.9, std=0.1)["inputs"]
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(got, 1)  # 0.9 rounded to bfloat16 would give 1.016
  with pytest.raises(TypeError, match="inputs must be floating, got uint8"):
    augment.normalize(None, batch(), mean=0.0, std=1.0)


@pytest.mark.parametrize("name", STOCHASTIC)
def test_bad_arguments(name):
  function = STOCHASTIC[name]
  with pytest.raises(ValueError, match=r"inputs must be images .* got \(2, 3\)"):
    function(key(), {"inputs": jnp.zeros((2, 3))})
  for pair in (jnp.ones((2, 4, 4, 1)), (jnp.ones((2, 4, 4, 1)), jnp.zeros(2, int)), None):
    with pytest.raises(TypeError, match="batch must be a mapping with 'inputs', got a"):
      function(key(), pair)
  with pytest.raises(ValueError, match="batch must have 'inputs'"):
    function(key(), {"image": jnp.zeros((2, 3))})
  with pytest.raises(TypeError, match="key must be a typed key"):
    function(0, batch())
  with pytest.raises(ValueError, match="max_shift must lie in"):
    augment.translate(key(), batch(), max_shift=9)
  with pytest.raises(ValueError, match="rate must lie in"):
    augment.flip(key(), batch(), rate=1.5)
