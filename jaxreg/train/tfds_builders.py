"""Preparing TFDS data sets: MNIST, CIFAR-10 and CIFAR-100 without TensorFlow, every other one with it.

TFDS's own builders read and encode images through TensorFlow. The three here are those same builders with
this one step replaced: names, versions, features, addresses, checksums and the order of the examples are
inherited, so that what they write is what TFDS reads.
"""

import contextlib
import difflib
import fcntl
import gzip
import hashlib
import importlib.util
import io
import os
import shutil
import sys
import tarfile
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

from jaxreg.train.errors import RunError
from jaxreg.train.tfds_source import one_line


def _official_files(name: str) -> Any:
  """Addresses, sizes, SHA-256 and names. TFDS's classes find them too, but with a package of `[prepare]`."""
  return checksums.load_url_infos(tfds.core.tfds_path(f"url_checksums/{name}.txt"))


# Registered as nothing: `tfds.builder(name)` stays TFDS's own.


class MNIST(mnist.MNIST, skip_registration=True):
  """`mnist`, from the four idx files."""

  url_infos: Any = _official_files("mnist")

  def _split_generators(self, dl_manager: Any) -> dict[str, Iterable[tuple[int, dict[str, Any]]]]:
    files = dl_manager.download({info.filename: url for url, info in self.url_infos.items()})
    return {
      split: self._generate_examples(
        files[f"{part}-images-idx3-ubyte.gz"], files[f"{part}-labels-idx1-ubyte.gz"]
      )
      for split, part in (("train", "train"), ("test", "t10k"))
    }

  def _generate_examples(self, images: Path, labels: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    # The files' checksums were verified, so the headers, of 16 and 8 bytes, are known.
    pixels = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16).reshape(-1, 28, 28)
    classes = np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)
    for index, (image, label) in enumerate(zip(pixels, classes, strict=True)):
      yield index, {"image": Image.fromarray(image), "label": int(label)}


class _Cifar:
  """What CIFAR-10 and CIFAR-100 share: an archive of binary batches and of the names of the classes."""

  def _split_generators(self: Any, dl_manager: Any) -> dict[str, Iterable[tuple[int, dict[str, Any]]]]:
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

  def _generate_examples(
    self: Any, prefix: str, batches: list[bytes]
  ) -> Iterator[tuple[int, dict[str, Any]]]:
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

  url_infos: Any = _official_files("cifar10")


class Cifar100(_Cifar, cifar.Cifar100, skip_registration=True):
  """`cifar100`, from the binary version of the archive."""

  url_infos: Any = _official_files("cifar100")


BUILDERS = {"mnist": MNIST, "cifar10": Cifar10, "cifar100": Cifar100}


