"""Paths as people write them: `~/runs`, `file:///data`, `configs/dropmax_mnist.py:1k`."""

import re
import urllib.parse
from pathlib import Path

from jaxreg.train.errors import ArgumentError


def local_path(path: str | Path, argument: str) -> Path:
  """Returns the path that a person means: `~` is their home, and `file:///a` is `/a`.

  Errors name the `argument`.
  """
  text = str(path)
  scheme, colon, rest = text.partition(":/")
  if colon and scheme.isalnum() and len(scheme) > 1:
    if scheme.lower() != "file":
      raise ArgumentError(
        argument,
        f"got {text!r}, but only folders of this machine can be read and written; mount {scheme}:// "
        "there, for instance with gcsfuse or s3fs, or copy what is needed",
      )
    text = urllib.parse.unquote(f"/{rest.removeprefix('/localhost').lstrip('/')}")
  try:
    return Path(text).expanduser()
  except RuntimeError as error:
    raise ArgumentError(argument, f"got {text!r}, whose home folder is not known ({error})") from error


def split_variant(path: str) -> tuple[str, str, str]:
  """Splits `FILE[:VARIANT]` into file, colon and variant; the colon of `file://` does not count."""
  scheme = re.match(r"\w+://|file:/", path)
  start = scheme.end() if scheme else 0
  name, colon, variant = path[start:].partition(":")
  return path[:start] + name, colon, variant
