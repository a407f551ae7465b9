"""Images decoded batch by batch: their pixels, their order on any processes from any step, runs on them."""

import dataclasses
import io
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import runs
from image_files import make_folder, make_noisy_folder, noise, png
from PIL import Image

from jaxreg import train
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.choices import flatten
from jaxreg.train.data import batches, sources
from jaxreg.train.data import images as images_module
from jaxreg.train.data.batches import Order, batch_indices
from jaxreg.train.data.dataset import Dataset, Split
from jaxreg.train.data.images import Decoding, Images, centre_crop, draw_box, random_crop
from jaxreg.train.data.subsets import Subset, flip_labels, hide_labels, subset
from jaxreg.train.devices.sharding import make_mesh
from jaxreg.train.errors import RunError
from jaxreg.train.finished.inputs import cropped


def triangle(length, low, high, size):
  """The matrix `[size, length]` that resizes the part `low` to `high`, by triangles as wide as a pixel."""
  scale = (high - low) / size
  centres = low + (np.arange(size)[:, None] + 0.5) * scale
  weights = np.maximum(0, 1 - np.abs(np.arange(length) + 0.5 - centres) / max(scale, 1))
  weights[:, :low], weights[:, high:] = 0, 0
  return weights / weights.sum(1, keepdims=True)


def resized(pixels, box, size):
  """In float64, of the part within `box` alone; `size` is width and height."""
  left, top, right, bottom = box
  rows = triangle(pixels.shape[0], top, bottom, size[1])
  columns = triangle(pixels.shape[1], left, right, size[0])
  return np.einsum("yi,xj,ijc->yxc", rows, columns, pixels.astype(np.float64))


@pytest.fixture
def folder(tmp_path):
  return make_folder(tmp_path / "images")


@pytest.fixture
def dataset(folder):
  return sources.image_folder(path=str(folder)).decoded_by(size=6)


FIELDS = {
  "data.name": "image_folder",
  "data.subset.limit": 0,
  "data.image_folder.val": "val",
  "data.stream.size": 6,
  "batch_size": 8,
  "eval_batch_size": 8,
}


# Pixels.


@pytest.mark.parametrize(("height", "width"), [(16, 33), (33, 16), (16, 16)])
def test_a_centre_crop_without_resizing_is_a_slice(height, width):
  pixels = noise(0, height, width)
  top, left = (height - 14) // 2, (width - 14) // 2
  found = centre_crop(Image.fromarray(pixels), Decoding(size=14))
  np.testing.assert_array_equal(found, pixels[top : top + 14, left : left + 14])


