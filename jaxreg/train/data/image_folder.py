"""Your own images: a folder for each split, which holds a folder for each class."""

import dataclasses
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxreg.train.data.dataset import Dataset, Split, check_apart, unread_line
from jaxreg.train.data.images import SUFFIXES, Images, depth_remark
from jaxreg.train.data.subsets import hold_out
from jaxreg.train.errors import ArgumentError
from jaxreg.train.user_paths import local_path

MOST_REASONS = 5  # that a line names


@dataclasses.dataclass(frozen=True)
class Files:
  """The image files of a split."""

  folder: str  # of the split
  names: np.ndarray  # the paths of the files below it, as bytes
  sizes: np.ndarray  # in bytes
  times: np.ndarray  # when the files were last written, in nanoseconds

  def read(self, number: int) -> bytes:
    return Path(self.name(number)).read_bytes()

  def name(self, number: int) -> str:
    return os.path.join(self.folder, os.fsdecode(self.names[number]))

  def fingerprint(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    return self.names[numbers].view(np.uint8), self.sizes[numbers]

  def stamp(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    where = np.frombuffer(os.fsencode(os.path.realpath(self.folder)), np.uint8)
    return where, self.times[numbers], *self.fingerprint(numbers)


def image_folder(
  *,
  path: str = "",
  train: str = "train",
  val: str = "",
  test: str = "val",
  validation_fraction: float = 0.1,
) -> Dataset:
  """Reads image files in `path/<split>/<class>/`, at any depth, decoded when a batch is made.

  They are JPEG, PNG, GIF, BMP, WebP or TIFF files, and their names end as these usually do. Of 16 bits, the
  higher 8 are taken; a remark says so if the images leave the highest ones unused.
  The classes are the names of the folders in `path/<train>`, sorted; every split has the same. A remark
  counts the files that are left out.

  Args:
    path: the folder that holds the splits' folders.
    train, val, test: the names of the splits' folders.
    validation_fraction: without `val`, the fraction of `train` for validation.
  """
  root = local_path(path, "path")
  if not path or not root.is_dir():
    raise ArgumentError("path", f"got {path!r}, which is not a folder; give one with {train}/CLASS/*.jpg")
  fields = {"train": train, "val": val, "test": test}
  folders = {field: root / name for field, name in fields.items() if name or field != "val"}
  left_out = {field: Counter[str]() for field in folders}
  names: tuple[str, ...] = ()
  splits: dict[str, Split] = {}
  for field, folder in folders.items():
    if field != "train" and folder.resolve() == folders["train"].resolve():
      raise ArgumentError(field, f"must be another folder than train, got {fields[field]!r}")
    classes = _classes(field, folder, left_out[field])
    names = names or classes
    if differ := sorted({*classes} ^ {*names}):
      one = differ[0]
      where, others = (folders["train"], classes) if one in names else (folder, names)
      problem = f"{folder} has other classes than {folders['train']}: only {where} has {one!r}"
      # An accent may be a character of its own, as macOS writes it.
      for other in others:
        if unicodedata.normalize("NFC", other) == unicodedata.normalize("NFC", one):
          problem += f" as {one!a}, and the other has {other!a}; rename one"
      raise ArgumentError(field, problem)
    splits[field] = read_split(field, folder, names, left_out[field])
  depths = [depth_remark(x.inputs.encoded, len(x), f"split {field}: ") for field, x in splits.items()]
  check_apart(**splits)  # while the training split is whole
  if not val:
    splits["train"], splits["val"] = hold_out(splits["train"], validation_fraction, names)
  remarks = [left_out_line(folder, left_out[field]) for field, folder in folders.items()]
  return Dataset(
    *(splits[field] for field in fields),
    num_classes=len(names),
    scale=255.0,
    class_names=names,
    remarks=tuple(filter(None, [_unread(root, fields), *remarks, *depths])),
  )


def find_images(folder: Path, left_out: Counter[str]) -> list[tuple[str, os.stat_result]]:
  """Finds the image files below a folder: their sorted relative paths, and their properties.

  `left_out` counts the other files, by the reason why they are left out.
  """
  try:
    return sorted(_walk(folder, "", False, (), left_out))
  except OSError as error:
    raise ArgumentError("path", f"{folder} cannot be read ({error})") from error


def left_out_line(folder: Path, left_out: Counter[str]) -> str:
  """Returns a line on the files that are left out, or ""."""
  if not left_out:
    return ""
  most = left_out.most_common(MOST_REASONS)
  reasons = [f"{number} {reason}" for reason, number in most]
  if others := left_out.total() - sum(number for _, number in most):
    reasons.append(f"{others} others")
  return f"{left_out.total()} files in {folder} are left out: {', '.join(reasons)}"


def _walk(
  folder: Path | str, inside: str, hidden: bool, above: tuple[tuple[int, int], ...], left_out: Counter[str]
) -> Iterator[tuple[str, os.stat_result]]:
  """Yields the images below `folder`, which is `inside` the one where the search began.

  `hidden`: whether a folder on the way is. `above`: the folders on the way, which a link may lead back to.
  """
  here = os.stat(folder)
  above = (*above, (here.st_dev, here.st_ino))
  with os.scandir(folder) as entries:
    for entry in entries:
      path = os.path.join(inside, entry.name)
      veiled = hidden or entry.name.startswith(".")
      if _is_folder(entry):
        info = entry.stat()
        if (info.st_dev, info.st_ino) in above:
          left_out["links to a folder around them"] += 1
        else:
          yield from _walk(entry.path, path, veiled, above, left_out)
      elif reason := _why_not(entry, veiled):
        left_out[reason] += 1
      elif not veiled:
        yield path, entry.stat()


def _is_folder(entry: os.DirEntry[str]) -> bool:
  """Tells whether an entry is a folder; `is_dir` raises an error for a link to itself."""
  return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _why_not(entry: os.DirEntry[str], hidden: bool) -> str:
  """Says why a file is not read as an image; "" if it is, and for hidden files that are not images."""
  suffix = os.path.splitext(entry.name)[1].lower()
  if hidden:
    return "hidden" if suffix in SUFFIXES else ""
  if entry.is_symlink() and not os.path.exists(entry.path):
    return "broken links"
  if suffix not in SUFFIXES:
    return suffix or "without an ending"
  return "" if entry.is_file() else "pipes or devices"


def _classes(field: str, folder: Path, left_out: Counter[str]) -> tuple[str, ...]:
  if not folder.is_dir():
    raise ArgumentError(field, f"{folder} is not a folder; give the name of one")
  names = []
  with os.scandir(folder) as entries:
    for entry in entries:
      if _is_folder(entry):
        names += [] if entry.name.startswith(".") else [entry.name]
      elif not entry.name.startswith("."):
        left_out[_why_not(entry, False) or "outside the folders of the classes"] += 1
  if len(names) < 2:
    raise ArgumentError(field, f"{folder} must have a folder per class, at least 2, got {sorted(names)}")
  return tuple(sorted(names))


def read_split(field: str, folder: Path, classes: tuple[str, ...], left_out: Counter[str]) -> Split:
  """Reads the encoded images in `folder/CLASS` of each class; `left_out` counts other files by reason."""
  described: list[tuple[bytes, int, int, int]] = []
  for label, name in enumerate(classes):
    here = Counter[str]()
    files = find_images(folder / name, here)
    if not files:
      others = f", and not these: {line}" if (line := left_out_line(folder / name, here)) else ""
      raise ArgumentError(field, f"{folder / name} has no images; give {', '.join(SUFFIXES)} files{others}")
    left_out.update(here)
    for file, info in files:
      described.append((os.fsencode(os.path.join(name, file)), info.st_size, info.st_mtime_ns, label))
  names, sizes, times, labels = map(np.array, zip(*described, strict=True))
  return Split(Images(Files(str(folder), names, sizes, times), np.arange(len(names))), labels)


def _unread(root: Path, fields: dict[str, str]) -> str:
  """Returns a line that names the folders that no split is read from; "" if there are none."""
  named = {Path(name).parts[0] for name in fields.values() if name and Path(name).parts}
  with os.scandir(root) as entries:
    others = sorted(e.name for e in entries if _is_folder(e) and e.name not in named and e.name[0] != ".")
  return unread_line(str(root), others, fields)
