"""RandAugment against Pillow, a NumPy loop over examples and what its key is said to draw; `compose`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit
from PIL import Image, ImageEnhance, ImageOps

from jaxreg import augment
from jaxreg.augment._operations import GEOMETRIC, PHOTOMETRIC


def key(seed=0):
  return jax.random.key(seed)


def batch(number=8, shape=(9, 11, 3), dtype=np.uint8):
  pixels = np.random.default_rng(0).integers(20, 236, (number, *shape))
  return {"inputs": jnp.asarray(pixels, dtype), "labels": jnp.eye(number)}


def draws(key, num_ops, number, choices):
  """The operations and signs, as documented."""
  for_choice, for_sign = jax.random.split(key)
  shape = (num_ops, number)
  return np.asarray(jax.random.randint(for_choice, shape, 0, choices)), np.asarray(
    jax.random.rademacher(for_sign, shape, np.float32)
  )


def plain(key, inputs, magnitude, operations, num_ops=1):
  b = {"inputs": inputs}
  return augment.rand_augment(key, b, num_ops=num_ops, magnitude=magnitude, operations=operations)["inputs"]


run = jit(plain, static_argnames=("operations", "num_ops"))


def pillow(name, image, level):
  """With `level` in [-1, 1]."""
  if name in ("autocontrast", "equalize"):
    return getattr(ImageOps, name)(image)
  if name == "posterize":
    return ImageOps.posterize(image, 8 - round(4 * abs(level)))
  if name == "solarize":
    return ImageOps.solarize(image, 256 * (1 - abs(level)))
  return getattr(ImageEnhance, name.capitalize())(image).enhance(1 + 0.9 * level)


@jit
def each(key, inputs, magnitude):
  return {name: plain(jax.random.clone(key), inputs, magnitude, operations=(name,)) for name in PHOTOMETRIC}


@pytest.mark.thorough
def test_photometric_operations_are_pillow_s():
  """Which cuts values off where we round, and rounds the mean grey to a whole number."""
  x = batch(shape=(24, 22, 3))["inputs"]
  signs = draws(key(), 1, 8, 1)[1][0]
  assert set(signs) == {1, -1}
  for name, got in each(key(), x, 7.0).items():
    want = np.stack([pillow(name, Image.fromarray(np.asarray(a)), 0.7 * s) for a, s in zip(x, signs)])
    exact = name in ("equalize", "posterize", "solarize")
    assert np.abs(np.asarray(got, int) - want).max() <= (0 if exact else 2), name
    assert np.abs(np.asarray(got, int) - np.asarray(x, int)).max() > 5, name


def ramp_source(name, level, rows, columns):
  """Where a pixel of the changed image comes from, seen from the middle of an image of 9 by 11."""
  if name == "rotate":
    angle = np.deg2rad(30 * level)
    return np.cos(angle) * rows + np.sin(angle) * columns, np.cos(angle) * columns - np.sin(angle) * rows
  return {
    "shear_x": (rows, columns + 0.3 * level * rows),
    "shear_y": (rows + 0.3 * level * columns, columns),
    "translate_x": (rows, columns + 0.45 * 11 * level),
    "translate_y": (rows + 0.45 * 9 * level, columns),
  }[name]


@pytest.mark.thorough
def test_geometric_operations_are_composed_in_their_order():
  """Bilinear sampling of a linear function is exact, also once for three operations."""
  rows, columns = np.mgrid[:9, :11] - np.array([4.0, 5.0])[:, None, None]
  ramp = (3 * rows + columns) / 100
  x = jnp.asarray(np.tile(ramp[None, ..., None], (40, 1, 1, 1)), jnp.float32)
  got = np.asarray(run(key(1), x, 3.0, operations=GEOMETRIC, num_ops=3))[..., 0]
  chosen, signs = draws(key(1), 3, 40, len(GEOMETRIC))
  compared = 0
  for i in range(40):
    r, c = rows, columns
    # An image that is changed a second time is asked at the points to which the second change sends it.
    for number in reversed(range(3)):
      r, c = ramp_source(GEOMETRIC[chosen[number, i]], 0.3 * signs[number, i], r, c)
    inside = (np.abs(r) <= 4) & (np.abs(c) <= 5)
    np.testing.assert_allclose(got[i][inside], ((3 * r + c) / 100)[inside], atol=1e-5)
    outside = (np.abs(r) >= 5) | (np.abs(c) >= 6)
    np.testing.assert_array_equal(got[i][outside], 0)
    compared += inside.sum()
  assert compared > 40 * 40


@pytest.mark.thorough
def test_every_image_draws_operations_of_its_own_with_equal_chances():
  """Of two that can be told apart, inverting all and nothing: inverted once in 2 * 3 of 16 pairs."""
  x = jnp.full((4000, 1, 1, 1), 255, jnp.uint8)
  names = ("identity", "solarize", "identity", "identity")
  inverted = np.asarray(run(key(2), x, 10.0, operations=names, num_ops=2))[:, 0, 0, 0] == 0
  np.testing.assert_array_equal(inverted, (draws(key(2), 2, 4000, 4)[0] == 1).sum(0) == 1)
  assert abs(inverted.mean() - 6 / 16) < 4 * np.sqrt(6 / 16 * 10 / 16 / 4000)


def test_an_operation_goes_either_way_with_equal_chances():
  """At magnitude 5 brightness is 0.55 or 1.45 times what it was."""
  x = jnp.full((1000, 1, 1, 1), 100, jnp.uint8)
  values, counts = np.unique(run(key(3), x, 5.0, operations=("brightness",)), return_counts=True)
  np.testing.assert_array_equal(values, [55, 145])
  assert abs(counts[0] - 500) < 4 * np.sqrt(1000 / 4)


@pytest.mark.thorough
def test_magnitude_zero_is_the_identity():
  """Of all but `autocontrast`, which has no magnitude."""
  x = batch()["inputs"]
  for name, got in each(key(), x, 0.0).items():
    assert name == "autocontrast" or (got == x).all(), name
  np.testing.assert_array_equal(run(key(), x, 0.0, operations=GEOMETRIC, num_ops=2), x)


@pytest.mark.thorough
def test_labels_pass_through_and_values_stay_in_range():
  def both(key, b):
    floats = {**b, "inputs": b["inputs"].astype(jnp.bfloat16) / 127.5 - 1}
    keys = jax.random.split(key)
    return (
      augment.rand_augment(keys[0], b, magnitude=10),
      augment.rand_augment(keys[1], floats, magnitude=10, value_range=(-1.0, 1.0), fill=-1.0),
    )

  b = batch()
  for out, dtype, low in zip(jit(both)(key(), b), (np.uint8, jnp.bfloat16), (0, -1)):
    assert out["inputs"].dtype == dtype
    np.testing.assert_array_equal(out["labels"], b["labels"])
    assert out["inputs"].min() >= low
    assert out["inputs"].max() <= (255 if dtype == np.uint8 else 1)


def test_rand_augment_refuses():
  b = batch()
  with pytest.raises(ValueError, match=r"operations must be among identity.* got \['invert'\]"):
    augment.rand_augment(key(), b, operations=["invert"])
  with pytest.raises(ValueError, match=r"operations must be among .* got none"):
    augment.rand_augment(key(), b, operations=[])
  with pytest.raises(ValueError, match="magnitude must lie in"):
    augment.rand_augment(key(), b, magnitude=11)
  with pytest.raises(ValueError, match="num_ops must be at least 1"):
    augment.rand_augment(key(), b, num_ops=0)
  with pytest.raises(ValueError, match="value_range"):
    augment.rand_augment(key(), b, value_range=(1.0, 1.0))
  with pytest.raises(TypeError, match="inputs must be uint8 or floating"):
    augment.rand_augment(key(), batch(dtype=np.int32))
  with pytest.raises(ValueError, match="inputs must be images"):
    augment.rand_augment(key(), {"inputs": jnp.zeros((2, 3))})
  with pytest.raises(TypeError, match="key must be a typed key"):
    augment.rand_augment(0, b)


def add(key, batch):
  return {**batch, "inputs": batch["inputs"] + jax.random.uniform(key, batch["inputs"].shape)}


def double(key, batch):
  del key
  return {**batch, "inputs": 2 * batch["inputs"]}


def test_compose_goes_in_order_with_a_key_for_each():
  b = {"inputs": jnp.ones((2, 3)), "labels": jnp.arange(2)}
  got = augment.compose(add, double, add)(key(), b)
  first, last = (jax.random.uniform(jax.random.fold_in(key(), i), (2, 3)) for i in (0, 2))
  np.testing.assert_allclose(got["inputs"], 2 * (1 + first) + last, rtol=1e-6)
  assert (first != last).all()
  assert augment.compose()(key(), b) == b
  with pytest.raises(TypeError, match="key must be a typed key"):
    augment.compose(double)(0, b)


@pytest.mark.thorough
def test_soft_labels_go_through_every_augmentation():
  """Of mixup, wherever it stands; each example draws its own share."""
  options = {"translate": {"max_shift": 1}, "pad_crop": {"padding": 1}, "cutout": {"size": 2}}
  names = ("flip", "translate", "pad_crop", "rotate", "scale", "cutout", "random_erasing", "rand_augment")
  others = [functools.partial(getattr(augment, name), **options.get(name, {})) for name in names]
  mix = functools.partial(augment.mixup, alpha=1.0)
  b = batch(shape=(4, 4, 1))
  after = jit(lambda key, b: augment.compose(mix, *others)(key, b)["labels"])(key(), b)
  alone = jit(lambda key, b: mix(jax.random.fold_in(key, 0), b)["labels"])(key(), b)
  np.testing.assert_array_equal(after, alone)
  np.testing.assert_allclose(after.sum(-1), 1, rtol=1e-6)
  assert len(np.unique(np.asarray(after).diagonal())) == 8
