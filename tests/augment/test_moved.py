"""Masks, boxes and points move with their images: images whose pixels show them are the oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg import augment

NUMBER, HEIGHT, WIDTH = 12, 40, 56
GEOMETRIC = ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"]
WARPS = {
  "flip": augment.flip,
  "translate": functools.partial(augment.translate, max_shift=9),
  "pad_crop": augment.pad_crop,
  "rotate": functools.partial(augment.rotate, max_degrees=60.0),
  "scale": functools.partial(augment.scale, max_factor=1.5),
  "random_resized_crop": functools.partial(augment.random_resized_crop, area=(0.3, 0.9)),
  "rand_augment": functools.partial(augment.rand_augment, operations=GEOMETRIC, num_ops=3, magnitude=6.0),
  "trivial_augment": functools.partial(augment.trivial_augment, operations=GEOMETRIC),
  "auto_augment": functools.partial(
    augment.auto_augment, policy=[[("rotate", 1.0, 5), ("translate_x", 0.5, 4)]]
  ),
}
RNG = np.random.default_rng(0)
ROWS, COLUMNS = np.mgrid[:HEIGHT, :WIDTH] + 0.5


@functools.cache
def applied(name):
  """Before and after: the first channel shows a point as a bump, the second a box, the third a mask."""
  points = np.stack([RNG.uniform(24, 32, NUMBER), RNG.uniform(17, 23, NUMBER)], -1)[:, None]
  low = np.stack([RNG.integers(12, 22, NUMBER), RNG.integers(10, 16, NUMBER)], -1)
  boxes = np.concatenate([low, low + RNG.integers(9, 15, (NUMBER, 2))], -1)[:, None]
  x, y = points[:, 0, :, None, None].transpose(1, 0, 2, 3)
  bump = np.exp(-((COLUMNS - x) ** 2 + (ROWS - y) ** 2) / (2 * 2.0**2))
  x0, y0, x1, y1 = boxes[:, 0, :, None, None].transpose(1, 0, 2, 3)
  filled = (x0 < COLUMNS) & (x1 > COLUMNS) & (y0 < ROWS) & (y1 > ROWS)
  masks = np.kron(RNG.integers(0, 2, (NUMBER, HEIGHT // 8, WIDTH // 8)), np.ones((8, 8), int))
  batch = {
    "inputs": jnp.asarray(np.stack([bump, filled, masks, np.ones_like(bump)], -1), jnp.float32),
    "masks": jnp.asarray(masks, jnp.int32),
    "boxes": jnp.asarray(boxes, jnp.float32),
    "points": jnp.asarray(points, jnp.float32),
    "name": jnp.arange(NUMBER),
  }
  after = jit(lambda key, batch: WARPS[name](key, batch))(jax.random.key(3), batch)
  np.testing.assert_array_equal(after["name"], batch["name"])
  assert not np.array_equal(after["inputs"], batch["inputs"])
  return batch, jax.tree.map(np.asarray, after)


@pytest.mark.thorough
@pytest.mark.parametrize("name", WARPS)
def test_a_point_is_the_middle_of_its_bump(name):
  _, after = applied(name)
  bump = after["inputs"][..., 0]
  total = bump.sum((1, 2))
  middle = np.stack([(bump * at).sum((1, 2)) / total for at in (COLUMNS, ROWS)], -1)
  x, y = after["points"][:, 0].T
  # A bump that the edge cuts off has another middle.
  inside = (x > 8) & (x < WIDTH - 8) & (y > 8) & (y < HEIGHT - 8)
  assert inside.sum() >= 6
  np.testing.assert_allclose(after["points"][inside, 0], middle[inside], atol=0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("name", WARPS)
def test_a_box_is_the_smallest_around_its_pixels(name):
  _, after = applied(name)
  for image, (x0, y0, x1, y1) in zip(after["inputs"][..., 1], after["boxes"][:, 0]):
    shown = image > 0.25
    assert shown.any()
    columns, rows = (np.flatnonzero(shown.any(axis)) for axis in (0, 1))
    # Sharp corners of a turned box fall between pixels.
    got = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    np.testing.assert_allclose(got, [x0, y0, x1, y1], atol=1.5)


@pytest.mark.parametrize("name", WARPS)
def test_a_mask_is_that_of_its_pixels(name):
  """Of the four pixels of a bilinear value, the nearest has at least a quarter of the weight."""
  _, after = applied(name)
  shown, there, masks = after["inputs"][..., 2], after["inputs"][..., 3], after["masks"]
  whole = there > 0.999  # nothing comes from outside
  assert whole.mean() > 0.4
  assert (masks[whole & (shown > 0.76)] == 1).all()
  assert (masks[whole & (shown < 0.24)] == 0).all()
  assert set(np.unique(masks)) <= {-1, 0, 1}
  assert (masks[there == 0] == -1).all()
  if name in ("flip", "translate", "pad_crop"):
    np.testing.assert_array_equal(masks, np.where(there > 0, shown, -1))


@pytest.mark.thorough
def test_a_box_that_has_left_the_image_has_no_area():
  batch = {"inputs": jnp.zeros((1, 8, 8, 1)), "boxes": jnp.array([[[0.0, 0.0, 2.0, 2.0]]])}
  for seed in range(40):
    got = augment.translate(jax.random.key(seed), batch, max_shift=8)
    down, right = np.asarray(jax.random.randint(jax.random.key(seed), (2, 1), -8, 9))[:, 0]
    want = np.clip([right, down, 2 + right, 2 + down], 0, 8)
    np.testing.assert_array_equal(got["boxes"][0, 0], want)


@pytest.mark.parametrize("function", [augment.cutout, functools.partial(augment.random_erasing, rate=1.0)])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool])
def test_a_hole_has_no_label(function, dtype):
  batch = {"inputs": jnp.ones((6, 20, 20, 1)), "masks": jnp.ones((6, 20, 20), dtype)}
  got = jit(lambda key, batch: function(key, batch))(jax.random.key(0), batch)
  holes = np.asarray(got["inputs"])[..., 0] == 0
  assert holes.any()
  np.testing.assert_array_equal(got["masks"], np.where(holes, -1 if dtype is np.int32 else 0, 1))
  assert got["masks"].dtype == dtype


@pytest.mark.thorough
def test_cutmix_pastes_masks_as_images():
  x = jnp.asarray(RNG.integers(0, 9, (6, 10, 10)))
  batch = {"inputs": x[..., None], "masks": x, "labels": jnp.zeros((6, 2))}
  got = jit(lambda key, batch: augment.cutmix(key, batch))(jax.random.key(0), batch)
  assert not np.array_equal(got["masks"], x)
  np.testing.assert_array_equal(got["masks"], got["inputs"][..., 0])


@pytest.mark.parametrize(
  ("entries", "message"),
  [
    ({"masks": np.zeros((2, 4, 5), int)}, r"masks must be \[batch, 4, 4\], as the inputs, got \(2, 4, 5\)"),
    ({"boxes": np.zeros((2, 4))}, r"boxes must be \[batch, n, 4\], got \(2, 4\)"),
    ({"points": np.zeros((3, 1, 2))}, r"points must be \[batch, n, 2\], got \(3, 1, 2\)"),
  ],
)
def test_other_shapes_are_refused(entries, message):
  with pytest.raises(ValueError, match=message):
    augment.flip(jax.random.key(0), {"inputs": jnp.zeros((2, 4, 4, 1)), **entries})


@pytest.mark.thorough
def test_augmix_refuses_what_it_cannot_move():
  batch = {"inputs": jnp.zeros((2, 4, 4, 1)), "masks": jnp.zeros((2, 4, 4), int)}
  with pytest.raises(ValueError, match=r"operations must have none of rotate.* for a batch with masks"):
    augment.augmix(jax.random.key(0), batch)
  same = augment.augmix(jax.random.key(0), batch, operations=["solarize"])
  np.testing.assert_array_equal(same["masks"], batch["masks"])
