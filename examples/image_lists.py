"""A data source of your own: a folder of images for each class, divided into training and test by a draw.

python run.py --config configs/dropmax_awa2.py --config.data.name=examples.image_lists:drawn_split \\
  --config.data.drawn_split.path=Animals_with_Attributes2/JPEGImages --config.data.drawn_split.test=50
"""

import zlib
from collections import Counter
from pathlib import Path

import numpy as np

from jaxreg.train import Dataset, RunError
from jaxreg.train.data.image_folder import left_out_line, read_split


def drawn_split(
  *, path: str = "", train: int = 0, test: int = 0, skip: tuple[str, ...] = (), seed: int = 0
) -> Dataset:
  """Images in `path/CLASS/`, of which a draw by the seed and the class's name takes some for one split.

  Validation is the test split, so choose nothing on it.

  Args:
    path: the folder with a folder for each class; images in deeper folders are left out.
    train, test: the number of images of each class for one of the two splits; the other gets the rest.
    skip: folders that are no classes.
    seed: the seed of the draw.
  """
  folder, number = Path(path), train or test
  if not path or not folder.is_dir() or min(train, test) < 0 or bool(train) == bool(test):
    raise RunError(f"drawn_split: give a folder, got {path!r}, and train or test, got {train} and {test}")
  inside = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
  if unknown := {*skip} - {*inside}:
    raise RunError(f"drawn_split.skip: {folder} has no folder {min(unknown)!r}")
  classes = tuple(name for name in inside if name not in skip)
  left_out = Counter[str]()
  images = read_split("path", folder, classes, left_out)  # encoded, and decoded when a batch is made
  in_class = np.array([name.count(b"/") == 1 for name in images.inputs.store.names])
  left_out["in deeper folders"] += int((~in_class).sum())
  images = images.take(in_class)
  drawn = np.zeros(len(images), bool)
  for label, name in enumerate(classes):
    members = np.flatnonzero(images.labels == label)
    if len(members) <= number:
      raise RunError(f"drawn_split: {folder / name} has {len(members)} images, give fewer than {number}")
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    drawn[generator.permutation(members)[:number]] = True
  parts = images.take(drawn), images.take(~drawn)
  training, testing = parts if train else parts[::-1]
  remarks = (left_out_line(folder, +left_out),) if +left_out else ()
  return Dataset(training, testing, testing, len(classes), 255.0, class_names=classes, remarks=remarks)
