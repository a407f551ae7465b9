"""Splits a folder that holds a folder of images for each class into `train` and `test` for `image_folder`.

python -m jaxreg.train.data.image_lists SOURCE TARGET (--train N | --test N) [--skip CLASS ...] [--seed S]
"""

import argparse
import os
import sys
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import numpy as np

from jaxreg.train.data.image_folder import find_images, left_out_line
from jaxreg.train.errors import RunError, printable


def split_images(
  source: Path, target: Path, *, train: int = 0, test: int = 0, skip: Collection[str] = (), seed: int = 0
) -> tuple[int, int]:
  """Fills `target/train/CLASS` and `target/test/CLASS` with links to the images in `source/CLASS`.

  The seed, the name of the class and the names of its files determine which images are drawn.
  The new folder is made wholly or not at all. Anything but images is left out, and a warning counts it. Give
  either `train` or `test`, the number of images of each class for it; the other gets the rest. `skip` names
  classes to leave out. Returns the numbers of images for training and for testing.
  """
  if min(train, test) < 0 or (train > 0) == (test > 0):
    raise RunError(f"--train, --test: give one of them, a number above 0, got {train} and {test}")
  if seed < 0:
    raise RunError(f"--seed: must be at least 0, got {seed}")
  if target.exists():
    raise RunError(f"{target}: is there already; give a new folder, or remove it")
  classes = _classes(source, skip)
  left_out = Counter[str]()
  chosen = {name: _draw(source / name, train or test, seed, left_out) for name in classes}
  if line := left_out_line(source, left_out):
    warnings.warn(line, stacklevel=2)
  parts = ("train", "test") if train else ("test", "train")
  target.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as staging:
    done = Path(staging) / target.name
    for name, pair in chosen.items():
      for part, files in zip(parts, pair):
        folder = done / part / name
        folder.mkdir(parents=True)
        for file in files:
          (folder / file).symlink_to((source / name / file).resolve())
    os.rename(done, target)
  count = {part: sum(len(pair[i]) for pair in chosen.values()) for i, part in enumerate(parts)}
  return count["train"], count["test"]


def _classes(source: Path, skip: Collection[str]) -> list[str]:
  if not source.is_dir():
    raise RunError(f"{source}: is not a folder; give one with a folder per class")
  found = sorted(entry.name for entry in source.iterdir() if entry.is_dir() and entry.name[0] != ".")
  if missing := [name for name in skip if name not in found]:
    raise RunError(f"--skip: {source} has no folder {missing[0]!r}")
  classes = [name for name in found if name not in skip]
  if len(classes) < 2:
    raise RunError(f"{source}: must have a folder per class, at least 2, got {classes}")
  return classes


def _draw(folder: Path, number: int, seed: int, left_out: Counter[str]) -> tuple[list[str], list[str]]:
  """`number` of the images in `folder`, drawn, and the others."""
  found = [file for file, _ in find_images(folder, left_out)]
  images = [file for file in found if os.sep not in file]
  if len(images) < len(found):
    left_out["in deeper folders"] += len(found) - len(images)
  if len(images) <= number:
    raise RunError(f"{folder}: has {len(images)} images, and more than {number} are needed")
  order = np.random.default_rng([seed, zlib.crc32(folder.name.encode())]).permutation(len(images))
  return [images[i] for i in order[:number]], [images[i] for i in order[number:]]


def main(argv: list[str]) -> int:
  """Splits as the arguments say; returns the exit status."""
  parser = argparse.ArgumentParser(prog="split_images", description=(__doc__ or "").splitlines()[0])
  parser.add_argument("source", type=Path)
  parser.add_argument("target", type=Path)
  parser.add_argument("--train", type=int, default=0, help="images of each class for training")
  parser.add_argument("--test", type=int, default=0, help="images of each class for testing, without --train")
  parser.add_argument("--skip", action="append", default=[], metavar="CLASS", help="a folder to leave out")
  parser.add_argument("--seed", type=int, default=0)
  try:
    train, test = split_images(**vars(parser.parse_args(argv)))
  except (RunError, OSError) as error:
    print(f"split_images: error: {printable(str(error))}", file=sys.stderr)
    return 1
  print(f"{train} images for training, {test} for testing")
  return 0


if __name__ == "__main__":
  warnings.formatwarning = lambda message, *_, **__: f"split_images: warning: {printable(str(message))}\n"
  sys.exit(main(sys.argv[1:]))
