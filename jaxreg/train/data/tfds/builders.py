"""Prepares TFDS data sets: MNIST, CIFAR-10 and CIFAR-100 without TensorFlow, every other set with it.

TFDS's own classes read the files and encode the images through TensorFlow. The classes here inherit names,
versions, features, addresses and the order of the examples from them, so that TFDS can read their output.
"""

import contextlib
import difflib
import fcntl
import gzip
import hashlib
import importlib.util
import io
import os
import re
import shutil
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import requests
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core.download import checksums
from tensorflow_datasets.image_classification import cifar, mnist
from tqdm import tqdm

from jaxreg._extras import install
from jaxreg.train.errors import ArgumentError, RunError, one_line
from jaxreg.train.user_cache import user_cache

Example = tuple[int, dict[str, object]]


def prepare(name: str, config: str, version: str, root: Path, manual_dir: str) -> None:
  """Prepares a data set below `root`, wholly or not at all; it takes the arguments of the source `tfds`.

  `config` and `version` are "" for the default configuration and the current version.
  """
  manual = Path(manual_dir) if manual_dir else root / "downloads" / "manual"
  reference = "/".join(filter(None, (name, config))) + (f":{version}" if version else "")
  ours = BUILDERS.get(name)
  if ours and (config or (version and not ours.VERSION.match(version))):
    ours = None
  tfds.display_progress_bar(sys.stderr.isatty())
  try:
    if not ours:
      _check_possible(reference, name, root)
    with _one_process(reference, root):
      if ours:
        _prepare_ours(ours, root, manual, download=not manual_dir)
      else:
        # TFDS writes next to the data set's folder and renames, so an interrupted preparation leaves no data
        # set. If another process has prepared it by now, TFDS does nothing.
        with contextlib.redirect_stdout(sys.stderr):
          _write(tfds.builder(reference, data_dir=root), root / "downloads", manual)
  except RunError:
    raise
  except requests.RequestException as error:  # it is an OSError, but not of the disk
    # Without an answer, the message of requests and urllib3 is three lines about their own structure.
    reason = type(error).__name__ if error.response is None else one_line(error, limit=80)
    files = ", ".join(official.filename for official in ours.url_infos.values()) if ours else ""
    raise ArgumentError(
      "name",
      f"{reference} is not prepared in {root} and cannot be fetched ({reason}); "
      + (f"put {files} into {manual}, or " if ours else "")
      + f"run this on another machine, copy its {root / name} and set TFDS_DATA_DIR",
    ) from error
  except OSError as error:
    raise ArgumentError(
      "data_dir", f"{reference} cannot be prepared in {root} ({error}); make room or give another folder"
    ) from error
  except Exception as error:  # TFDS's builders are 245 programs, which can fail in any way
    raise ArgumentError("name", f"{reference} cannot be prepared in {root}: {one_line(error)}") from error


def _prepare_ours(builder_class: "Ours", root: Path, manual: Path, *, download: bool) -> None:
  name = builder_class.name
  final = root / name / str(builder_class.VERSION)
  if (final / "dataset_info.json").is_file():
    return
  if final.exists():
    raise ArgumentError("data_dir", f"{final} is there but holds no prepared data set; remove it")
  for url, info in (builder_class.url_infos or {}).items():
    if (manual / info.filename).is_file():
      _verify(manual / info.filename, url, info)
    elif download:
      _download(url, info, manual)
    else:
      raise ArgumentError("manual_dir", f"{manual} has no {info.filename}; put the file of {url} there")
  staging = root / f".preparing_{name}-{os.getuid()}"  # the lock keeps out the same user's processes only
  shutil.rmtree(staging, ignore_errors=True)  # a killed run may have left it
  try:
    tqdm.write(f"preparing {final}", file=sys.stderr)
    builder = builder_class(data_dir=staging)
    with contextlib.redirect_stdout(io.StringIO()):  # TFDS would name the staging folder
      _write(builder, staging / "downloads", manual)
    final.parent.mkdir(exist_ok=True)
    try:
      os.rename(builder.data_path, final)
    except OSError:
      if not (final / "dataset_info.json").is_file():  # another user has prepared it meanwhile
        raise
  finally:
    shutil.rmtree(staging, ignore_errors=True)


def _write(builder: tfds.core.DatasetBuilder, downloads: Path, manual: Path) -> None:
  """Lets TFDS write the set, in the one format that can be read without TensorFlow."""
  builder.download_and_prepare(
    download_dir=downloads,
    download_config=tfds.download.DownloadConfig(
      manual_dir=manual, force_checksums_validation=True, try_download_gcs=False
    ),
    file_format="array_record",
  )


def _download(url: str, info: checksums.UrlInfo, folder: Path) -> None:
  file = folder / str(info.filename)
  partial = file.with_name(f"{file.name}.part")
  folder.mkdir(parents=True, exist_ok=True)
  tqdm.write(f"downloading {url}", file=sys.stderr)
  try:
    with (
      requests.get(url, stream=True, timeout=30) as response,
      partial.open("wb") as out,
      tqdm(total=int(info.size), desc=file.name, unit="B", unit_scale=True, disable=None) as bar,
    ):
      response.raise_for_status()
      for block in response.iter_content(1 << 20):
        bar.update(out.write(block))
    _verify(partial, url, info)
    os.replace(partial, file)
  finally:
    partial.unlink(missing_ok=True)


