"""Paths as people write them: `~/runs`, `file:///data`, `gs://bucket/run`, `configs/dropmax_mnist.py:1k`."""

import os
import re
import urllib.parse
from pathlib import Path

from etils import epath

from jaxreg._atomic_files import SCHEME, to_path
from jaxreg.train.errors import ArgumentError
from jaxreg.train.staged import staged


def user_path(path: str | os.PathLike[str], argument: str) -> epath.Path:
  """Returns the path that a person means, which may be in a bucket; errors name the `argument`."""
  text = os.fspath(path)
  if not text.startswith(SCHEME):
    return epath.Path(local_path(text, argument))
  if not re.match(r"gs://[a-z0-9][-_.a-z0-9]+[a-z0-9](/|$)", text):
    raise ArgumentError(argument, f"must be gs://BUCKET/FOLDER, got {text!r}")
  try:
    return to_path(text.rstrip("/"))
  except ModuleNotFoundError as error:
    raise ArgumentError(argument, str(error)) from error


def local_path(path: str | os.PathLike[str], argument: str) -> Path:
  """Returns the path on this machine that a person means: `~` is their home, and `file:///a` is `/a`.

  What lies in a bucket is copied to this machine first. Errors name the `argument`.
  """
  text = os.fspath(path)
  if text.startswith(SCHEME):
    return staged(user_path(text, argument), argument)
  scheme, colon, rest = text.partition(":/")
  if colon and scheme.isalnum() and len(scheme) > 1:
    if scheme.lower() != "file":
      raise ArgumentError(argument, f"got {text!r}, but {_advice(scheme)}")
    text = urllib.parse.unquote(f"/{rest.removeprefix('/localhost').lstrip('/')}")
  try:
    return Path(text).expanduser()
  except RuntimeError as error:
    raise ArgumentError(argument, f"got {text!r}, whose home folder is not known ({error})") from error


def _advice(scheme: str) -> str:
  if scheme == "s3":
    return (
      "Orbax writes checkpoints to gs:// buckets only; give gs://BUCKET/FOLDER or a folder of this machine"
    )
  return (
    f"folders are of this machine or in a bucket, as gs://BUCKET/FOLDER; mount {scheme}:// here, or copy "
    "what is needed"
  )


def split_variant(path: str) -> tuple[str, str, str]:
  """Splits `FILE[:VARIANT]` into file, colon and variant; the colon of `file://` does not count."""
  scheme = re.match(r"\w+://|file:/", path)
  start = scheme.end() if scheme else 0
  name, colon, variant = path[start:].partition(":")
  return path[:start] + name, colon, variant
