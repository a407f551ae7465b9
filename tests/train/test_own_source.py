"""A data source of one's own, `examples/image_lists.py`: what is drawn, what is left out, what is refused."""

import numpy as np
import pytest
import runs
from PIL import Image

from examples.image_lists import drawn_split
from jaxreg import train
from jaxreg.train import cli

NUMBERS = {"003.cat": 5, "056.dog": 7, "257.clutter": 4}
NAME = "examples.image_lists:drawn_split"


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


def names(split):
  return {split.inputs.store.name(number) for number in split.inputs.numbers}


@pytest.mark.parametrize("part", ["train", "test"])
def test_some_images_of_each_class_are_drawn_and_the_others_left(source, part):
  data = drawn_split(path=str(source), skip=("257.clutter",), **{part: 3}).checked()
  counts = {name: np.bincount(getattr(data, name).labels).tolist() for name in ("train", "test")}
  assert counts == {part: [3, 3], {"train": "test", "test": "train"}[part]: [2, 4]}
  assert (data.class_names, data.num_classes) == (("003.cat", "056.dog"), 2)
  together = names(data.train) | names(data.test)
  assert len(together) == 12
  assert not any("greg" in name or "clutter" in name for name in together)
  (line,) = data.remarks
  assert "3 files in" in line
  assert "in deeper folders" in line


def test_the_seed_and_the_class_alone_determine_the_draw(source):
  draw = lambda **options: drawn_split(path=str(source), test=2, **options).test
  one, again, fewer, other = draw(), draw(), draw(skip=("003.cat",)), draw(seed=1)
  assert names(one) == names(again) != names(other)
  assert names(fewer) == {name for name in names(one) if "003.cat" not in name}


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({}, "train or test, got 0 and 0"),
    ({"train": 2, "test": 2}, "train or test, got 2 and 2"),
    ({"path": "nowhere", "train": 2}, "give a folder, got 'nowhere'"),
    ({"train": 4}, "257.clutter has 4 images, give fewer than 4"),
    ({"train": 2, "skip": ("259.cow",)}, "has no folder '259.cow'"),
  ],
)
def test_a_mistake_is_told(source, options, message):
  with pytest.raises(train.RunError, match=message):
    drawn_split(**{"path": str(source), **options})


@pytest.mark.thorough
def test_a_run_names_it(source, tmp_path, light_runs):
  options = {"path": str(source), "train": 3, "skip": ("257.clutter",)}
  fields = {"data.name": NAME, **{f"data.drawn_split.{name}": value for name, value in options.items()}}
  fields |= {"data.stream.size": 6, "batch_size": 2, "epochs": 1, "method.name": "softmax"}
  call = cli.parse([f"--config.{name}={value}" for name, value in fields.items()], runs.ROOT / "configs")
  train.train(call.config, tmp_path / "run")
  predict = train.load(tmp_path / "run")
  assert (predict.class_names, predict.input_shape) == (("003.cat", "056.dog"), (6, 6, 3))
  assert predict.decoding is not None
