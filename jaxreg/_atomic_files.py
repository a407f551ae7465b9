"""Reads and writes files on a disk or in a bucket: a file stays whole, and nothing waits at a pipe.

A path is a `pathlib.Path` or an `etils.epath.Path`; one that begins with `gs://` leads into a bucket. Here is
what differs between the two. A disk needs a rename and a sync, while a bucket stores an object whole or not
at all. A bucket has no folders, and an append or a rename would copy the object.
"""

import concurrent.futures
import contextlib
import errno
import io
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

try:
  from lzma import LZMAError
except ImportError:  # some builds of Python lack it, and `zipfile` then refuses such archives
  LZMAError = zlib.error

SCHEME = "gs://"
UNPACKING = (zipfile.BadZipFile, zlib.error, LZMAError)  # raised for a damaged archive, besides OSError


def in_bucket(path: Any) -> bool:
  """Tells whether a path leads into a bucket."""
  return os.fspath(path).startswith(SCHEME)


def to_path(path: Any) -> Any:
  """Returns a path to read and write: of this machine, or in a bucket for `gs://BUCKET/FOLDER`."""
  if not in_bucket(path):
    return path if hasattr(path, "read_bytes") else Path(path)
  from jaxreg._bucket import bucket_path  # it needs packages of the extra `gcs`

  return bucket_path(path)


def absolute(path: Any) -> Any:
  """Returns the path from the root of the disk; a path in a bucket stays as it is."""
  return path if in_bucket(path) else type(path)(os.path.abspath(path))


def check_no_pipe(file: Any) -> None:
  """Checks that a file is no pipe or device: opening a pipe waits until another program opens it too."""
  # A path in a bucket does not exist here.
  if os.path.exists(file) and not os.path.isfile(file) and not os.path.isdir(file):
    raise OSError(f"{os.fspath(file)} is a pipe or a device, not a file")


def read_bytes(file: Any) -> bytes:
  """Reads a file that is no pipe or device."""
  check_no_pipe(file)
  return file.read_bytes()


def open_in_place(file: Any, mode: str) -> IO[Any]:
  """Opens a file of this disk to write in its place, unless it is a pipe, a device or a link."""
  check_no_pipe(file)
  try:
    return open(file, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))
  except OSError as error:
    if error.errno != errno.ELOOP:
      raise
    # A link may lead to any file of the user.
    raise OSError(f"{os.fspath(file)} is a link, not a file; remove it") from error


@contextlib.contextmanager
def replaced(file: Any) -> Iterator[BinaryIO]:
  """Opens a new binary file that takes the place of `file` once it is whole and stored.

  Whatever happens, `file` is either the old one or the new one. A link or a pipe in the place of the new file
  is removed first: a link may lead to any file of the user.
  """
  if in_bucket(file):
    content = io.BytesIO()
    yield content
    file.write_bytes(content.getvalue())
    return
  make_folder(file.parent)
  partial = file.with_name(file.name + ".partial")
  try:
    partial.unlink(missing_ok=True)
    with open(partial, "xb") as stream:
      yield stream
      stream.flush()
      os.fsync(stream.fileno())
    os.replace(partial, file)
  except BaseException:
    with contextlib.suppress(OSError):
      partial.unlink()
    raise
  sync(file.parent)


def write_bytes(file: Any, content: bytes) -> None:
  """Writes a file as `replaced` does."""
  with replaced(file) as stream:
    stream.write(content)


def write_text(file: Any, text: str, *, errors: str = "backslashreplace") -> None:
  r"""Writes a text in UTF-8 as `replaced` does.

  A file's name may have bytes that are not UTF-8. They are written as `\udc..`, or, with
  `errors="surrogateescape"`, as they are, so that the name still leads to its file.
  """
  write_bytes(file, text.encode(errors=errors))


def write_json(file: Any, value: object) -> None:
  """Writes JSON as `replaced` does."""
  write_text(file, json.dumps(value, indent=2) + "\n")


def write_figures(folder: Any, figures: Mapping[str, Any]) -> None:
  """Writes Matplotlib's figures into `folder` as `NAME.png`, each as `replaced` does."""
  for name, figure in figures.items():
    with replaced(folder / f"{name}.png") as stream:
      figure.savefig(stream, format="png", dpi=120)


def make_folder(folder: Any) -> None:
  """Makes a folder and its parents, and waits until they are on disk; a bucket needs none."""
  if in_bucket(folder):
    return
  missing = [each for each in (folder, *folder.parents) if not each.exists()]
  folder.mkdir(parents=True, exist_ok=True)
  for each in missing:
    sync(each.parent)


def files_below(folder: Any) -> dict[str, Any]:
  """Returns all files in a folder and in the folders below, by their path from `folder`, in order."""
  if in_bucket(folder):
    from jaxreg._bucket import object_names

    names = object_names(folder)
  else:
    names = [
      os.path.relpath(os.path.join(inner, name), folder)
      for inner, _, files in os.walk(folder)
      for name in files
    ]
  return {name: folder / name for name in sorted(names)}


def remove(path: Any) -> None:
  """Removes a file, or a folder with everything in it."""
  if in_bucket(path):
    for file in files_below(path).values():
      file.unlink(missing_ok=True)
    path.unlink(missing_ok=True)
  elif path.is_dir():
    shutil.rmtree(path)
  else:
    path.unlink(missing_ok=True)


def move_folder(folder: Any, target: Any) -> None:
  """Moves a folder into the place of another one; in a bucket this copies its objects."""
  if in_bucket(folder):
    for name, file in files_below(folder).items():
      (target / name).write_bytes(file.read_bytes())
    remove(folder)
    return
  make_folder(target.parent)
  if target.exists():
    shutil.rmtree(target)
  os.rename(folder, target)


def sync_all(folder: Any) -> None:
  """Waits until a folder and everything in it is stored, so that a power cut does not lose it."""
  if in_bucket(folder):
    return
  paths = [os.path.join(inner, name) for inner, _, files in os.walk(folder) for name in (*files, "")]
  # At the same time, because a disk then commits many files at once: 15 ms for 85 per checkpoint, measured.
  with concurrent.futures.ThreadPoolExecutor(8) as threads:
    list(threads.map(sync, paths))
  sync(folder.parent)


def sync(path: Any) -> None:
  """Waits until the contents of a file, or the names in a folder, are on disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  except OSError as error:
    # Some file systems, mostly network ones, cannot sync a folder and raise an error.
    if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not os.path.isdir(path):
      raise
  finally:
    os.close(descriptor)