@pytest.mark.parametrize(("height", "width"), [(40, 60), (51, 37), (10, 25)])
def test_a_centre_crop_is_that_of_the_image_with_a_shorter_side(height, width):
  pixels = noise(1, height, width)
  new = [round(side * 16 / min(height, width)) for side in (width, height)]
  whole = resized(pixels, (0, 0, width, height), new)
  left, top = ((side - 14) // 2 for side in new)
  found = centre_crop(Image.fromarray(pixels), Decoding(size=14))
  # Pillow rounds twice: after the rows and after the columns.
  np.testing.assert_allclose(found, whole[top : top + 14, left : left + 14], rtol=0, atol=1.01)


def test_a_random_crop_without_resizing_is_a_slice_or_its_mirror_image(monkeypatch):
  """A quarter of the area of a square, at its own resolution: found by its pixels, wherever it was cut."""
  monkeypatch.setattr(images_module, "AREA", (0.25, 0.25))
  monkeypatch.setattr(images_module, "ASPECT", (1.0, 1.0))
  pixels = noise(2, 16, 16)
  windows = np.lib.stride_tricks.sliding_window_view(pixels, (8, 8, 3))[:, :, 0]
  places, mirrored = [], []
  for seed in range(400):
    found = random_crop(np.random.default_rng(seed), Image.fromarray(pixels), Decoding(size=8))
    plain = np.argwhere((windows == found).all((2, 3, 4)))
    flipped = np.argwhere((windows == found[:, ::-1]).all((2, 3, 4)))
    assert len(plain) + len(flipped) == 1
    places += [*plain, *flipped]
    mirrored.append(len(flipped))
  # Uniform over the 9 x 9 places, and every other one mirrored, within 4 sigma.
  for axis in np.array(places).T:
    assert set(axis) == set(range(9))
    assert abs(axis.mean() - 4) < 4 * np.sqrt((81 - 1) / 12 / 400)
  assert abs(np.mean(mirrored) - 0.5) < 4 * 0.5 / np.sqrt(400)


def test_a_random_crop_is_its_box_resized():
  pixels = noise(3, 30, 47)
  for seed in range(20):
    drawn = np.random.default_rng(seed)
    box = draw_box(drawn, (47, 30))
    found = random_crop(np.random.default_rng(seed), Image.fromarray(pixels), Decoding(size=12))
    found = found[:, ::-1] if drawn.random() < 0.5 else found
    np.testing.assert_allclose(found, resized(pixels, box, (12, 12)), rtol=0, atol=1.01)


def test_a_scaled_crop_has_a_drawn_shorter_side_and_a_drawn_place():
  pixels = noise(4, 30, 47)
  sides, places = [], []
  for seed in range(300):
    how = Decoding(size=12, sides=(14, 17))
    found = random_crop(np.random.default_rng(seed), Image.fromarray(pixels), how)
    drawn = np.random.default_rng(seed)
    side = drawn.integers(14, 18)
    width, height = round(47 * side / 30), side
    left, top = drawn.integers(width - 11), drawn.integers(height - 11)
    found = found[:, ::-1] if drawn.random() < 0.5 else found
    if seed < 20:
      whole = resized(pixels, (0, 0, 47, 30), (width, height))
      np.testing.assert_allclose(found, whole[top : top + 12, left : left + 12], rtol=0, atol=1.01)
    sides.append(side)
    places.append((left, top))
  assert set(sides) == {14, 15, 16, 17}
  # Places from one edge to the other: 0 to 27 - 12 across, 0 to 17 - 12 down.
  assert np.array(places).min(axis=0).tolist() == [0, 0]
  assert np.array(places).max(axis=0).tolist() == [15, 5]


def test_scaled_crops_are_mirrored_every_other_time():
  pixels = noise(5, 12, 12)
  whole = [
    random_crop(np.random.default_rng(seed), Image.fromarray(pixels), Decoding(size=12, sides=(12, 12)))
    for seed in range(400)
  ]
  mirrored = [np.array_equal(found, pixels[:, ::-1]) for found in whole]
  assert all(flipped or np.array_equal(found, pixels) for flipped, found in zip(mirrored, whole))
  assert abs(np.mean(mirrored) - 0.5) < 4 * 0.5 / np.sqrt(400)


def test_a_store_of_images_draws_the_crops_that_are_asked_for(folder):
  pixels = noise(6, 10, 10)
  Image.fromarray(pixels).save(folder / "train" / "cat" / "000.PNG")
  images = sources.image_folder(path=str(folder)).decoded_by(size=6, sides=(10, 10)).train.inputs
  windows = np.lib.stride_tricks.sliding_window_view(pixels, (6, 6, 3))[:, :, 0]
  found = images.cut(0, np.random.default_rng(0))
  assert any((windows == side).all((2, 3, 4)).sum() == 1 for side in (found, found[:, ::-1]))
  # An evaluation takes the centre.
  np.testing.assert_array_equal(images.cut(0), centre_crop(Image.fromarray(pixels), Decoding(size=6)))


def test_boxes_have_the_areas_aspects_and_places_that_are_asked_for(monkeypatch):
  generator = np.random.default_rng(0)
  width = height = 4000  # of which rounding is no part
  assert (images_module.AREA, images_module.ASPECT) == ((0.08, 1.0), (3 / 4, 4 / 3))
  area, aspect = (0.08, 0.5), images_module.ASPECT  # every such box fits into a square
  monkeypatch.setattr(images_module, "AREA", area)
  boxes = np.array([draw_box(generator, (width, height)) for _ in range(4000)])
  left, top, right, bottom = boxes.T
  assert left.min() >= 0
  assert top.min() >= 0
  assert right.max() <= width
  assert bottom.max() <= height
  shares = (right - left) * (bottom - top) / (width * height)
  logs = np.log((right - left) / (bottom - top))
  places = left / (width - (right - left))
  for values, (low, high) in ((shares, area), (logs, np.log(aspect)), (places, (0, 1))):
    assert low - 1e-3 <= values.min()
    assert values.max() <= high + 1e-3
    # A uniform distribution: mean, variance and the share below its middle, within 4 sigma.
    uniform = (values - low) / (high - low)
    assert abs(uniform.mean() - 1 / 2) < 4 / np.sqrt(12 * 4000)
    assert abs(uniform.var() - 1 / 12) < 4 * np.sqrt(1 / 180 / 4000)
    assert abs((uniform < 0.25).mean() - 0.25) < 4 * np.sqrt(0.1875 / 4000)


@pytest.mark.parametrize(
  ("size", "box"), [((200, 10), (93, 0, 106, 10)), ((10, 200), (0, 93, 10, 106)), ((1, 1), (0, 0, 1, 1))]
)
def test_where_no_crop_fits_it_is_the_centre(size, box, monkeypatch):
  """The whole area of a strip, in an aspect that it does not have: 10 by 4/3 of it, or all of one pixel."""
  monkeypatch.setattr(images_module, "AREA", (1.0, 1.0))
  assert draw_box(np.random.default_rng(0), size) == box


# The folder.


def test_a_folder_is_read_in_the_order_of_its_names(folder):
  (folder / "train" / "cat" / "notes.txt").write_text("no image")
  (folder / "train" / ".hidden").mkdir()
  data = sources.image_folder(path=str(folder), val="val").decoded_by(size=6).checked()
  assert [len(split) for split in data.splits().values()] == [40, 12, 12]
  assert (data.num_classes, data.scale) == (2, 255.0)
  assert (data.train.inputs.shape, data.train.inputs.dtype) == ((40, 6, 6, 3), np.uint8)
  np.testing.assert_array_equal(data.train.labels, np.repeat([0, 1], 20))
  decoded = np.asarray(data.train.inputs)
  np.testing.assert_array_equal(decoded[:, 0, 0, 0], np.arange(40))
  assert (decoded == decoded[:, :1, :1]).all()


def test_validation_is_a_stratified_part_of_train(folder):
  data = sources.image_folder(path=str(folder), validation_fraction=0.25).decoded_by(size=6)
  assert np.bincount(data.val.labels).tolist() == [5, 5]
  colours = [np.asarray(split.inputs)[:, 0, 0, :2] for split in (data.train, data.val)]
  assert sorted(np.concatenate(colours)[:, 0]) == list(range(40))
  assert (np.concatenate(colours)[:, 1] == 255).all()


def test_subsets_and_flipped_labels_are_those_of_arrays(dataset):
  decode = lambda split: Split(np.asarray(split.inputs), split.labels)
  arrays = Dataset(*map(decode, dataset.splits().values()), num_classes=2, scale=255.0)
  changes = {
    "limited": lambda x: x.limited(25),  # of both classes
    "subset": lambda x: subset(x, Subset(per_class=7, seed=1)),
    "flipped": lambda x: flip_labels(x, rate=0.3),
    "unlabelled": lambda x: hide_labels(subset(x, Subset(per_class=7, seed=1))),
  }
  for change in changes.values():
    lazy, plain = change(dataset), change(arrays)
    assert isinstance(lazy.train.inputs, Images)
    for name, split in {**lazy.splits(), "training": lazy.training()}.items():
      other = plain.training() if name == "training" else plain.splits()[name]
      np.testing.assert_array_equal(np.asarray(split.inputs), other.inputs)
      np.testing.assert_array_equal(split.labels, other.labels)
    lazy.checked()
    # Another set, as one sees without decoding it.
    assert lazy.describe().crc32["train"] != dataset.describe().crc32["train"]


@pytest.mark.parametrize("change", ["content", "name", "label"])
def test_another_folder_has_another_description(folder, dataset, change):
  before = dataset.describe()
  assert before == sources.image_folder(path=str(folder)).decoded_by(size=6).describe()
  file = folder / "train" / "cat" / "003.png"
  if change == "content":
    Image.fromarray(noise(0, 30, 30)).save(file)
  elif change == "name":
    file.rename(file.with_name("999.png"))
  else:
    file.rename(folder / "train" / "dog" / "003b.png")
  after = sources.image_folder(path=str(folder)).decoded_by(size=6).describe()
  assert after.crc32["train"] != before.crc32["train"]
  assert after.crc32["test"] == before.crc32["test"]


def test_images_of_other_modes_become_red_green_and_blue(tmp_path):
  """Grey, palette, with transparency, and the four inks of printing."""
  root = make_folder(tmp_path / "images")
  plain = Image.new("RGB", (12, 12), (204, 204, 204))  # which the usual palette has
  for i, mode in enumerate(("L", "P", "RGBA", "CMYK")):
    file = root / "train" / "cat" / ("000.PNG" if mode != "CMYK" else "zzz.jpg")
    plain.convert(mode).save(file, quality=100) if mode == "CMYK" else plain.convert(mode).save(file)
    split = sources.image_folder(path=str(root), val="val").decoded_by(size=6).train
    found = split.inputs.cut(0 if mode != "CMYK" else 20)
    np.testing.assert_allclose(found, 204, rtol=0, atol=3, err_msg=f"{i} {mode}")


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_png_of_any_depth_keeps_its_greys(channels, dtype):
  """Of 16 bits the higher 8, as TensorFlow takes them; transparent parts show white."""
  grey = np.linspace(0, np.iinfo(dtype).max, 30).astype(dtype).reshape(5, 6)
  pixels = np.repeat(grey[..., None], channels, axis=-1)
  expected = (grey // (1 if dtype == np.uint8 else 256)).astype(np.float64)
  if channels in (2, 4):  # the opacity is as large as the grey
    expected = expected * expected / 255 + 255 - expected
  found = np.asarray(images_module.decode(png(pixels)))
  np.testing.assert_allclose(found, np.stack([expected] * 3, axis=-1), rtol=0, atol=0.51)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", ["PNG", "GIF"])
def test_a_transparent_colour_of_a_palette_shows_white(form):
  image = Image.new("P", (2, 1))
  image.putpalette([255, 0, 0, 0, 128, 0])
  image.putdata([1, 0])
  file = io.BytesIO()
  image.save(file, form, transparency=bytes([0, 9]) if form == "PNG" else 1)
  # PNG: green has an opacity of 9 of 255, and red of 0. GIF: green is transparent, and red is not.
  expected = [[246, 255 - 9 * 127 / 255, 246], [255] * 3] if form == "PNG" else [[255] * 3, [255, 0, 0]]
  np.testing.assert_allclose(np.asarray(images_module.decode(file.getvalue())), [expected], rtol=0, atol=1)


@pytest.mark.parametrize("form", ["PPM", "EPS", "ICO", "TGA"])
def test_other_formats_are_refused(folder, form):
  file = folder / "train" / "cat" / "zzz.png"
  Image.fromarray(noise(0, 40, 40)).save(file, form)
  inputs = sources.image_folder(path=str(folder), val="val").train.inputs
  fails(file, "it is not a JPEG, PNG, GIF, BMP, WEBP, TIFF image", call=lambda: inputs.cut(20))


def test_an_image_that_promises_too_many_pixels_is_refused(folder):
  """Of few bytes: 80 MB when decoded."""
  file = folder / "train" / "cat" / "zzz.png"
  file.write_bytes(png(np.zeros((2**13 + 1, 2**13, 1), np.uint8)))
  inputs = sources.image_folder(path=str(folder), val="val").train.inputs
  fails(file, "it has 67117056 pixels, and at most 67108864", call=lambda: inputs.cut(20))


def fails(*mentions, call):
  with pytest.raises(RunError) as caught:
    call()
  message = str(caught.value)
  assert "\n" not in message
  for mention in mentions:
    assert str(mention) in message, message


@pytest.mark.parametrize(
  ("options", "mentions"),
  [
    ({"path": ""}, ("data.image_folder.path", "''")),
    ({"path": "{folder}/nowhere"}, ("data.image_folder.path", "nowhere", "is not a folder")),
    ({"train": "training"}, ("data.image_folder.train", "training", "is not a folder")),
    ({"val": "dev"}, ("data.image_folder.val", "dev", "is not a folder")),
    ({"train": "val"}, ("data.image_folder.test", "another folder than train", "'val'")),
    ({"train": "train/cat"}, ("data.image_folder.train", "at least 2")),
    ({"validation_fraction": 0.01}, ("data.validation_fraction", "0.01")),
    ({"validation_fraction": 1.5}, ("data.validation_fraction", "1.5")),
  ],
)
def test_a_wrong_folder_is_named(folder, options, mentions):
  options = {"path": "{folder}", **options}
  options = {k: v.format(folder=folder) if isinstance(v, str) else v for k, v in options.items()}
  fails(*mentions, call=lambda: runs.read_source("image_folder", **options))


def test_a_class_without_images_or_of_one_split_only_is_named(folder):
  (folder / "val" / "cow").mkdir()
  read = lambda: runs.read_source("image_folder", path=str(folder))
  fails("data.image_folder.test", "only", folder / "val", "'cow'", call=read)
  (folder / "train" / "cow").mkdir()
  fails("data.image_folder.train", folder / "train" / "cow", "has no images", call=read)


def test_a_class_in_two_forms_of_unicode_is_told_in_both(folder):
  for split, name in (("train", "\u00e9"), ("val", "e\u0301")):
    (folder / split / "cat").rename(folder / split / name)
  read = lambda: runs.read_source("image_folder", path=str(folder))
  fails("data.image_folder.test", r" as 'e\u0301', and the other has '\xe9'; rename one", call=read)


@pytest.mark.parametrize(
  ("field", "value", "mentions"),
  [
    ("size", 0, "at least 1"),
    ("workers", -1, "at least 0"),
    ("sides", (480,), "data.stream.sides"),
    ("sides", (480, 256), "data.stream.sides: must be () or two in order, at least size=224"),
    ("sides", (100, 256), "data.stream.sides: must be () or two in order, at least size=224"),
    ("sides", (256.5, 480), "data.stream.sides"),
  ],
)
def test_a_wrong_cut_is_named(field, value, mentions):
  fails(mentions, call=lambda: runs.make_config({f"data.stream.{field}": value}))


DAMAGES = {
  "empty": lambda raw: b"",
  "cut off": lambda raw: raw[: len(raw) // 2],
  "no image": lambda raw: b"<html>not found</html>",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_a_damaged_image_is_named(folder, damage, suffix):
  file = folder / "train" / "cat" / f"zzz.{suffix}"
  Image.fromarray(noise(0, 40, 40)).save(file)
  file.write_bytes(DAMAGES[damage](file.read_bytes()))
  images = sources.image_folder(path=str(folder), val="val").train.inputs
  for generator in (None, np.random.default_rng(0)):
    fails(file, "cannot be decoded", call=lambda generator=generator: images.cut(20, generator))
  file.unlink()
  fails(file, "cannot be decoded", call=lambda: images.cut(20))


# The order.


def feed_of(dataset, mesh, *, start=0, stop=10, seeds=(3,), batch_size=8, steps=1):
  """All batches of those steps, `[steps, replicas, batch, ...]`, a dispatch making `steps` of them."""
  source = batches.make_source(mesh, dataset.train, resident=False)
  order = Order(range(seeds[0], seeds[-1] + 1), len(dataset.train), batch_size)
  with batches.make_feed(mesh, source, order, start=start, stop=stop) as feed:
    if steps == 1:
      found = [feed(range(step + 1, step + 2)) for step in range(start, stop)]
      return {name: np.stack([batch[name] for batch in found]) for name in found[0]}
    found = [feed(range(step + 1, step + 1 + steps)) for step in range(start, stop, steps)]
    joined = {name: np.concatenate([batch[name] for batch in found], axis=1) for name in found[0]}
    return {name: np.swapaxes(x, 0, 1) for name, x in joined.items()}


def assert_equal(one, other):
  assert one.keys() == other.keys()
  for name, array in one.items():
    np.testing.assert_array_equal(array, other[name])


def test_batches_are_those_of_the_order(dataset):
  found = feed_of(dataset, make_mesh(), seeds=(3, 4), stop=9)
  images = np.asarray(dataset.train.inputs)
  for replica, seed in enumerate((3, 4)):
    for step in range(9):
      index = batch_indices(seed, step, num_examples=len(dataset.train), batch_size=8)
      inputs, labels = (found[name][step, replica] for name in ("inputs", "labels"))
      np.testing.assert_array_equal(inputs[:, 0, 0], images[index, 0, 0])
      np.testing.assert_array_equal(labels, dataset.train.labels[index])


@pytest.fixture
def noisy(tmp_path):
  root = make_noisy_folder(tmp_path / "images")
  return sources.image_folder(path=str(root)).decoded_by(size=6)


def test_begun_at_a_step_they_go_on_and_several_a_dispatch_are_the_same(noisy):
  mesh = make_mesh()
  whole = feed_of(noisy, mesh, stop=8)
  for start in (1, 5, 8):
    if start < 8:
      assert_equal({name: x[start:] for name, x in whole.items()}, feed_of(noisy, mesh, start=start, stop=8))
  assert_equal(whole, feed_of(noisy, mesh, stop=8, steps=4))
  # Every step cuts anew, and so does every seed.
  assert len({batch.tobytes() for batch in whole["inputs"][:, 0]}) == 8
  other = feed_of(noisy, mesh, stop=8, seeds=(4,))
  assert (other["inputs"] != whole["inputs"]).mean() > 0.9


def test_an_image_is_cut_by_seed_step_and_position(noisy):
  """As `random_crop` cuts it with the generator that is promised."""
  whole = feed_of(noisy, make_mesh(), stop=3)["inputs"][:, 0]
  for step in range(3):
    index = batch_indices(3, step, num_examples=len(noisy.train), batch_size=8)
    for position in range(8):
      with Image.open(
        io.BytesIO(noisy.train.inputs.store.read(noisy.train.inputs.numbers[index[position]]))
      ) as image:
        wanted = random_crop(
          np.random.default_rng((3, step, position)), image.convert("RGB"), Decoding(size=6)
        )
      np.testing.assert_array_equal(whole[step, position], wanted)


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_several_processes_decode_parts_of_the_same_batch(noisy, monkeypatch, parts):
  mesh = make_mesh()
  whole = feed_of(noisy, mesh, stop=3, seeds=(3, 4))
  training, testing = batches.make_source(mesh, noisy.train, resident=False), noisy.test
  evaluated = list(batches.in_turn(mesh, batches.Source(testing, {}), 8))
  for positions in np.split(np.arange(8), parts):
    monkeypatch.setattr(batches, "local_positions", lambda *_, positions=positions: positions)
    part = feed_of(noisy, mesh, stop=3, seeds=(3, 4))
    np.testing.assert_array_equal(part["labels"], whole["labels"])
    np.testing.assert_array_equal(part["inputs"][:, :, positions], whole["inputs"][:, :, positions])
    others = np.setdiff1d(np.arange(8), positions)
    assert not part["inputs"][:, :, others].any()
    for batch, all_of_it in zip(
      batches.in_turn(mesh, batches.Source(testing, {}), 8), evaluated, strict=True
    ):
      np.testing.assert_array_equal(batch["inputs"][positions], all_of_it["inputs"][positions])
      np.testing.assert_array_equal(batch["weights"], all_of_it["weights"])
  assert len(training) == len(noisy.train)


def test_the_positions_of_a_process_are_those_of_its_devices():
  assert batches.local_positions(make_mesh(), 16).tolist() == list(range(16))


def test_an_evaluation_sees_the_centre_of_every_image_once(noisy):
  found = list(batches.in_turn(make_mesh(), batches.Source(noisy.train, {}), 16))
  inputs, labels, weights = (np.concatenate([b[k] for b in found]) for k in ("inputs", "labels", "weights"))
  number = len(noisy.train)
  assert len(weights) == 48
  assert weights.tolist() == [1] * number + [0] * (48 - number)
  np.testing.assert_array_equal(inputs[:number], np.asarray(noisy.train.inputs))
  np.testing.assert_array_equal(labels[:number], noisy.train.labels)


@pytest.mark.thorough
def test_worker_processes_give_the_same(noisy):
  mesh = make_mesh()
  whole = feed_of(noisy, mesh, stop=7)
  worked = feed_of(noisy.decoded_by(size=6, workers=2), mesh, start=2, stop=7)
  assert_equal({name: x[2:] for name, x in whole.items()}, worked)


@pytest.mark.thorough
def test_a_worker_outlives_sigterm_and_one_that_is_gone_is_told(noisy):
  """SIGTERM reaches the whole group of processes, and the run still has to end its step."""
  dataset = noisy.decoded_by(size=6, workers=1)
  mesh = make_mesh()
  source = batches.make_source(mesh, dataset.train, resident=False)
  order = Order(range(3, 4), len(dataset.train), 8)
  others = multiprocessing.active_children()
  with batches.make_feed(mesh, source, order, start=0, stop=10**6) as feed:
    feed(range(1, 2))
    (worker,) = [child for child in multiprocessing.active_children() if child not in others]
    os.kill(worker.pid, signal.SIGTERM)
    time.sleep(0.5)
    assert worker.is_alive()
    worker.kill()
    with pytest.raises(
      RunError, match=r"^a worker that decodes images is lost \([^\n]+\); the same command continues"
    ):
      list(map(feed, (range(step, step + 1) for step in range(2, 1000))))


# Runs.


def config_of(folder, fields=None):
  return runs.make_config({**FIELDS, "data.image_folder.path": str(folder), **(fields or {})})


@pytest.fixture
def trained(folder, tmp_path, monkeypatch):
  monkeypatch.setattr("jaxreg.train.run.results.save_figures", lambda *_: [])
  config = config_of(folder, {"epochs": 1})
  train.train(config, tmp_path / "run")
  return tmp_path / "run", load_data(config)


@pytest.mark.thorough
def test_a_loaded_run_takes_images_of_any_size(trained, folder, tmp_path):
  """By the crops of its evaluation, whose pixels are the arrays of the data set."""
  workdir, data = trained
  predict = train.load(workdir)
  files = sorted((folder / "val").rglob("*.*"), key=lambda file: (file.parent.name, file.name))
  expected = np.asarray(predict(np.asarray(data.val.inputs)))
  assert expected.shape == (12, 2)
  pixels = [np.asarray(Image.open(file).convert("RGB")) for file in files]
  assert len({image.shape for image in pixels}) > 1
  for given in (files, [str(file) for file in files], pixels, [Image.fromarray(image) for image in pixels]):
    np.testing.assert_array_equal(predict(given), expected)
  one = noise(5, 17, 31)
  top, left = (7 - 6) // 2, (round(31 * 7 / 17) - 6) // 2
  whole = resized(one, (0, 0, 31, 17), (round(31 * 7 / 17), 7))[top : top + 6, left : left + 6]
  crop = cropped(one[None], Decoding(size=6))
  assert crop.shape == (1, 6, 6, 3)
  np.testing.assert_allclose(crop[0], whole, rtol=0, atol=1.01)
  np.testing.assert_array_equal(predict(one[None]), predict(crop))
  grey = one[..., 0]
  np.testing.assert_array_equal(predict([grey]), predict([np.stack([grey] * 3, -1)]))
  np.testing.assert_array_equal(predict([grey[..., None]]), predict([grey]))
  assert "or uint8 images of any size" in repr(predict)
  outputs = train.load(workdir).outputs
  np.testing.assert_array_equal(outputs(files)["logits"], outputs(np.asarray(data.val.inputs))["logits"])
  (tmp_path / "damaged.png").write_bytes(files[0].read_bytes()[:40])
  for wrong, message in (
    (pixels[0].astype(np.float32)[None], r"image 0 must be uint8 .* got float32"),
    ([one, one[..., :2]], r"image 1 must be uint8 .* 1, 3 or 4 channels, got uint8 \(17, 31, 2\)"),
    ([tmp_path / "damaged.png"], "damaged.png cannot be decoded"),
    ([tmp_path / "nowhere.png"], "nowhere.png cannot be decoded"),
    (str(files[0]), "must be a sequence of images, got a str"),
    (3, "must be a sequence of images, got a int"),
    ([], "must have at least one image, got none"),
  ):
    with pytest.raises(ValueError, match=message):
      predict(wrong)


@pytest.mark.thorough
def test_a_loaded_run_names_classes(trained, folder):
  workdir, data = trained
  file = workdir / "data.json"
  runs.reseal(file, {**runs.table(file), "class_names": ["cat", "dog"]})
  predict = train.load(workdir)
  inputs = np.asarray(data.val.inputs)
  best = np.asarray(predict(inputs)).argmax(-1)
  assert predict.class_names == ("cat", "dog")
  assert predict.classify(inputs) == [("cat", "dog")[label] for label in best]
  numbered = dataclasses.replace(predict, class_names=())
  assert numbered.classify(inputs) == [str(label) for label in best]


@pytest.mark.slow
def test_run_py_tells_an_image_that_a_worker_cannot_decode(noisy, tmp_path):
  file = tmp_path / "images" / "train" / "cat" / "000.PNG"
  file.write_bytes(file.read_bytes()[:40])
  arguments = [f"--config.{name}={value}" for name, value in FIELDS.items()]
  arguments += [f"--config.data.image_folder.path={tmp_path / 'images'}", "--config.epochs=1"]
  arguments += ["--config.data.stream.workers=1", "--workdir", tmp_path / "run"]
  status, out, err = runs.run(arguments, tmp_path, optimised=False)
  assert (status, out) == (1, "")
  assert runs.own_lines(err) == [
    f"run.py: error: {file} cannot be decoded (it is not a JPEG, PNG, GIF, BMP, WEBP, "
    "TIFF image); the job check-data finds all such images, and --config.data.skip_unreadable=True leaves "
    "them out"
  ]
  assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.thorough
def test_workers_are_no_part_of_what_a_run_is(folder, tmp_path):
  from jaxreg.train.run import workdir as workdirs

  one, other = (config_of(folder, {"data.stream.workers": number}) for number in (0, 3))
  description = load_data(one).describe()
  workdirs.claim(tmp_path / "run", flatten(one), description, 10)
  assert workdirs.check_same(tmp_path / "run", flatten(other), description) == {}
  with pytest.raises(RunError, match=r"data\.stream\.size was 6, is 7"):
    workdirs.check_same(tmp_path / "run", flatten(config_of(folder, {"data.stream.size": 7})), description)