def _verify(file: Path, url: str, info: checksums.UrlInfo) -> None:
  with file.open("rb") as stream:
    checksum = hashlib.file_digest(stream, "sha256").hexdigest()
  if checksum != info.checksum:
    raise ArgumentError(
      "manual_dir",
      f"{file} is not the official file: its SHA-256 is {checksum}, not {info.checksum}; remove it and fetch "
      f"it again from {url}",
    )


def _check_possible(reference: str, name: str, root: Path) -> None:
  """Checks that TFDS has the data set, and that TensorFlow is there to prepare it."""
  known = set(tfds.list_builders(with_community_datasets=False))
  versions = _prepared(root / name)
  if name not in known and not versions:
    known |= {folder.name for folder in root.glob("*") if _prepared(folder)}
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ArgumentError(
      "name", f"got {reference!r}, which is neither in {root} nor among TFDS's data sets{hint}"
    )
  if importlib.util.find_spec("tensorflow") is None:
    others = f" (of {name} there is {', '.join(versions)})" if versions else ""
    raise ArgumentError(
      "name",
      f"{reference} is not prepared in {root}{others}, and preparing it needs TensorFlow, once: "
      f"{install('prepare')} and run this again, here or on another machine; then copy its {root / name}",
    )


def _prepared(folder: Path) -> list[str]:
  """Lists the prepared versions of a data set, or its configurations with versions."""
  infos = [*folder.glob("*/dataset_info.json"), *folder.glob("*/*/dataset_info.json")]
  return sorted(str(info.parent.relative_to(folder)) for info in infos)


@contextlib.contextmanager
def _one_process(reference: str, root: Path) -> Iterator[None]:
  """Lets one of the user's processes prepare a set while the others wait; a killed one releases the lock."""
  locks = user_cache() / "locks"
  locks.mkdir(parents=True, exist_ok=True)
  where = zlib.crc32(str(root.resolve()).encode())
  with (locks / f"{re.sub(r'[^0-9A-Za-z]+', '-', reference)}-{where:08x}").open("w") as stream:
    fcntl.flock(stream, fcntl.LOCK_EX)
    yield


def _official_files(name: str) -> dict[str, checksums.UrlInfo]:
  """Returns each file's address, size, SHA-256 and name; TFDS's classes need `[prepare]` for that."""
  return checksums.load_url_infos(tfds.core.tfds_path(f"url_checksums/{name}.txt"))


# The classes are not registered, so that `tfds.builder(name)` stays TFDS's own.


class MNIST(mnist.MNIST, skip_registration=True):
  """`mnist`, from the four idx files."""

  url_infos = _official_files("mnist")

  def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterable[Example]]:
    files = dl_manager.download({info.filename: url for url, info in (self.url_infos or {}).items()})
    return {
      split: self._generate_examples(
        Path(files[f"{part}-images-idx3-ubyte.gz"]), Path(files[f"{part}-labels-idx1-ubyte.gz"])
      )
      for split, part in (("train", "train"), ("test", "t10k"))
    }

  def _generate_examples(self, images: Path, labels: Path) -> Iterator[Example]:
    # The files' checksums were verified, so the headers are known: 16 and 8 bytes.
    pixels = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16).reshape(-1, 28, 28)
    classes = np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)
    for index, (image, label) in enumerate(zip(pixels, classes, strict=True)):
      yield index, {"image": Image.fromarray(image), "label": int(label)}


class _Cifar:
  """The common part of CIFAR-10 and CIFAR-100: an archive with binary batches and the classes' names."""

  def _split_generators(self: Any, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterable[Example]]:
    official = self._cifar_info
    wanted = [*official.label_files, *official.train_files, *official.test_files]
    members = _read_members(dl_manager.download(official.url), [official.prefix + name for name in wanted])
    for key, file in zip(official.label_keys, official.label_files, strict=True):
      names = members[official.prefix + file].decode().split("\n")
      self.info.features[key].names = [name for name in names if name]
    return {
      split: self._generate_examples(f"{split}_", [members[official.prefix + name] for name in files])
      for split, files in (("train", official.train_files), ("test", official.test_files))
    }

  def _generate_examples(self: Any, prefix: str, batches: list[bytes]) -> Iterator[Example]:
    keys = self._cifar_info.label_keys
    # A record is a byte for each label, then the red, the green and the blue plane.
    records = np.frombuffer(b"".join(batches), np.uint8).reshape(-1, len(keys) + 3 * 32 * 32)
    for index, record in enumerate(records):
      image = record[len(keys) :].reshape(3, 32, 32).transpose(1, 2, 0)
      labels = {key: int(label) for key, label in zip(keys, record)}
      image = Image.fromarray(np.ascontiguousarray(image))
      yield index, {"id": f"{prefix}{index:05d}", "image": image, **labels}


class Cifar10(_Cifar, cifar.Cifar10, skip_registration=True):
  """`cifar10`, from the binary version of the archive."""

  url_infos = _official_files("cifar10")


class Cifar100(_Cifar, cifar.Cifar100, skip_registration=True):
  """`cifar100`, from the binary version of the archive."""

  url_infos = _official_files("cifar100")


Ours = type[MNIST] | type[Cifar10] | type[Cifar100]
BUILDERS = {"mnist": MNIST, "cifar10": Cifar10, "cifar100": Cifar100}


def _read_members(archive: Path, names: list[str]) -> dict[str, bytes]:
  """Reads files of a .tar.gz in one pass: going back to an earlier file would decompress all again."""
  contents = {}
  with tarfile.open(archive, "r|gz") as tar:
    for member in tar:
      if member.name in names and (stream := tar.extractfile(member)):
        contents[member.name] = stream.read()
  return contents
