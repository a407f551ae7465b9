"""Splitting a folder of images: what is drawn, what is left out, what is refused."""

import os
import re

import numpy as np
import pytest
from PIL import Image

from jaxreg.train.data import image_lists as split_images
from jaxreg.train.data import sources
from jaxreg.train.errors import RunError

NUMBERS = {"003.cat": 5, "056.dog": 7, "257.clutter": 4}


@pytest.fixture
def source(tmp_path):
  """Folders of images of different sizes, with what such archives have beside them."""
  for label, (name, number) in enumerate(NUMBERS.items()):
    folder = tmp_path / "archive" / name
    folder.mkdir(parents=True)
    for i in range(number):
      pixels = np.full((6 + i, 9, 3), 10 * label, np.uint8)
      Image.fromarray(pixels).save(folder / f"{i:04}.{'JPG' if i % 2 else 'png'}")
  (tmp_path / "archive" / "056.dog" / "greg").mkdir()
  (tmp_path / "archive" / "056.dog" / "greg" / "more.jpg").write_bytes(b"not looked at")
  (tmp_path / "archive" / "056.dog" / ".0001.jpg").write_bytes(b"hidden")
  (tmp_path / "archive" / "056.dog" / "RENAME2").write_bytes(b"a script")
  return tmp_path / "archive"


def names(folder):
  return {part.name: {of.name: sorted(os.listdir(of)) for of in part.iterdir()} for part in folder.iterdir()}


@pytest.mark.parametrize("part", ["train", "test"])
def test_so_many_of_each_class_and_the_others(source, tmp_path, part):
  other = {"train": "test", "test": "train"}[part]
  with pytest.warns(UserWarning, match=r"3 files in .* are left out: (1 [a-z ]+(, |$)){3}"):
    counts = split_images.split_images(source, tmp_path / "out", skip=["257.clutter"], **{part: 3})
  found = names(tmp_path / "out")
  assert counts == tuple(sum(map(len, found[side].values())) for side in ("train", "test"))
  assert set(found["train"]) == set(found["test"]) == {"003.cat", "056.dog"}
  for name in found["train"]:
    assert len(found[part][name]) == 3
    together = sorted(found["train"][name] + found["test"][name])
    assert together == [f"{i:04}.{'JPG' if i % 2 else 'png'}" for i in range(NUMBERS[name])]
    for file in found[other][name]:
      assert (tmp_path / "out" / other / name / file).read_bytes() == (source / name / file).read_bytes()


def test_the_draw_is_of_the_seed_and_of_the_class_alone(source, tmp_path):
  draw = lambda out, **options: split_images.split_images(source, tmp_path / out, test=2, **options)
  draw("one")
  draw("again")
  draw("fewer", skip=["003.cat"])
  draw("other", seed=1)
  one, again, fewer, other = (names(tmp_path / out) for out in ("one", "again", "fewer", "other"))
  assert one == again
  assert one != other
  assert fewer["test"] == {name: files for name, files in one["test"].items() if name != "003.cat"}


def test_the_image_folder_reads_it(source, tmp_path):
  split_images.split_images(source, tmp_path / "out", train=3, skip=["257.clutter"])
  data = sources.image_folder(path=str(tmp_path / "out"), val="test", test="test").checked()
  assert np.bincount(data.train.labels).tolist() == [3, 3]
  assert np.bincount(data.test.labels).tolist() == [2, 4]
  assert data.num_classes == 2


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ([], "--train, --test: give one of them"),
    (["--train=2", "--test=2"], "--train, --test: give one of them"),
    (["--train=4"], "257.clutter: has 4 images, and more than 4 are needed"),
    (["--train=2", "--skip=259.cow"], "--skip: .* has no folder '259.cow'"),
    (["--train=2", "--skip=003.cat", "--skip=056.dog"], r"at least 2, got \['257.clutter'\]"),
    (["--train=2", "--seed=-1"], "--seed: must be at least 0, got -1"),
  ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(source, tmp_path, capsys, arguments, message):
  before = sorted(tmp_path.rglob("*"))
  assert split_images.main([str(source), str(tmp_path / "out"), *arguments]) == 1
  error = capsys.readouterr().err
  assert error.startswith("split_images: error: ")
  assert error.count("\n") == 1
  assert re.search(message, error)
  assert sorted(tmp_path.rglob("*")) == before


def test_what_is_there_is_left_alone(source, tmp_path):
  with pytest.raises(RunError, match="is not a folder"):
    split_images.split_images(tmp_path / "nowhere", tmp_path / "out", train=1)
  (tmp_path / "out").mkdir()
  with pytest.raises(RunError, match="is there already"):
    split_images.split_images(source, tmp_path / "out", train=1)


def test_the_command(source, tmp_path, capsys):
  arguments = [str(source), str(tmp_path / "new" / "out"), "--train=3", "--skip=257.clutter"]
  assert split_images.main(arguments) == 0
  said = capsys.readouterr()
  assert said.out == "6 images for training, 6 for testing\n"
