"""Your own images: a folder for each split, which holds a folder for each class."""

import dataclasses
import os
from pathlib import Path

import numpy as np

from jaxreg.train.data.dataset import Dataset, Split
from jaxreg.train.data.images import Images
from jaxreg.train.data.subsets import hold_out
from jaxreg.train.errors import RunError
from jaxreg.train.files import local_path

SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclasses.dataclass(frozen=True)
class Files:
  """The image files of a folder.

  Attributes:
    folder: the folder of the split.
    names: the paths of the files below it, as bytes.
    sizes: the sizes of the files in bytes.
  """

  folder: str
  names: np.ndarray
  sizes: np.ndarray

  def read(self, number: int) -> bytes:
    with open(self._path(number), "rb") as stream:
      return stream.read()

  def name(self, number: int) -> str:
    return f"data.image_folder.path: {self._path(number)}"

  def fingerprint(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    return self.names[numbers].view(np.uint8), self.sizes[numbers]

  def _path(self, number: int) -> str:
    return os.path.join(self.folder, os.fsdecode(self.names[number]))


def image_folder(
  path: str = "",
  *,
  train: str = "train",
  val: str = "",
  test: str = "val",
  validation_fraction: float = 0.1,
) -> Dataset:
  """JPEG and PNG files, of 8 or 16 bits, in `path/<split>/<class>/`, decoded when a batch is made.

  The classes are the names of the folders in `path/<train>`, sorted; every split has the same.

  Args:
    path: the folder that holds the splits' folders.
    train, val, test: the names of the splits' folders.
    validation_fraction: without `val`, the fraction of `train` for validation, stratified, always the same.

  Raises:
    RunError: with the folder at fault and a remedy.
  """
  root = local_path(path, "data.image_folder.path")
  if not path or not root.is_dir():
    raise RunError(
      f"data.image_folder.path: got {path!r}, which is not a folder; give one with {train}/CLASS/*.jpg"
    )
  fields = {"train": train, "val": val, "test": test}
  folders = {field: root / name for field, name in fields.items() if name or field != "val"}
  for field in folders:
    if field != "train" and folders[field].resolve() == folders["train"].resolve():
      raise RunError(f"data.image_folder.{field}: must be another folder than train, got {fields[field]!r}")
  classes = {field: _classes(field, folder) for field, folder in folders.items()}
  for field, names in classes.items():
    differ = sorted({*names} ^ {*classes["train"]})
    if differ:
      where = folders["train" if differ[0] in classes["train"] else field]
      raise RunError(
        f"data.image_folder.{field}: {folders[field]} has other classes than {folders['train']}: "
        f"only {where} has {differ[0]!r}"
      )
  splits = {field: _split(field, folder, classes["train"]) for field, folder in folders.items()}
  if not val:
    where = "data.image_folder.validation_fraction"
    splits["train"], splits["val"] = hold_out(splits["train"], validation_fraction, where)
  train_split, val_split, test_split = (splits[field] for field in fields)
  return Dataset(train_split, val_split, test_split, num_classes=len(classes["train"]), scale=255.0)


def _classes(field: str, folder: Path) -> list[str]:
  if not folder.is_dir():
    raise RunError(f"data.image_folder.{field}: {folder} is not a folder; give the name of one")
  with os.scandir(folder) as entries:
    names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
  if len(names) < 2:
    raise RunError(
      f"data.image_folder.{field}: {folder} must have a folder per class, at least 2, got {names}"
    )
  return names


def _split(field: str, folder: Path, classes: list[str]) -> Split:
  names: list[bytes] = []
  sizes: list[int] = []
  labels: list[int] = []
  for label, name in enumerate(classes):
    with os.scandir(folder / name) as entries:
      files = sorted((entry.name, entry.stat().st_size) for entry in entries if _is_image(entry))
    if not files:
      raise RunError(
        f"data.image_folder.{field}: {folder / name} has no images; give {', '.join(SUFFIXES)} files"
      )
    names += [os.fsencode(os.path.join(name, file)) for file, _ in files]
    sizes += [size for _, size in files]
    labels += [label] * len(files)
  files = Files(str(folder), np.array(names), np.array(sizes, np.int64))
  return Split(Images(files, np.arange(len(names))), np.array(labels, np.int64))


def _is_image(entry: os.DirEntry[str]) -> bool:
  return entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".") and entry.is_file()
