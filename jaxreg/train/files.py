"""Writes files that stay whole, whatever happens meanwhile, and reads files with a check for damage."""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from jaxreg.train.errors import ArgumentError, RunError

Json = str | float | None | list["Json"] | dict[str, "Json"]
Table = dict[str, Any]  # the content of a JSON file, or results for one
SEAL = "seal"  # the name of the checksum in a table
DIGITS = 16  # kept of the 64 digits of a SHA-256: enough against accidents
DEPTH = 32  # the deepest nesting of tables and lists; Python fails at some hundreds
# The folders that jobs make in a work directory.
FOLDERS = (
  *("checkpoints", "damaged_checkpoints", "manifests", "figures", "kept"),
  *("report", "rows", "search", "tensorboard"),
)


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


def no_link_or_pipe(path: str, flags: int) -> int:
  """An opener for `open` that follows no link and does not wait at a pipe."""
  return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def write_text(file: Path, text: str) -> None:
  """Writes a text in UTF-8 as `replaced` does."""
  with replaced(file) as stream:
    stream.write(text.encode())


def write_json(file: Path, value: object) -> None:
  """Writes JSON as `replaced` does."""
  write_text(file, json.dumps(value, indent=2) + "\n")


def write_figures(workdir: Path, figures: Mapping[str, Any]) -> None:
  """Writes Matplotlib's figures, by name, into `workdir/figures`, each as `replaced` does."""
  for name, figure in figures.items():
    with replaced(workdir / "figures" / f"{name}.png") as stream:
      figure.savefig(stream, format="png", dpi=120)


def check_no_links(workdir: Path) -> None:
  """Checks that no folder of `FOLDERS`, or below one, is a link; the work directory itself may be one."""
  for name in FOLDERS:
    top = workdir / name
    inner = (Path(place) / each for place, folders, _ in os.walk(top) for each in folders)
    for folder in itertools.chain([top], inner):
      if folder.is_symlink():
        raise RunError(
          f"--workdir: {folder} is a link, and nothing is written through it; put a folder there"
        )


def digest(value: object) -> str:
  """The SHA-256 of a value as JSON; the layout and the order of fields do not matter."""
  return hashlib.sha256(json.dumps(json.loads(json.dumps(value)), sort_keys=True).encode()).hexdigest()


def sealed(table: Mapping[str, object]) -> Table:
  """The table with a checksum of itself as its last field; the result stays plain JSON."""
  return {**table, SEAL: digest(table)[:DIGITS]}


def parse_table(text: str | bytes, *, required: bool = False) -> Table:
  """The table of a JSON text, without its checksum.

  A table of an earlier version may have a checksum of all 64 digits or, unless `required`, no checksum.
  """
  try:
    table = json.loads(text)
  except RecursionError:
    raise ValueError("it is nested too deeply") from None
  _check_depth(table, DEPTH)
  if not isinstance(table, dict):
    raise ValueError("it is not a table")
  seal = table.pop(SEAL, None)
  if (required or seal is not None) and seal not in (digest(table), digest(table)[:DIGITS]):
    raise ValueError("it does not match its own checksum")
  return table


def local_path(given: str | Path, field: str) -> Path:
  """The path that people mean: `~` is their home, and `file:///a` is `/a`; `field` is for errors."""
  text = str(given)
  scheme, colon, rest = text.partition(":/")
  if colon and scheme.isalnum() and len(scheme) > 1:
    if scheme.lower() != "file":
      raise ArgumentError(
        field,
        f"got {text!r}, but only folders of this machine can be read and written; mount {scheme}:// "
        "there, for instance with gcsfuse or s3fs, or copy what is needed",
      )
    text = urllib.parse.unquote(f"/{rest.removeprefix('/localhost').lstrip('/')}")
  try:
    return Path(text).expanduser()
  except RuntimeError as error:
    raise ArgumentError(field, f"got {text!r}, whose home folder is not known ({error})") from error


def split_variant(path: str) -> tuple[str, str, str]:
  """`FILE[:VARIANT]` as the file, the colon and the variant; the colon of `file://` does not count."""
  scheme = re.match(r"\w+://|file:/", path)
  start = scheme.end() if scheme else 0
  name, colon, variant = path[start:].partition(":")
  return path[:start] + name, colon, variant


def _check_depth(value: Json, left: int) -> None:
  if isinstance(value, dict | list):
    if not left:
      raise ValueError("it is nested too deeply")
    for inner in value.values() if isinstance(value, dict) else value:
      _check_depth(inner, left - 1)


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
