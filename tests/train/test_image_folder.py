"""Image files as people have them: formats, folders, orientations, transparency, shapes, and damaged ones."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import runs
from image_files import CLASSES, make_folder, noise, png
from PIL import Image

from jaxreg.train import cli
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.choices import flatten
from jaxreg.train.data import images, sources, undecodable
from jaxreg.train.data.image_folder import find_images
from jaxreg.train.data.images import Decoding
from jaxreg.train.errors import RunError
from jaxreg.train.finished.inputs import cropped
from jaxreg.train.jobs.check_data import check_data
from jaxreg.train.summary import summary


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  return tmp_path / "cache" / "jaxreg"


@pytest.fixture
def folder(tmp_path):
  return make_folder(tmp_path / "images")


def read(folder, **options):
  return sources.image_folder(path=str(folder), val="val", **options).decoded_by(size=6)


def config_of(folder, fields=None):
  given = {"data.name": "image_folder", "data.image_folder.path": str(folder), "data.subset.limit": 0}
  sizes = {"data.stream.size": 6, "batch_size": 8, "eval_batch_size": 8}
  return runs.make_config({**given, **sizes, "data.image_folder.val": "val", **(fields or {})})


def encoded(pixels, form, **options):
  file = io.BytesIO()
  Image.fromarray(pixels).save(file, form, **options)
  return file.getvalue()


# Images of 16 bits.


def depth_remarks(tmp_path, content):
  folder = make_folder(tmp_path / "images")
  for file in (folder / "train").rglob("*.*"):
    file.write_bytes(content)
  return [line for line in read(folder).remarks if "16 bits" in line]


@pytest.mark.parametrize(
  ("channels", "low", "high", "left"),
  [
    (1, 0, 255, 1),
    (3, 0, 255, 1),
    (2, 0, 4095, 16),
    (4, 0, 4095, 16),
    (1, 0, 15999, 63),
    (1, 30000, 30400, 2),
    (1, 0, 65535, 0),
    (3, 0, 40000, 0),
  ],
)
def test_unused_bits_of_16_are_told(tmp_path, channels, low, high, left):
  pixels = np.random.default_rng(0).integers(low, high, (60, 70, channels), np.uint16, endpoint=True)
  pixels[0, 0], pixels[..., channels - 1 :] = 65535, 65535 if channels in (2, 4) else pixels[..., -1:]
  remarks = depth_remarks(tmp_path, png(pixels))  # the hot pixel does not hide the others
  told = [int(re.search(r"about (\d+) of 256 levels", line)[1]) for line in remarks]
  assert told == ([pytest.approx(left, abs=2)] if left else [])


@pytest.mark.parametrize("val", ["val", ""])
def test_unused_bits_of_a_split_are_told(folder, val):
  for file in (folder / "val").rglob("*.*"):
    file.write_bytes(png(np.uint16(noise(0, 8, 8))))
  remarks = sources.image_folder(path=str(folder), val=val, test="val").remarks
  assert [line.partition(" of 16")[0] for line in remarks] == [
    *(["split val: 12 images"] if val else []),
    "split test: 12 images",
  ]


def test_bits_of_32_are_told(tmp_path):
  (line,) = depth_remarks(tmp_path, encoded(np.arange(240, dtype=np.int32).reshape(12, 20), "TIFF"))
  assert "lie within 256 of 65536" in line


def test_images_of_8_bits_in_files_of_16(data_dir):
  told = sources.image_folder(path=str(data_dir / "cases" / "img8in16"), validation_fraction=0.2).remarks
  assert any("the values of most lie within 256 of 65536" in line for line in told)


# Which files.


@pytest.mark.parametrize(
  ("suffix", "form", "exact"),
  [
    *((f".{name}", "JPEG", False) for name in ("jpg", "jpeg", "jpe", "jfif", "JPG")),
    *((f".{name}", "TIFF", True) for name in ("tif", "tiff", "TIF")),
    *((f".{form.lower()}", form, form != "WEBP") for form in ("PNG", "BMP", "GIF", "WEBP")),
  ],
)
def test_a_file_of_this_ending_is_read(folder, suffix, form, exact):
  pixels = np.full((8, 8, 3), 255, np.uint8)
  pixels[:4] = 0
  (folder / "train" / "cat" / f"zzz{suffix}").write_bytes(encoded(pixels, form))
  data = read(folder).decoded_by(size=7)
  assert len(data.train) == 41
  assert not data.remarks
  np.testing.assert_allclose(data.train.inputs.cut(20), pixels[:7, :7], rtol=0, atol=0 if exact else 20)


def test_nested_images_are_read_and_the_others_counted_by_their_reasons(folder, tmp_path):
  cat = folder / "train" / "cat"
  (cat / "a" / "b").mkdir(parents=True)
  (cat / "000.PNG").rename(cat / "a" / "b" / "000.PNG")
  (cat / "elsewhere").symlink_to(tmp_path / "others")
  (tmp_path / "others").mkdir()
  Image.fromarray(noise(0, 9, 9)).save(tmp_path / "others" / "x.png")
  (cat / "round").symlink_to(cat)
  for name in ("gone.png", "gone"):
    (cat / name).symlink_to(tmp_path / "nowhere")
  (cat / "itself.png").symlink_to("itself.png")
  os.mkfifo(cat / "pipe.png")
  for name in ("notes.txt", "more.TXT", "photo.heic", "README", "._000.png", ".DS_Store"):
    (cat / name).write_bytes(b"")
  (cat / ".thumbs").mkdir()
  (cat / ".thumbs" / "x.png").write_bytes(b"")
  (folder / "train" / "stray.png").write_bytes(b"")
  data = read(folder)
  assert [len(split) for split in data.splits().values()] == [41, 12, 12]
  assert np.bincount(data.train.labels).tolist() == [21, 20]
  reasons = Counter()
  assert len(find_images(cat, reasons)) == 21
  often = {"broken links": 3, ".txt": 2, "hidden": 2}
  once = (".heic", "without an ending", "pipes or devices", "links to a folder around them")
  assert reasons == often | dict.fromkeys(once, 1)
  [line] = data.remarks
  assert line.startswith(f"12 files in {folder / 'train'} are left out: 3 broken links, ")
  assert all(f"{number} {reason}" in line for reason, number in often.items())
  assert line.endswith("3 others")
  with pytest.warns(UserWarning, match="12 files in .* are left out: "):
    load_data(config_of(folder))


def test_a_folder_that_no_field_names_is_told(folder):
  (folder / "test").mkdir()
  [line] = read(folder).remarks
  assert line == (f"{folder} has test too, not read with train='train', val='val', test='val'")


def test_a_class_without_images_says_what_is_there_instead(folder):
  for split in ("train", "val"):
    (folder / split / "cow").mkdir()
    (folder / split / "cow" / "0.heic").write_bytes(b"")
  with pytest.raises(
    RunError, match=r"cow has no images; give \.bmp, .* and not these: 1 files in .*: 1 \.heic$"
  ):
    read(folder)


def test_the_names_of_the_classes_are_kept(folder):
  data = load_data(config_of(folder))
  assert data.describe().class_names == tuple(CLASSES)
  three = make_folder(folder.parent / "three", classes=("ant", "bee", "cow"))
  subset = load_data(config_of(three, {"data.subset.num_classes": 2}))
  kept = np.sort(np.random.default_rng(0).permutation(3)[:2])  # as the subset draws them
  assert subset.class_names == tuple(("ant", "bee", "cow")[k] for k in kept)


def test_a_class_of_one_image_is_named_with_the_remedy(folder):
  for file in list((folder / "train" / "dog").iterdir())[1:]:
    file.unlink()
  with pytest.raises(RunError) as caught:
    runs.read_source("image_folder", path=str(folder))
  assert "class 'dog' has a single training example" in str(caught.value)
  assert "add examples, leave the class out, or give a validation split of its own" in str(caught.value)


@pytest.mark.parametrize(
  ("fraction", "told"), [(0.01, "1 of 40"), (0.99, "40 of 40"), (2.0, "below 1, got 2.0")]
)
def test_a_fraction_that_fits_no_class_is_told_in_our_own_words(folder, fraction, told):
  with pytest.raises(RunError, match=r"^data\.validation_fraction: ") as caught:
    runs.read_source("image_folder", path=str(folder), validation_fraction=fraction)
  assert told in str(caught.value)
  assert "test_size" not in str(caught.value)


@pytest.mark.parametrize("val", ["val", ""])
def test_a_copy_of_the_training_images_is_refused_and_other_images_of_the_same_names_are_not(folder, val):
  shutil.rmtree(folder / "val")
  shutil.copytree(folder / "train", folder / "val")
  part = "val" if val else "test"
  with pytest.raises(RunError, match=rf"split {part}: it has the examples of the train split; give others$"):
    runs.read_source("image_folder", path=str(folder), val=val)
  # Files without compression have one size, whatever they show.
  for number, file in enumerate([*folder.rglob("*.png"), *folder.rglob("*.PNG")]):
    file.write_bytes(encoded(noise(number, 8, 8), "BMP"))
  data = runs.read_source("image_folder", path=str(folder), val=val)
  assert len(data.test) == 40


# What they show.


def turned(pixels, orientation):
  """The stored pixels of an upright image, by the table of the EXIF standard, in NumPy alone."""
  across = np.swapaxes(pixels, 0, 1)
  return {
    1: pixels,
    2: pixels[:, ::-1],
    3: pixels[::-1, ::-1],
    4: pixels[::-1],
    5: across,
    6: across[::-1],
    7: across[::-1, ::-1],
    8: across[:, ::-1],
  }[orientation]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_is_applied(form, orientation):
  pixels = np.kron(noise(1, 3, 5), np.ones((8, 8, 1), np.uint8))  # blocks, which JPEG keeps
  exif = Image.Exif()
  exif[274] = orientation
  options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}.get(form, {})
  stored = np.ascontiguousarray(turned(pixels, orientation))
  found = np.asarray(images.decode(encoded(stored, form, exif=exif, **options)))
  np.testing.assert_allclose(found, pixels, rtol=0, atol=4 if form == "JPEG" else 0)


@pytest.mark.parametrize(
  ("mode", "form"),
  [
    ("RGB", "JPEG"),
    ("CMYK", "JPEG"),
    ("RGBA", "WEBP"),
    ("P", "PNG"),
    ("PA", "TIFF"),
    ("YCbCr", "TIFF"),
    ("I;16", "PNG"),
    ("I", "TIFF"),
  ],
)
def test_an_opened_image_is_converted_as_its_file_and_stays(mode, form):
  exif = Image.Exif()
  exif[274] = 6
  image = Image.fromarray(np.kron(noise(1, 3, 5), np.ones((8, 8, 1), np.uint8)))
  if mode.startswith("I"):
    image = image.convert("L").convert("I").point(lambda grey: grey * 256)
  image = (image.convert("P") if mode == "PA" else image).convert(mode)
  file = io.BytesIO()
  image.save(file, form, exif=exif)
  opened, size = Image.open(file), Decoding(size=6)
  before = np.asarray(opened)
  expected = images.centre_crop(images.decode(file.getvalue()), size)
  np.testing.assert_array_equal(cropped([opened], size), [expected])
  np.testing.assert_array_equal(opened, before)


def test_an_image_of_floats_is_refused_by_its_number():
  with pytest.raises(ValueError, match=r"^inputs: image 0 cannot be decoded \(its pixels are not of 8 or 16"):
    cropped([Image.new("F", (8, 8))], Decoding(size=6))


def test_damaged_exif_leaves_the_image():
  pixels = np.full((8, 8, 3), 77, np.uint8)
  found = images.decode(encoded(pixels, "JPEG", exif=b"Exif\0\0MM\0*\0\0\xff\xff"))
  np.testing.assert_allclose(np.asarray(found), pixels, rtol=0, atol=2)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_black_drawing_on_nothing_shows_on_white(mode, channels):
  opacity = np.random.default_rng(0).integers(0, 256, (5, 7), np.uint8)
  drawing = np.zeros((5, 7, 4), np.uint8)
  drawing[..., 3] = opacity
  file = io.BytesIO()
  Image.fromarray(drawing).convert(mode).save(file, "PNG")
  found = np.asarray(images.decode(file.getvalue(), channels)).reshape(5, 7, -1)
  np.testing.assert_array_equal(found, np.repeat(255 - opacity[..., None], channels, axis=-1))
  kept = images.decode(file.getvalue(), 4)
  np.testing.assert_array_equal(np.asarray(kept)[..., 3], opacity)


@pytest.mark.parametrize(("bits", "expected"), [(2, [0, 255, 170, 255]), (4, [255, 11 * 17])])
def test_a_transparent_grey_of_few_bits_shows_white(bits, expected):
  pixels = np.full((1, 1, 1), 0b00011011, np.uint8)  # 0, 1, 2, 3, or 1, 11
  shown = images.decode(png(pixels, transparent=1, packed=8 // bits), 1)
  np.testing.assert_array_equal(shown, [expected])


def test_a_transparent_grey_of_16_bits_shows_white():
  grey = np.array([[0, 300, 65535]], np.uint16)
  file = io.BytesIO()
  Image.fromarray(grey).save(file, "PNG", transparency=300)
  np.testing.assert_array_equal(np.asarray(images.decode(file.getvalue(), 1)), [[0, 255, 255]])


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_pixels_of_32_bits_are_refused(dtype):
  with pytest.raises(ValueError, match="not of 8 or 16 bits"):
    images.decode(encoded(np.full((2, 2), 70_000, dtype), "TIFF"))


@pytest.mark.parametrize("shape", [(1, 300), (300, 1), (2, 40), (40, 3)])
def test_a_thin_image_is_cut_as_if_it_were_scaled_whole(shape):
  image = Image.fromarray(noise(2, *shape))
  scaled = [max(64, round(side * 64 / min(image.size))) for side in image.size]
  whole = np.asarray(image.resize(scaled, Image.Resampling.BILINEAR)).astype(int)
  left, top = ((side - 56) // 2 for side in scaled)
  found = images.centre_crop(image, Decoding(size=56))
  np.testing.assert_allclose(found, whole[top : top + 56, left : left + 56], rtol=0, atol=1)
  drawn = np.random.default_rng(3)
  drawn.integers(64, 65)
  left, top = (int(drawn.integers(side - 55)) for side in scaled)
  found = images.random_crop(np.random.default_rng(3), image, Decoding(size=56, sides=(64, 64)))
  found = found[:, ::-1] if drawn.random() < 0.5 else found
  np.testing.assert_allclose(found, whole[top : top + 56, left : left + 56], rtol=0, atol=1)


def test_a_very_thin_image_takes_little_memory():
  """Scaled whole, it has 1.1 GB."""
  code = (
    "import numpy as np, resource; from PIL import Image; from jaxreg.train.data import images\n"
    "image = Image.fromarray(np.zeros((6000, 1, 3), np.uint8))\n"
    "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
    "assert images.centre_crop(image, images.Decoding()).shape == (224, 224, 3)\n"
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
  )
  out = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, cwd=runs.ROOT, check=True
  )
  assert int(out.stdout) * 1024 < 100e6


# Images that cannot be decoded.


def damage(folder, *names):
  files = [folder / name for name in names]
  for file in files:
    file.write_bytes(file.read_bytes()[:40])
  return files


def test_unreadable_images_are_left_out_counted_and_named(folder, cache):
  damage(folder, "train/cat/003.png", "train/dog/000.PNG", "val/dog/002.PNG")
  whole = np.asarray(read(make_folder(folder.parent / "whole")).train.inputs)
  config = config_of(folder, {"data.skip_unreadable": True})
  with pytest.warns(
    UserWarning, match=r"4 images .*\(2 of train, 1 of val, 1 of test\) are left out; .*003\.png"
  ):
    data = load_data(config)
  assert [len(split) for split in data.splits().values()] == [38, 11, 11]
  kept = np.delete(np.arange(40), [3, 20])
  np.testing.assert_array_equal(np.asarray(data.train.inputs), whole[kept])
  np.testing.assert_array_equal(data.train.labels, np.repeat([0, 1], 20)[kept])
  assert len(list((cache / "unreadable").iterdir())) >= 2


def test_what_was_found_is_kept_until_a_file_changes(folder, monkeypatch):
  [file] = damage(folder, "train/cat/003.png")
  config = config_of(folder, {"data.skip_unreadable": True})
  assert len(load_data(config).train) == 39
  with monkeypatch.context() as patch:
    patch.setattr(undecodable, "in_chunks", lambda *_, **__: pytest.fail("they were read before"))
    assert len(load_data(config).train) == 39
  Image.fromarray(noise(0, 9, 9)).save(file)
  assert len(load_data(config).train) == 40


def test_an_error_of_the_system_may_pass_and_is_not_kept(folder, cache):
  file = folder / "train" / "cat" / "003.png"
  whole = file.read_bytes()
  data = read(folder)
  file.unlink()  # after the folder was listed
  assert list(undecodable.find_faults(data)["train"]) == [3]
  file.write_bytes(whole)
  assert undecodable.find_faults(data)["train"] == {}


def test_a_class_without_any_other_image_is_told(folder):
  damage(folder, *(f"train/dog/{file.name}" for file in (folder / "train" / "dog").iterdir()))
  with pytest.raises(RunError, match=r"no image of class 'dog' in the train split can be decoded"):
    load_data(config_of(folder, {"data.skip_unreadable": True}))


def test_without_the_option_nothing_is_read_before(folder, cache):
  damage(folder, "train/cat/003.png")
  assert len(load_data(config_of(folder)).train) == 40
  assert not cache.exists()


# The job.


def flags(folder, *more):
  config = config_of(folder)
  fields = {
    "data.name",
    "data.image_folder.path",
    "data.image_folder.val",
    "data.stream.size",
  }
  given = [f"--config.{field}={value}" for field, value in flatten(config).items() if field in fields]
  return [*given, "--config.batch_size=8", *more]


@pytest.mark.thorough
def test_the_command_takes_the_flags_of_a_training_run(folder, tmp_path):
  plain = cli.parse(flags(folder, "--workdir", str(tmp_path / "run")), runs.ROOT / "configs")
  call = cli.parse(["check-data", *flags(folder, "--workdir", str(tmp_path / "run"))], runs.ROOT / "configs")
  before = flatten(plain.config)
  changed = {field for field, value in flatten(call.config).items() if value != before[field]}
  assert changed == {"job"}
  assert call.config.job == "check_data"


def test_good_data_are_counted_and_nothing_is_written(folder, tmp_path):
  config = config_of(folder, {"job": "check_data"})
  results = check_data(config, tmp_path / "run")
  assert results["unreadable"] == 0
  assert results["sizes"] == {"train": 40, "val": 12, "test": 12}
  assert summary(results, config, tmp_path / "run").splitlines() == [
    "data.image_folder: 40 train, 12 val, 12 test examples; the labels are 2 classes: cat, dog",
    "64 images read; 0 of them cannot be decoded",
  ]
  assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_images_that_would_end_a_run_end_the_job(folder, tmp_path, capsys):
  files = damage(folder, "train/cat/003.png", "val/dog/002.PNG")
  with pytest.raises(
    RunError, match=r"^data: 2 of 64 images cannot be decoded, and 2 of them would end the run"
  ):
    check_data(config_of(folder, {"job": "check_data"}), tmp_path / "run")
  said = capsys.readouterr().err.splitlines()
  for file in files:
    assert [line for line in said if f"{file} cannot be decoded" in line]
  # Those that the run does not use do not end it, nor with the option.
  few = {"job": "check_data", "batch_size": 2, "data.subset.limit": 2, "data.skip_unreadable": False}
  few = config_of(folder, few)
  assert check_data(few, tmp_path / "run")["unreadable"] == 2
  results = check_data(config_of(folder, {"job": "check_data", "data.skip_unreadable": True}), tmp_path)
  assert (results["unreadable"], results["sizes"]["train"]) == (2, 39)


def test_every_check_reads_anew(folder, tmp_path):
  config = config_of(folder, {"job": "check_data"})
  file = folder / "train" / "cat" / "003.png"
  before, whole = file.stat(), file.read_bytes()
  assert check_data(config, tmp_path)["unreadable"] == 0
  file.write_bytes(bytes(len(whole)))
  os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # a disk that loses bits tells nobody
  with pytest.raises(RunError, match="1 of 64 images cannot be decoded"):
    check_data(config, tmp_path)


@pytest.mark.thorough
def test_the_program_checks_and_exits(folder, tmp_path):
  arguments = ["check-data", *flags(folder)]
  status, out, err = runs.run(arguments, tmp_path, optimised=False)
  assert (status, runs.own_lines(err)) == (0, [])
  assert "64 images read; 0 of them cannot be decoded" in out
  damage(folder, "val/dog/002.PNG")
  status, out, err = runs.run(arguments, tmp_path, optimised=False)
  assert (status, out) == (1, "")
  assert "1 of 64 images cannot be decoded, and 1 of them would end the run" in err
  assert not (tmp_path / "runs").exists()


def test_other_data_are_read_too(tmp_path):
  config = runs.make_config({"job": "check_data", "data.subset.limit": 0})
  results = check_data(config, tmp_path)
  assert summary(results, config, tmp_path) == (
    "data.digits: 1078 train, 359 val, 360 test examples; the labels are 10 classes"
  )
  json.dumps(results)


def test_several_labels_are_counted_as_such(tmp_path):
  fields = {"job": "check_data", "method.name": "binary", "data.digits.attributes": True}
  config = runs.make_config(fields)
  told = summary(check_data(config, tmp_path), config, tmp_path)
  assert "; the labels are 4 yes-or-no labels an example: " in told


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (
      {"method.name": "squared_error"},
      "method.name: the labels of the data are 10 classes, which need one of",
    ),
    (
      {"method.name": "softmax", "data.digits.attributes": True},
      "method.name: the labels of the data are 4 yes-or-no labels an example, which need one of",
    ),
    (
      {"method.name": "softmax", "data.name": "diabetes"},
      "method.name: the labels of the data are numbers, which need one of",
    ),
    ({"batch_size": 256}, "batch_size: must be at most the number of training examples, 128, got 256"),
  ],
)
def test_data_that_do_not_fit_the_run_end_the_job(fields, message, tmp_path):
  with pytest.raises(RunError, match=f"^{message}"):
    check_data(runs.make_config({"job": "check_data", **fields}), tmp_path)
