"""Prepares a data set by its name, wholly or not at all."""

import contextlib
import difflib
import fcntl
import importlib.util
import io
import os
import re
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import requests
import tensorflow_datasets as tfds
from tqdm import tqdm

from jaxreg._extras import install
from jaxreg.train.data.tfds.builders._builders import BUILDERS
from jaxreg.train.data.tfds.builders._originals import originals
from jaxreg.train.errors import RunError, one_line
from jaxreg.train.user_cache import user_cache


def prepare(name: str, config: str, version: str, root: Path, manual_dir: str) -> None:
  """Prepares a data set below `root`, wholly or not at all.

  Args:
    name: the name of the data set.
    config: one of its configurations, or "" for the default one.
    version: a version, or "" for the current one.
    root: TFDS's data directory.
    manual_dir: the folder that holds the official files. With "", they come from TFDS's own folder,
      `root/downloads/manual`, if it holds them, else from the network.
  """
  reference = "/".join(filter(None, (name, config))) + (f":{version}" if version else "")
  ours = BUILDERS.get(name)
  try:
    with _bars_on_terminals_only():
      if ours and not config and (not version or ours.VERSION.match(version)):
        _prepare_ours(name, root, manual_dir)
      else:
        _check_known(reference, name, root)
        _check_tensorflow(reference, name, root)
        _prepare_stock(reference, root, manual_dir)
  except RunError:
    raise
  except requests.RequestException as error:  # it is an OSError, but not of the disk
    raise RunError(
      f"data.tfds.name: {reference} cannot be downloaded ({one_line(error, limit=80)}); prepare it on a "
      f"machine with a network, copy its {root / name} and set TFDS_DATA_DIR"
    ) from error
  except OSError as error:
    raise RunError(
      f"data.tfds.data_dir: {reference} cannot be prepared in {root} ({error}); "
      "make room or give another folder (--config.data.tfds.data_dir=DIR)"
    ) from error
  except Exception as error:  # TFDS's builders are 245 programs, which can fail in any way
    raise RunError(f"data.tfds.name: {reference} cannot be prepared in {root}: {one_line(error)}") from error


def _prepare_ours(name: str, root: Path, manual_dir: str) -> None:
  builder_class = BUILDERS[name]
  final = root / name / str(builder_class.VERSION)
  staging = root / f".preparing_{name}-{os.getuid()}"  # the lock keeps out the same user's processes only
  with _one_process(name, root):
    if (final / "dataset_info.json").is_file():
      return
    if final.exists():
      raise RunError(f"data.tfds.data_dir: {final} is there but holds no prepared data set; remove it")
    shutil.rmtree(staging, ignore_errors=True)  # a killed run may have left it
    try:
      staging.mkdir(parents=True)  # before a long download, because `root` may not be writable
      files = originals(name, root, manual_dir)
      tqdm.write(f"preparing {final}", file=sys.stderr)
      builder = builder_class(data_dir=staging)
      with contextlib.redirect_stdout(io.StringIO()):  # TFDS would name the staging folder
        builder.download_and_prepare(
          download_dir=staging / "downloads",
          download_config=tfds.download.DownloadConfig(
            manual_dir=files, force_checksums_validation=True, try_download_gcs=False
          ),
          file_format="array_record",
        )
      final.parent.mkdir(exist_ok=True)
      try:
        os.rename(builder.data_path, final)
      except OSError:
        if not (final / "dataset_info.json").is_file():  # another user has prepared it meanwhile
          raise
    finally:
      shutil.rmtree(staging, ignore_errors=True)


def _prepare_stock(reference: str, root: Path, manual_dir: str) -> None:
  # TFDS writes beside the data set's folder and renames, so an interrupted preparation leaves no data set. If
  # another process has prepared it by now, TFDS does nothing.
  downloads = root / "downloads"  # TFDS's own place for them
  with _one_process(reference, root), contextlib.redirect_stdout(sys.stderr):
    tfds.builder(reference, data_dir=root).download_and_prepare(
      download_dir=downloads if downloads.is_dir() else user_cache() / "downloads",
      download_config=tfds.download.DownloadConfig(
        manual_dir=Path(manual_dir) if manual_dir else downloads / "manual",
        force_checksums_validation=True,
        try_download_gcs=False,
      ),
      file_format="array_record",
    )


def _check_known(reference: str, name: str, root: Path) -> None:
  known = set(tfds.list_builders(with_community_datasets=False))
  if name not in known and not _prepared(root / name):
    known |= {folder.name for folder in root.glob("*") if _prepared(folder)}
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise RunError(
      f"data.tfds.name: got {reference!r}, which is neither in {root} nor among TFDS's data sets{hint}"
    )


def _prepared(folder: Path) -> list[str]:
  """The prepared versions of a data set, or its configurations with versions."""
  infos = [*folder.glob("*/dataset_info.json"), *folder.glob("*/*/dataset_info.json")]
  return sorted(str(info.parent.relative_to(folder)) for info in infos)


def _check_tensorflow(reference: str, name: str, root: Path) -> None:
  if importlib.util.find_spec("tensorflow") is None:
    others = f" (of {name} there is {', '.join(_prepared(root / name))})" if _prepared(root / name) else ""
    # Not `tfds build`, which also needs Apache Beam.
    command = (
      "import tensorflow_datasets as tfds; "
      f"tfds.builder('{reference}', data_dir='{root}').download_and_prepare(file_format='array_record')"
    )
    raise RunError(
      f"data.tfds.name: {reference} is not prepared in {root}{others}, and preparing it needs TensorFlow, "
      f"once: {install('prepare')} and run this again, or on another machine and copy the folder: "
      f'python -c "{command}"'
    )


@contextlib.contextmanager
def _one_process(reference: str, root: Path) -> Iterator[None]:
  """Lets one of the user's processes prepare a set while the others wait; a killed one releases the lock."""
  locks = user_cache() / "locks"
  locks.mkdir(parents=True, exist_ok=True)
  where = zlib.crc32(str(root.resolve()).encode())
  with (locks / f"{re.sub(r'[^0-9A-Za-z]+', '-', reference)}-{where:08x}").open("w") as stream:
    fcntl.flock(stream, fcntl.LOCK_EX)
    yield


@contextlib.contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
  tfds.display_progress_bar(sys.stderr.isatty())
  try:
    yield
  finally:
    tfds.display_progress_bar(True)
