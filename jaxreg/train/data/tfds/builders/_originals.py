"""The official files of a data set: finds or downloads them, and verifies them."""

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import requests
from tqdm import tqdm

from jaxreg._extras import install
from jaxreg.train.data.tfds.builders._builders import BUILDERS
from jaxreg.train.errors import RunError, one_line
from jaxreg.train.user_cache import user_cache


def originals(name: str, root: Path, manual_dir: str) -> Path:
  """The folder with all official files of `name`, with verified checksums.

  It is `manual_dir`, or TFDS's own folder for them below `root` if that has them all, or a folder in the
  user's cache, to which missing files are downloaded.
  """
  infos = BUILDERS[name].url_infos
  default = root / "downloads" / "manual"
  if manual_dir:
    folder = Path(manual_dir)
  elif all(_size(default / info.filename) == info.size for info in infos.values()):
    folder = default
  else:
    folder = user_cache() / "downloads" / name
    folder.mkdir(parents=True, exist_ok=True)
    for url, info in infos.items():
      if not (folder / info.filename).is_file():
        _download(url, info, folder / info.filename, name, root)
  for url, info in infos.items():
    _verify(folder / info.filename, url, info)
  return folder


def _verify(file: Path, url: str, info: Any) -> None:
  if not file.is_file():
    raise RunError(f"data.tfds.manual_dir: {file.parent} has no {file.name}; put the file of {url} there")
  if (checksum := _sha256(file)) != info.checksum:
    raise RunError(
      f"data.tfds.manual_dir: {file} is not the official file: its SHA-256 is {checksum}, not "
      f"{info.checksum}; remove it and fetch it again from {url}"
    )


def _sha256(file: Path) -> str:
  with file.open("rb") as stream:
    return hashlib.file_digest(stream, "sha256").hexdigest()


def _download(url: str, info: Any, file: Path, name: str, root: Path) -> None:
  partial = file.with_name(file.name + ".part")
  tqdm.write(f"downloading {url}", file=sys.stderr)
  try:
    with (
      requests.get(url, stream=True, timeout=30) as response,
      partial.open("wb") as out,
      tqdm(
        total=int(info.size), desc=file.name, unit="B", unit_scale=True, disable=not sys.stderr.isatty()
      ) as bar,
    ):
      response.raise_for_status()
      for block in response.iter_content(1 << 20):
        out.write(block)
        bar.update(len(block))
    if (checksum := _sha256(partial)) != info.checksum:
      raise RunError(
        f"data.tfds.name: the file from {url} is not the official one: its SHA-256 is {checksum}, not "
        f"{info.checksum}; run this again, or put the file into a folder and give "
        "--config.data.tfds.manual_dir=DIR"
      )
    os.replace(partial, file)
  except requests.RequestException as error:
    # Without an answer, the message of requests and urllib3 is three lines about their own structure.
    reason = type(error).__name__ if error.response is None else one_line(error)
    files = ", ".join(official.filename for official in BUILDERS[name].url_infos.values())
    raise RunError(
      f"data.tfds.name: {name} is not prepared in {root} and {url} cannot be fetched ({reason}); put {files} "
      "into a folder and give --config.data.tfds.manual_dir=DIR, or prepare it on another machine (with this "
      f"command, or with TFDS itself after {install('prepare')}), copy its {root / name} and set "
      "TFDS_DATA_DIR"
    ) from error
  finally:
    partial.unlink(missing_ok=True)


def _size(file: Path) -> int:
  return file.stat().st_size if file.is_file() else -1
