"""Writes files that stay whole, whatever happens meanwhile, and reads files with a check for damage."""

import contextlib
import errno
import hashlib
import json
import os
import re
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxreg.train.errors import RunError

SEAL = "seal"  # the name of the checksum in a table
DIGITS = 16  # of the 64 digits of a SHA-256: enough against accidents
DEPTH = 32  # of tables and lists within each other; Python's limit is at some hundreds


def write_json(file: Path, value: Any) -> None:
  """Writes JSON to disk such that the file is either the old one or the new one, whatever happens."""
  make_folder(file.parent)
  partial = file.with_name(file.name + ".partial")
  partial.unlink(missing_ok=True)  # a link there would be followed, and a pipe would wait
  try:
    with open(partial, "w") as stream:
      json.dump(value, stream, indent=2)
      stream.write("\n")
      stream.flush()
      os.fsync(stream.fileno())
    os.replace(partial, file)
  except OSError:
    with contextlib.suppress(OSError):
      partial.unlink()
    raise
  sync(file.parent)


def digest(value: Any) -> str:
  """The SHA-256 of a value as JSON; the layout and the order of fields do not matter."""
  return hashlib.sha256(json.dumps(json.loads(json.dumps(value)), sort_keys=True).encode()).hexdigest()


def sealed(table: Mapping[str, Any]) -> dict[str, Any]:
  """The table with a checksum of itself as its last field; the result stays plain JSON."""
  return {**table, SEAL: digest(table)[:DIGITS]}


def parse_json(text: str | bytes) -> Any:
  """The value of a JSON text.

  Raises:
    ValueError: if the text is not JSON, or is nested too deeply.
  """
  try:
    value = json.loads(text)
  except RecursionError:
    raise ValueError("it is nested too deeply") from None
  if isinstance(value, dict | list):
    _check_depth(value, DEPTH)
  return value


def parse_table(text: str | bytes, *, required: bool = False) -> dict[str, Any]:
  """The table of a JSON text, without its checksum.

  A table of an earlier version may have a checksum of all 64 digits or, unless `required`, no checksum.

  Raises:
    ValueError: if the text is not JSON, not a table, nested too deeply, or does not match its checksum.
  """
  table = parse_json(text)
  if not isinstance(table, dict):
    raise ValueError("it is not a table")
  seal = table.pop(SEAL, None)
  if (required or seal is not None) and seal not in (digest(table), digest(table)[:DIGITS]):
    raise ValueError("it does not match its own checksum")
  return table


def local_path(given: str | Path, field: str) -> Path:
  """The path that people mean: `~` is their home, and `file:///a` is `/a`.

  Raises:
    RunError: if the path is not on this machine; `field` names its field or flag.
  """
  text = str(given)
  scheme, colon, rest = text.partition(":/")
  if colon and scheme.isalnum() and len(scheme) > 1:
    if scheme.lower() != "file":
      raise RunError(
        f"{field}: got {text!r}, but only folders of this machine can be read and written; mount {scheme}:// "
        "there, for instance with gcsfuse or s3fs, or copy what is needed"
      )
    text = urllib.parse.unquote(f"/{rest.removeprefix('/localhost').lstrip('/')}")
  try:
    return Path(text).expanduser()
  except RuntimeError as error:
    raise RunError(f"{field}: got {text!r}, whose home folder is not known ({error})") from error


def split_variant(path: str) -> tuple[str, str, str]:
  """`FILE[:VARIANT]` as the file, the colon and the variant; the colon of `file://` is none."""
  scheme = re.match(r"\w+://|file:/", path)
  start = scheme.end() if scheme else 0
  name, colon, variant = path[start:].partition(":")
  return path[:start] + name, colon, variant


def _check_depth(value: Any, left: int) -> None:
  if not left:
    raise ValueError("it is nested too deeply")
  for inner in value.values() if isinstance(value, dict) else value:
    if isinstance(inner, dict | list):
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
