"""TFDS's builders of MNIST, CIFAR-10 and CIFAR-100, without the one step that needs TensorFlow.

TFDS's own classes read the files and encode the images through TensorFlow. The classes here inherit names,
versions, features, addresses and the order of the examples from them, so that TFDS can read their output.
"""

import gzip
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core.download import checksums
from tensorflow_datasets.image_classification import cifar, mnist


def _official_files(name: str) -> Any:
  """Addresses, sizes, SHA-256 and names of the files; TFDS's classes need a package of `[prepare]` here."""
  return checksums.load_url_infos(tfds.core.tfds_path(f"url_checksums/{name}.txt"))


# The classes are not registered, so that `tfds.builder(name)` stays TFDS's own.


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
    # The files' checksums were verified, so the headers are known: 16 and 8 bytes.
    pixels = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16).reshape(-1, 28, 28)
    classes = np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)
    for index, (image, label) in enumerate(zip(pixels, classes, strict=True)):
      yield index, {"image": Image.fromarray(image), "label": int(label)}


class _Cifar:
  """The common part of CIFAR-10 and CIFAR-100: an archive with binary batches and the classes' names."""

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


def _read_members(archive: Path, names: list[str]) -> dict[str, bytes]:
  """Files of a .tar.gz, read in one pass: going back to an earlier file would decompress all again."""
  found = {}
  with tarfile.open(archive, "r|gz") as tar:
    for member in tar:
      if member.name in names and (stream := tar.extractfile(member)):
        found[member.name] = stream.read()
  return found
