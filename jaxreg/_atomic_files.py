"""Writes files that stay whole, whatever happens meanwhile, and waits until they are on disk."""

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO


@contextlib.contextmanager
def replaced(file: Path) -> Iterator[BinaryIO]:
  """Opens a new binary file that takes the place of `file` once it is whole on disk.

  Whatever happens, `file` is either the old one or the new one. A link or a pipe in its place is replaced:
  people pass work directories on, and a link may name any file of the user.
  """
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


def write_bytes(file: Path, content: bytes) -> None:
  """Writes a file as `replaced` does."""
  with replaced(file) as stream:
    stream.write(content)


def write_text(file: Path, text: str) -> None:
  """Writes a text in UTF-8 as `replaced` does."""
  write_bytes(file, text.encode())


def write_json(file: Path, value: object) -> None:
  """Writes JSON as `replaced` does."""
  write_text(file, json.dumps(value, indent=2) + "\n")


def write_figures(folder: Path, figures: Mapping[str, Any]) -> None:
  """Writes Matplotlib's figures into `folder` as `NAME.png`, each as `replaced` does."""
  for name, figure in figures.items():
    with replaced(folder / f"{name}.png") as stream:
      figure.savefig(stream, format="png", dpi=120)


def no_link_or_pipe(path: str, flags: int) -> int:
  """Opens a file for `open(opener=...)`, without following a link or waiting at a pipe."""
  return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def make_folder(folder: Path) -> None:
  """Makes a folder and its parents, and waits until they are on disk."""
  missing = [each for each in (folder, *folder.parents) if not each.exists()]
  folder.mkdir(parents=True, exist_ok=True)
  for each in missing:
    sync(each.parent)


def sync_all(folder: Path) -> None:
  """Waits until a folder and everything in it is on disk, so that a power cut does not lose it."""
  for path in folder.rglob("*"):
    sync(path)
  sync(folder)
  sync(folder.parent)


def sync(path: Path) -> None:
  """Waits until the contents of a file, or the names in a folder, are on disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  except OSError as error:
    # Some file systems, mostly network ones, cannot sync a folder and raise an error.
    if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
      raise
  finally:
    os.close(descriptor)