def prepare(name: str, config: str, version: str, root: Path, manual_dir: str) -> None:
  """Prepares a data set below `root`, wholly or not at all.

  Args:
    name: of the data set.
    config: of its configurations, or "" for the default one.
    version: or "" for the current one.
    root: TFDS's data directory.
    manual_dir: the folder that has the official files, or "" for TFDS's own, `root/downloads/manual`, if
      they are there, else the network.

  Raises:
    RunError: naming the ways to get the data.
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
  except requests.RequestException as error:  # an OSError, but not of the disk
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
  downloads = root / "downloads" / name
  downloads.mkdir(parents=True, exist_ok=True)
  final = root / name / str(builder_class.VERSION)
  staging = root / f".preparing_{name}"
  with _one_process(downloads / ".lock"):
    if (final / "dataset_info.json").is_file():
      return
    if final.exists():
      raise RunError(f"data.tfds.data_dir: {final} is there but holds no prepared data set; remove it")
    originals = _originals(name, root, manual_dir)
    tqdm.write(f"preparing {final}", file=sys.stderr)
    shutil.rmtree(staging, ignore_errors=True)  # of a run that was killed
    try:
      builder = builder_class(data_dir=staging)
      with contextlib.redirect_stdout(io.StringIO()):  # TFDS would name the staging folder
        builder.download_and_prepare(
          download_dir=staging / "downloads",
          download_config=tfds.download.DownloadConfig(
            manual_dir=originals, force_checksums_validation=True, try_download_gcs=False
          ),
          file_format="array_record",
        )
      final.parent.mkdir(exist_ok=True)
      os.rename(builder.data_path, final)
    finally:
      shutil.rmtree(staging, ignore_errors=True)


def _prepare_stock(reference: str, root: Path, manual_dir: str) -> None:
  # TFDS writes beside the data set's folder and renames: what is interrupted is not there.
  with contextlib.redirect_stdout(sys.stderr):
    tfds.builder(reference, data_dir=root).download_and_prepare(
      download_config=tfds.download.DownloadConfig(
        manual_dir=Path(manual_dir).expanduser() if manual_dir else None, try_download_gcs=False
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
  """What is there of a data set: versions, or configurations with versions."""
  infos = [*folder.glob("*/dataset_info.json"), *folder.glob("*/*/dataset_info.json")]
  return sorted(str(info.parent.relative_to(folder)) for info in infos)


def _check_tensorflow(reference: str, name: str, root: Path) -> None:
  if importlib.util.find_spec("tensorflow") is None:
    others = f" (of {name} there is {', '.join(_prepared(root / name))})" if _prepared(root / name) else ""
    # Not `tfds build`, which needs Apache Beam too.
    command = (
      "import tensorflow_datasets as tfds; "
      f"tfds.builder('{reference}', data_dir='{root}').download_and_prepare(file_format='array_record')"
    )
    raise RunError(
      f"data.tfds.name: {reference} is not prepared in {root}{others}, and preparing it needs TensorFlow, "
      f"once: pip install 'jaxreg[prepare]' and run this again, or on another machine and copy the folder: "
      f'python -c "{command}"'
    )


def _originals(name: str, root: Path, manual_dir: str) -> Path:
  """The folder with all official files of `name`, downloaded if need be; their checksums are right."""
  infos = BUILDERS[name].url_infos
  default = root / "downloads" / "manual"
  if manual_dir:
    folder = Path(manual_dir).expanduser()
  elif all(_size(default / info.filename) == info.size for info in infos.values()):
    folder = default
  else:
    folder = root / "downloads" / name
    for url, info in infos.items():
      if not (folder / info.filename).is_file():
        _download(url, info, folder / info.filename, name, root)
  for url, info in infos.items():
    _verify(folder / info.filename, url, info)
  return folder


def _verify(file: Path, url: str, info: Any) -> None:
  if not file.is_file():
    raise RunError(f"data.tfds.manual_dir: {file.parent} has no {file.name}; put there the file of {url}")
  with file.open("rb") as stream:
    checksum = hashlib.file_digest(stream, "sha256").hexdigest()
  if checksum != info.checksum:
    raise RunError(
      f"data.tfds.manual_dir: {file} is not the official file: its SHA-256 is {checksum}, not "
      f"{info.checksum}; remove it and fetch it again from {url}"
    )


def _download(url: str, info: Any, file: Path, name: str, root: Path) -> None:
  partial = file.with_name(file.name + ".part")
  tqdm.write(f"downloading {url}", file=sys.stderr)
  try:
    with (
      requests.get(url, stream=True, timeout=30) as response,
      partial.open("wb") as out,
      _bar(file.name, int(info.size)) as bar,
    ):
      response.raise_for_status()
      for block in response.iter_content(1 << 20):
        out.write(block)
        bar.update(len(block))
    _verify(partial, url, info)
    os.replace(partial, file)
  except requests.RequestException as error:
    # Without an answer, requests and urllib3 tell three lines of their own structure.
    reason = type(error).__name__ if error.response is None else one_line(error)
    files = ", ".join(official.filename for official in BUILDERS[name].url_infos.values())
    raise RunError(
      f"data.tfds.name: {name} is not prepared in {root} and {url} cannot be fetched ({reason}); put {files} into a folder and give "
      "--config.data.tfds.manual_dir=DIR, or prepare it on another machine (with this command, or with TFDS "
      f"itself after pip install 'jaxreg[prepare]'), copy its {root / name} and set TFDS_DATA_DIR"
    ) from error
  finally:
    partial.unlink(missing_ok=True)


def _bar(name: str, size: int) -> Any:
  return tqdm(total=size, desc=name, unit="B", unit_scale=True, disable=not sys.stderr.isatty())


def _size(file: Path) -> int:
  return file.stat().st_size if file.is_file() else -1


def _read_members(archive: Path, names: list[str]) -> dict[str, bytes]:
  """These files of a .tar.gz, in one pass: going back to an earlier one would decompress all again."""
  found = {}
  with tarfile.open(archive, "r|gz") as tar:
    for member in tar:
      if member.name in names and (stream := tar.extractfile(member)):
        found[member.name] = stream.read()
  return found


@contextlib.contextmanager
def _one_process(lock: Path) -> Iterator[None]:
  """Of several processes, the first does the work and the others wait; a killed one holds nothing up."""
  with lock.open("w") as stream:
    fcntl.flock(stream, fcntl.LOCK_EX)
    yield


@contextlib.contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
  tfds.display_progress_bar(sys.stderr.isatty())
  try:
    yield
  finally:
    tfds.display_progress_bar(True)
