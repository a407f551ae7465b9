"""TFDS sets read and prepared without TensorFlow, held against TFDS itself and the official files."""

import fcntl
import functools
import gzip
import hashlib
import importlib.util
import io
import itertools
import json
import os
import re
import shutil
import socket
import sys
import tarfile
import time
import types
from pathlib import Path

import numpy as np
import pytest
import requests
import runs
import tensorflow_datasets
from PIL import Image
from tensorflow_datasets.core.download.checksums import UrlInfo

from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.data import sources
from jaxreg.train.data.subsets import Subset
from jaxreg.train.data.tfds import builders as tfds_builders
from jaxreg.train.data.tfds import records as tfds_records
from jaxreg.train.errors import RunError

CIFAR10 = "cifar10/3.0.2"
SMALL = {"train": "train[:200]", "test": "test[:50]"}
MNIST_FILES = (
  "train-images-idx3-ubyte",
  "train-labels-idx1-ubyte",
  "t10k-images-idx3-ubyte",
  "t10k-labels-idx1-ubyte",
)


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
  """No address resolves; and what falls back to the home folder falls into the test's."""

  def refuse(host, *_, **__):
    raise socket.gaierror(f"no network in tests: {host}")

  monkeypatch.setattr(socket, "getaddrinfo", refuse)
  for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "TFDS_DATA_DIR"):
    monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(name.lower(), raising=False)
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


@pytest.fixture
def root(data_dir, tmp_path):
  """A data directory of our own with the prepared sets, whose files may be replaced."""
  for folder in (CIFAR10, "mnist/3.0.1"):
    (tmp_path / "tfds" / folder).mkdir(parents=True)
    for file in (data_dir / "tfds" / folder).iterdir():
      if file.is_file():
        shutil.copyfile(file, tmp_path / "tfds" / folder / file.name)
  return tmp_path / "tfds"


def fails(*mentions, **options):
  """Calls the source, which must fail in one line that has all `mentions`."""
  with pytest.raises(RunError) as caught:
    runs.read_source("tfds", **options)
  message = str(caught.value)
  assert "\n" not in message
  assert message.startswith(("data.tfds", "data.subset", "data.validation_fraction"))
  for mention in mentions:
    assert str(mention) in message, message


def assert_same(ours, theirs):
  """A split has the images and labels, in their order, of a data source of TFDS."""
  assert len(ours) == len(theirs)
  for image, label, example in zip(ours.inputs, ours.labels, theirs, strict=True):
    np.testing.assert_array_equal(image, example["image"])
    assert label == example["label"]


def assert_equal(one, other):
  for name, split in one.splits().items():
    np.testing.assert_array_equal(split.inputs, other.splits()[name].inputs)
    np.testing.assert_array_equal(split.labels, other.splits()[name].labels)


@pytest.fixture
def decoded(monkeypatch):
  """The splits that were decoded, not read from the cache."""
  calls = []
  decode = tfds_records._decoded

  def count(builder, split, *features):
    calls.append(f"{builder.name} {split}")
    return decode(builder, split, *features)

  monkeypatch.setattr(tfds_records, "_decoded", count)
  return calls


# Reading.


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_a_prepared_set_is_read_as_tfds_reads_it(root, name):
  parts = {"train": "train[:6%]", "val": "train[94%:]", "test": "test[10:100]"}
  if name == "mnist":
    parts |= {"train": "train[:1000]", "val": "train[-500:]"}
  data = sources.tfds(name=name, data_dir=str(root), **parts).checked()
  assert data.train.inputs.dtype == np.uint8
  assert (data.num_classes, data.scale) == (10, 255.0)
  assert data.train.inputs.shape[1:] == ((28, 28, 1) if name == "mnist" else (32, 32, 3))
  for field, split in parts.items():
    assert_same(data.splits()[field], tensorflow_datasets.data_source(name, split=split, data_dir=root))


@pytest.mark.thorough
def test_validation_is_a_stratified_part_of_train_and_always_the_same(root):
  data = sources.tfds(data_dir=str(root), train="train[:2000]", test="test[:50]")
  whole = sources.tfds(data_dir=str(root), train="train[:2000]", val="test[:50]", test="test[:50]").train
  assert (len(data.train), len(data.val)) == (1800, 200)
  counts = np.bincount(whole.labels, minlength=10)
  np.testing.assert_allclose(np.bincount(data.val.labels, minlength=10), counts / 10, atol=1)
  # Every example is in one of the two, in the stored order.
  rows = {x.tobytes(): i for i, x in enumerate(whole.inputs)}
  train, val = ([rows[x.tobytes()] for x in split.inputs] for split in (data.train, data.val))
  assert train == sorted(train)
  assert val == sorted(val)
  assert sorted(train + val) == list(range(2000))
  assert_equal(data, sources.tfds(data_dir=str(root), train="train[:2000]", test="test[:50]"))
  half = sources.tfds(data_dir=str(root), train="train[:2000]", test="test[:50]", validation_fraction=0.5)
  assert len(half.val) == 1000


def test_the_default_data_directory_is_that_of_tfds(root, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(root))
  assert len(sources.tfds(**SMALL).test) == 50


# The cache.


def cache_files(tmp_path):
  return [file for file in (tmp_path / "home" / ".cache" / "jaxreg" / "tfds").rglob("*") if file.is_file()]


def test_the_cache_gives_the_same_arrays_and_leaves_nothing_else(root, decoded, tmp_path):
  before = sorted(root.rglob("*"))
  first = sources.tfds(data_dir=str(root), **SMALL)
  assert decoded == ["cifar10 train[:200]", "cifar10 test[:50]"]
  assert_equal(first, sources.tfds(data_dir=str(root), **SMALL))
  assert len(decoded) == 2
  files = cache_files(tmp_path)
  assert sorted(file.name[:8] for file in files) == ["test_50-", "train_20"]
  for file in files:
    with np.load(file, allow_pickle=False) as arrays:
      assert all(arrays[name].dtype != object for name in arrays.files)
  # TFDS takes no notice of it.
  assert len(tensorflow_datasets.data_source("cifar10", split="train", data_dir=root)) == 4000
  # A split with the same examples is one more file, and another feature would be too.
  sources.tfds(data_dir=str(root), **SMALL | {"train": "train[0:200]"})
  assert len(decoded) == 3
  assert sorted(root.rglob("*")) == before


@pytest.mark.thorough
def test_a_damaged_cache_is_made_again(root, decoded, tmp_path):
  read = functools.partial(sources.tfds, data_dir=str(root), train="train[:120]", test="test[:5]")
  first = read()
  (file,) = (file for file in cache_files(tmp_path) if file.name.startswith("train"))
  whole = file.read_bytes()
  damages = [whole[:-1], whole[: len(whole) // 2], b"", b"PK\3\4" + bytes(100)]
  for position in np.linspace(0, len(whole) - 1, 25).astype(int).tolist() + list(range(40, 200, 9)):
    damages.append(whole[:position] + bytes([whole[position] ^ 2]) + whole[position + 1 :])
  for damaged in damages:
    file.write_bytes(damaged)
    assert_equal(first, read())
  assert len(decoded) > 30  # a few bits of a zip file mean nothing, such as those of the dates
  np.savez(file, images=np.array([{}], object), labels=np.zeros(1), fingerprint=np.array(""))
  assert_equal(first, read())


@pytest.mark.parametrize("change", ["info", "record", "new_file"])
def test_a_cache_of_other_files_is_made_again(root, decoded, change):
  sources.tfds(data_dir=str(root), **SMALL)
  folder = root / CIFAR10
  if change == "info":
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | {"description": "another"}))
  elif change == "record":
    with (folder / "cifar10-test.array_record-00000-of-00001").open("ab") as stream:
      stream.write(bytes(64 * 1024))
    with pytest.raises(RunError):  # noticed, and the file is not one any more
      sources.tfds(data_dir=str(root), **SMALL)
    return
  else:
    (folder / "cifar10-train.array_record-00001-of-00002").write_bytes(b"")
  sources.tfds(data_dir=str(root), **SMALL)
  assert len(decoded) == 4


def test_a_home_that_cannot_be_written_costs_the_cache_only(root, decoded, tmp_path):
  (tmp_path / "home").write_text("a file in the way, which stops root too")
  before = sorted(root.rglob("*"))
  first = sources.tfds(data_dir=str(root), **SMALL)
  assert_equal(first, sources.tfds(data_dir=str(root), **SMALL))
  assert len(decoded) == 4
  assert sorted(root.rglob("*")) == before


def test_a_full_disk_costs_the_cache_only(root, decoded, monkeypatch, tmp_path):
  def full(*_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(os, "fsync", full)
  first = sources.tfds(data_dir=str(root), **SMALL)
  assert not [
    file for folder in (root, tmp_path / "home") for file in folder.rglob("*cache*/**/*") if file.is_file()
  ]
  monkeypatch.undo()
  assert_equal(first, sources.tfds(data_dir=str(root), **SMALL))
  assert len(decoded) == 2


# Preparing.


def idx(array):
  """An array of bytes as a gzipped idx file."""
  header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
  return gzip.compress(header + array.tobytes())


def archive(members):
  """A `.tar.gz` of these files, in this order."""
  stream = io.BytesIO()
  with tarfile.open(fileobj=stream, mode="w:gz") as tar:
    for name, content in members.items():
      entry = tarfile.TarInfo(name)
      entry.size = len(content)
      tar.addfile(entry, io.BytesIO(content))
  return stream.getvalue()


def offer(monkeypatch, folder, name, files):
  """Puts `files` into `folder` and makes them the official ones of `name`."""
  folder.mkdir(parents=True, exist_ok=True)
  infos = {}
  for url, info in tfds_builders.BUILDERS[name].url_infos.items():
    content = files[info.filename]
    (folder / info.filename).write_bytes(content)
    infos[url] = UrlInfo(
      size=len(content), checksum=hashlib.sha256(content).hexdigest(), filename=info.filename
    )
  monkeypatch.setattr(tfds_builders.BUILDERS[name], "url_infos", infos)


def offer_mnist(monkeypatch, folder, data_dir, sizes=(300, 100)):
  """The first examples of the official files, as files of the official names."""
  arrays = {}
  for name in MNIST_FILES:
    raw = gzip.decompress((data_dir / "mnist" / f"{name}.gz").read_bytes())
    number = sizes[name.startswith("t10k")]
    if "images" in name:
      arrays[name] = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 28, 28)[:number]
    else:
      arrays[name] = np.frombuffer(raw, np.uint8, offset=8)[:number]
  offer(monkeypatch, folder, "mnist", {f"{name}.gz": idx(x) for name, x in arrays.items()})
  return arrays


def cifar_arrays(seed, number, num_classes):
  random = np.random.default_rng(seed)
  images = random.integers(0, 256, (number, 32, 32, 3), dtype=np.uint8)
  return images, random.integers(0, num_classes, number, dtype=np.uint8)


def cifar_batch(images, *labels):
  """As the archives have it: the labels' bytes, then the red, green and blue planes."""
  planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
  return np.concatenate([*(x[:, None] for x in labels), planes], axis=1).tobytes()


def offer_cifar10(monkeypatch, folder):
  """Five batches of 40 and a test batch of 30, in an order that is not theirs, and a file of no use."""
  train, test = cifar_arrays(0, 200, 10), cifar_arrays(1, 30, 10)
  batches = [cifar_batch(*(x[40 * i : 40 * i + 40] for x in train)) for i in range(5)]
  members = {f"data_batch_{i + 1}.bin": batches[i] for i in (0, 2, 4)}
  members |= {"test_batch.bin": cifar_batch(*test), "readme.html": b"<html>"}
  members |= {f"data_batch_{i + 1}.bin": batches[i] for i in (3, 1)}
  names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
  members["batches.meta.txt"] = ("\n".join(names) + "\n\n").encode()
  packed = archive({f"cifar-10-batches-bin/{name}": content for name, content in members.items()})
  offer(monkeypatch, folder, "cifar10", {"cifar-10-binary.tar.gz": packed})
  return train, test, names


def by_id(source, prefix):
  """The examples in their official order; their ids must be `prefix` and five digits, from 0."""
  examples = sorted(source, key=lambda example: example["id"])
  assert [example["id"].decode() for example in examples] == [
    f"{prefix}_{i:05d}" for i in range(len(examples))
  ]
  return examples


def test_cifar10_is_prepared_from_an_archive_in_the_official_layout(monkeypatch, tmp_path, data_dir):
  train, test, names = offer_cifar10(monkeypatch, tmp_path / "files")
  root = tmp_path / "tfds"
  data = sources.tfds(data_dir=str(root), manual_dir=str(tmp_path / "files"), val="test[:10]")
  # TFDS's own class reads it, and it says what the official preparation says.
  builder = tensorflow_datasets.builder("cifar10", data_dir=root)
  assert builder.is_prepared()
  assert type(builder).__module__ == "tensorflow_datasets.image_classification.cifar"
  assert str(builder.version) == "3.0.2"
  assert builder.info.features["label"].names == names
  official = data_dir / "tfds" / CIFAR10
  for file in ("features.json", "label.labels.txt"):
    assert (root / CIFAR10 / file).read_text() == (official / file).read_text()
  ours, theirs = (json.loads((f / "dataset_info.json").read_text()) for f in (root / CIFAR10, official))
  for key in ("name", "version", "description", "citation", "location", "supervisedKeys", "fileFormat"):
    assert ours[key] == theirs[key]
  for split, (images, labels) in (("train", train), ("test", test)):
    examples = by_id(builder.as_data_source(split), split)
    np.testing.assert_array_equal([example["image"] for example in examples], images)
    assert [example["label"] for example in examples] == labels.tolist()
    assert_same(data.splits()[split], builder.as_data_source(split))
  record = builder.as_data_source("train", decoders={"image": tensorflow_datasets.decode.SkipDecoding()})[0]
  assert record["image"].startswith(b"\x89PNG")
  assert [path.name for path in root.iterdir()] == ["cifar10"]


@pytest.mark.thorough
def test_the_first_in_the_original_order_can_be_for_training(monkeypatch, tmp_path):
  (images, labels), (test_images, test_labels), _ = offer_cifar10(monkeypatch, tmp_path / "files")
  read = functools.partial(
    sources.tfds, data_dir=str(tmp_path / "tfds"), manual_dir=str(tmp_path / "files"), validation_fraction=0.2
  )
  data = read(order="id", subset=Subset(num_train=50))
  np.testing.assert_array_equal(data.train.inputs, images[:50])
  np.testing.assert_array_equal(data.train.labels, labels[:50])
  np.testing.assert_array_equal(data.test.inputs, test_images)
  np.testing.assert_array_equal(data.test.labels, test_labels)
  # Validation is a fifth of the others, in their order.
  where = {x.tobytes(): i for i, x in enumerate(images)}
  held = [where[x.tobytes()] for x in data.val.inputs]
  assert len(held) == 30
  assert held == sorted(held)
  assert min(held) >= 50
  np.testing.assert_array_equal(data.val.labels, labels[held])
  # Both orders have cache files of their own, and the stored one is as it was.
  assert_equal(data, read(order="id", subset=Subset(num_train=50)))
  stored = read(val="test")
  assert_same(
    stored.train, tensorflow_datasets.data_source("cifar10", split="train", data_dir=tmp_path / "tfds")
  )
  np.testing.assert_array_equal(read(subset=Subset(num_train=50)).train.inputs, stored.train.inputs[:50])
  assert (stored.train.inputs[:50] != images[:50]).any()
  # With a validation split of its own all may be for training.
  np.testing.assert_array_equal(
    read(order="id", subset=Subset(num_train=200), val="test").train.inputs, images
  )
  for number, most in ((200, {}), (201, {"val": "test"})):
    options = {"data_dir": str(tmp_path / "tfds"), "order": "id", "subset": {"num_train": number}, **most}
    fails("data.subset.num_train", f"at most {200 if most else 199}", f"got {number}", **options)


@pytest.mark.parametrize("order", ["stored", "id"])
def test_other_labels_of_the_training_examples_go_by_id(root, tmp_path, order):
  """Those that are held out for validation have them, too; the test split keeps its own."""
  labels, want = np.full(5000, 9, np.uint8), {}
  for example in tensorflow_datasets.data_source("cifar10", split="train[:200]", data_dir=root):
    number = int(example["id"].removeprefix(b"train_"))
    labels[number] = want[example["image"].tobytes()] = (example["label"] + number) % 10
  np.savez(tmp_path / "labels.npz", people=labels)
  options = {"data_dir": str(root), "order": order, **SMALL}
  plain = sources.tfds(**options)
  other = sources.tfds(**options, labels_file=str(tmp_path / "labels.npz"), labels_array="people")
  # The labels stratify the part that is held out, so an example is known by its image.
  labelled = [*zip(other.train.inputs, other.train.labels), *zip(other.val.inputs, other.val.labels)]
  assert {image.tobytes(): label for image, label in labelled} == want
  np.testing.assert_array_equal(other.test.labels, plain.test.labels)


def test_labels_that_do_not_fit_are_named(root, tmp_path):
  file = tmp_path / "labels.npz"
  np.savez(file, short=np.zeros(3, int), wide=np.full(5000, 10), real=np.zeros(5000))
  for array, problem in {
    "worse": "has no array 'worse'; it has real, short, wide",
    "short": "must be integers [n] for ids up to",
    "real": "must be integers [n] for ids up to",
    "wide": "must lie in [0, 10), got 10 to 10",
  }.items():
    with pytest.raises(RunError, match=re.escape(problem)):
      sources.tfds(data_dir=str(root), **SMALL, labels_file=str(file), labels_array=array)
  with pytest.raises(RunError, match=r"labels_file: got 'none.npz', which is not a file"):
    sources.tfds(data_dir=str(root), **SMALL, labels_file="none.npz")


def test_an_order_that_a_set_does_not_have_is_named(root):
  fails(
    "data.tfds.order",
    "mnist has no feature 'id'",
    "image, label",
    name="mnist",
    data_dir=str(root),
    order="id",
  )
  fails("data.tfds.order", "got 'ids', allowed are id, stored", data_dir=str(root), order="ids")


@pytest.mark.thorough
def test_the_stored_order_is_that_of_the_official_preparation(monkeypatch, tmp_path, data_dir):
  """TFDS shuffles by a hash of each example's number: the official subset has the first 4000 of train."""
  images, labels = cifar_arrays(0, 4000, 10)
  batches = {
    f"data_batch_{i + 1}.bin": cifar_batch(images[800 * i :][:800], labels[800 * i :][:800]) for i in range(5)
  }
  members = batches | {"test_batch.bin": cifar_batch(images[:10], labels[:10])}
  members["batches.meta.txt"] = "\n".join("abcdefghij").encode()
  packed = archive({f"cifar-10-batches-bin/{name}": content for name, content in members.items()})
  offer(monkeypatch, tmp_path / "files", "cifar10", {"cifar-10-binary.tar.gz": packed})
  tfds_builders.prepare("cifar10", "", "", tmp_path / "tfds", str(tmp_path / "files"))
  skip = {"image": tensorflow_datasets.decode.SkipDecoding()}
  ours, theirs = (
    [
      example["id"]
      for example in tensorflow_datasets.data_source("cifar10", split="train", data_dir=folder, decoders=skip)
    ]
    for folder in (tmp_path / "tfds", data_dir / "tfds")
  )
  assert ours == theirs


def test_cifar100_is_prepared_from_an_archive_in_the_official_layout(monkeypatch, tmp_path):
  train, test = cifar_arrays(2, 250, 100), cifar_arrays(3, 60, 100)
  coarse = [labels // 5 for _, labels in (train, test)]
  fine_names, coarse_names = ([f"{kind}{i}" for i in range(n)] for kind, n in (("fine", 100), ("coarse", 20)))
  members = {
    "train.bin": cifar_batch(train[0], coarse[0], train[1]),
    "test.bin": cifar_batch(test[0], coarse[1], test[1]),
    "fine_label_names.txt": ("\n".join(fine_names) + "\n").encode(),
    "coarse_label_names.txt": ("\n".join(coarse_names) + "\n").encode(),
  }
  packed = archive({f"cifar-100-binary/{name}": content for name, content in members.items()})
  offer(monkeypatch, tmp_path / "files", "cifar100", {"cifar-100-binary.tar.gz": packed})
  root = tmp_path / "tfds"
  options = {"data_dir": str(root), "manual_dir": str(tmp_path / "files"), "val": "test[:10]"}
  assert sources.tfds(name="cifar100", **options).num_classes == 100
  assert sources.tfds(name="cifar100", **options, label="coarse_label").num_classes == 20
  builder = tensorflow_datasets.builder("cifar100:3.0.2", data_dir=root)
  assert builder.info.features["label"].names == fine_names
  assert builder.info.features["coarse_label"].names == coarse_names
  for split, (images, labels), superclass in (("train", train, coarse[0]), ("test", test, coarse[1])):
    examples = by_id(builder.as_data_source(split), split)
    np.testing.assert_array_equal([example["image"] for example in examples], images)
    assert [example["label"] for example in examples] == labels.tolist()
    assert [example["coarse_label"] for example in examples] == superclass.tolist()


@pytest.mark.thorough
def test_mnist_is_prepared_from_the_official_files(monkeypatch, tmp_path, data_dir):
  arrays = offer_mnist(monkeypatch, tmp_path / "files", data_dir)
  root = tmp_path / "tfds"
  sources.tfds(name="mnist", data_dir=str(root), manual_dir=str(tmp_path / "files"))
  builder = tensorflow_datasets.builder("mnist", data_dir=root)
  assert str(builder.version) == "3.0.1"
  official = data_dir / "tfds" / "mnist" / "3.0.1"
  assert (root / "mnist/3.0.1/features.json").read_text() == (official / "features.json").read_text()
  for split, part in (("train", "train"), ("test", "t10k")):
    images, labels = (arrays[f"{part}-{kind}-ubyte"] for kind in ("images-idx3", "labels-idx1"))
    stored = [(x["image"][..., 0].tobytes(), x["label"]) for x in builder.as_data_source(split)]
    assert sorted(stored) == sorted((x.tobytes(), int(y)) for x, y in zip(images, labels, strict=True))


def test_the_official_files_are_those_of_tfds():
  """Names, versions, addresses and checksums, as TFDS's own package has them."""
  known = {
    "mnist": ("3.0.1", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "cifar10": ("3.0.2", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    "cifar100": ("3.0.2", "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),
  }
  for name, builder in tfds_builders.BUILDERS.items():
    version, checksum = known[name]
    assert (builder.name, str(builder.VERSION)) == (name, version)
    assert checksum in [info.checksum for info in builder.url_infos.values()]
    assert tensorflow_datasets.builder_cls(name) is not builder


def test_files_in_the_default_manual_folder_are_used(monkeypatch, tmp_path, data_dir):
  offer_mnist(monkeypatch, tmp_path / "tfds" / "downloads" / "manual", data_dir)
  data = sources.tfds(name="mnist", data_dir=str(tmp_path / "tfds"), val="test[:5]")
  assert (len(data.train), len(data.test)) == (300, 100)


def test_what_was_downloaded_is_verified_and_used(monkeypatch, tmp_path, data_dir):
  """A server of our own in place of `requests`: once it sends a damaged file, then the right ones."""
  offer_mnist(monkeypatch, tmp_path / "server", data_dir)
  asked, flaw = [], [b"x"]

  class Response:
    def __init__(self, url):
      self.content = (tmp_path / "server" / url.rpartition("/")[2]).read_bytes()

    def __enter__(self):
      return self

    def __exit__(self, *_):
      pass

    def raise_for_status(self):
      pass

    def iter_content(self, size):
      del size
      yield self.content + (flaw.pop() if flaw else b"")

  def get(url, **_):
    asked.append(url)
    return Response(url)

  monkeypatch.setattr(requests, "get", get)
  options = {"name": "mnist", "data_dir": str(tmp_path / "tfds")}
  fails(
    "SHA-256",
    "fetch it again from https://storage.googleapis.com/cvdf-datasets/mnist/",
    **options,
  )
  assert not list((tmp_path / "tfds").rglob("*.gz*"))
  assert len(sources.tfds(**options).test) == 100
  assert len(asked) == 5
  assert all(url.startswith("https://storage.googleapis.com/cvdf-datasets/mnist/") for url in asked)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_preparation_leaves_nothing(monkeypatch, tmp_path, error):
  offer_cifar10(monkeypatch, tmp_path / "files")
  generate = tfds_builders.BUILDERS["cifar10"]._generate_examples

  def interrupted(self, prefix, batches):
    yield from itertools.islice(generate(self, prefix, batches), 20)
    raise error

  options = {"data_dir": str(tmp_path / "tfds"), "manual_dir": str(tmp_path / "files")}
  with monkeypatch.context() as patch:
    patch.setattr(tfds_builders.BUILDERS["cifar10"], "_generate_examples", interrupted)
    if isinstance(error, OSError):
      fails("No space left", "data_dir", **options)
    else:
      with pytest.raises(KeyboardInterrupt):
        sources.tfds(**options)
  assert not list((tmp_path / "tfds").iterdir())
  # What a killed run left is cleared away.
  (tmp_path / "tfds" / f".preparing_cifar10-{os.getuid()}" / "cifar10").mkdir(parents=True)
  assert len(sources.tfds(**options).test) == 30
  assert [path.name for path in (tmp_path / "tfds").iterdir()] == ["cifar10"]


# Errors.


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("options", "mentions"),
  [
    ({"name": "cifra10"}, ["'cifra10'", "did you mean 'cifar10'?"]),
    ({"name": "cifar10:x"}, ["'cifar10:x'", "name/configuration"]),
    ({"train": "training"}, ["data.tfds.train", "'training'", "train, test", "train[:90%]"]),
    ({"val": "train[:"}, ["data.tfds.val", "'train[:'", "train, test"]),
    ({"test": ""}, ["data.tfds.test", "train, test"]),
    ({"test": "test[5:3]"}, ["data.tfds.test", "no examples"]),
    ({"test": "train[199:]"}, ["data.tfds.test", "train='train[:200]'", "'train[199:]'"]),
    ({"train": "train+test", "val": "test"}, ["data.tfds.val", "train='train+test'", "'test'"]),
    ({"image": "picture"}, ["data.tfds.image", "'picture'", "it has image"]),
    ({"label": "id"}, ["data.tfds.label", "'id'", "it has label"]),
    ({"validation_fraction": 1.5}, ["data.validation_fraction", "1.5"]),
    ({"name": "mnist:1.0.0"}, ["mnist:1.0.0 is not prepared", "there is 3.0.1"]),
  ],
)
def test_a_wrong_option_is_named_with_the_right_ones(root, options, mentions):
  fails(*mentions, **{"data_dir": str(root), **SMALL, **options})


def test_one_process_at_a_time_prepares_a_set_of_tfds_own(tmp_path, monkeypatch):
  def builder(reference, *, data_dir):
    assert data_dir == tmp_path / "tfds"
    (file,) = (tmp_path / "home" / ".cache" / "jaxreg" / "locks").iterdir()
    with file.open() as lock, pytest.raises(BlockingIOError):
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return types.SimpleNamespace(download_and_prepare=lambda **_: prepared.append(reference))

  prepared = []
  monkeypatch.setattr(tensorflow_datasets, "builder", builder)
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
  tfds_builders.prepare("food101", "", "", tmp_path / "tfds", "")
  assert prepared == ["food101"]
  assert not (tmp_path / "tfds").exists()


@pytest.mark.parametrize("name", ["food101", "emnist/balanced"])
def test_another_set_needs_tensorflow_once(tmp_path, name):
  fails(
    "pip install -e '.[prepare]' and run this again",
    f"copy its {tmp_path / name.partition('/')[0]}",
    name=name,
    data_dir=str(tmp_path),
  )
  assert not list(tmp_path.iterdir())


def test_with_tensorflow_the_stock_builder_prepares(monkeypatch, tmp_path):
  """The call only: TensorFlow is not there. Its errors, of many lines, become one."""
  asked = {}

  class Builder:
    def download_and_prepare(self, **options):
      asked.update(options)
      raise AssertionError("Manual directory\n does not exist.\n")

  monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
  monkeypatch.setattr(
    tensorflow_datasets, "builder", lambda *given, **_: asked.update(name=given) or Builder()
  )
  fails("Manual directory does not exist.", name="food101:2.0.0", data_dir=str(tmp_path), manual_dir="files")
  assert asked["name"] == ("food101:2.0.0",)
  assert asked["file_format"] == "array_record"
  assert asked["download_config"].manual_dir == Path("files")
  assert asked["download_config"].force_checksums_validation


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_without_data_and_network_the_ways_to_get_it_are_named(tmp_path, name):
  start = time.monotonic()
  fails(
    tmp_path,
    "cannot be fetched (ConnectionError)",
    *(info.filename for info in tfds_builders.BUILDERS[name].url_infos.values()),
    f"into {tmp_path / 'downloads' / 'manual'}",
    "another machine",
    "TFDS_DATA_DIR",
    name=name,
    data_dir=str(tmp_path),
  )
  assert time.monotonic() - start < 10
  assert sorted(path.name for path in tmp_path.iterdir()) == ["downloads", "home"]  # with an empty lock
  assert [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()] == [0]


def test_a_wrong_or_missing_manual_file_is_named(tmp_path, data_dir):
  options = {"name": "mnist", "data_dir": str(tmp_path / "tfds"), "manual_dir": str(tmp_path / "files")}
  fails("has no t10k-images-idx3-ubyte.gz", "https://storage.googleapis.com", **options)
  (tmp_path / "files").mkdir()
  for name in MNIST_FILES:
    shutil.copyfile(data_dir / "mnist" / f"{name}.gz", tmp_path / "files" / f"{name}.gz")
  runs.flip(tmp_path / "files" / "train-labels-idx1-ubyte.gz")
  fails("train-labels-idx1-ubyte.gz is not the official file", "SHA-256", "fetch it again", **options)
  assert not (tmp_path / "tfds" / "mnist").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "info", "features"])
def test_an_unreadable_set_is_named_with_what_to_do(root, damage):
  record = root / CIFAR10 / "cifar10-train.array_record-00000-of-00001"
  if damage == "truncated":
    record.write_bytes(record.read_bytes()[: record.stat().st_size // 2])
  elif damage == "flipped":
    runs.flip(record)
  elif damage == "missing":
    record.unlink()
  else:
    file = {"info": "dataset_info.json", "features": "features.json"}[damage]
    (root / CIFAR10 / file).write_text("{")
  fails(root / CIFAR10, "damaged or incomplete", "prepare it again", data_dir=str(root), test="test[:50]")


@pytest.mark.parametrize("field", ["type", "pythonClassName", "python_class_name"])
def test_a_feature_of_other_people_is_not_imported(root, monkeypatch, field):
  """TFDS imports the module that a feature names."""
  file = root / CIFAR10 / "features.json"
  features = json.loads(file.read_text())
  features["featuresDict"]["features"]["image"][field] = "evil.module.Image"
  file.write_text(json.dumps(features))
  imported = []
  monkeypatch.setattr("importlib.import_module", lambda name, *_: imported.append(name))
  fails(file, "not TFDS's own, 'evil.module.Image'", data_dir=str(root), **SMALL)
  assert imported == []


def test_folders_that_cannot_hold_a_prepared_set_are_named(tmp_path, data_dir):
  (tmp_path / "file").write_text("")
  fails(tmp_path / "file", "give another folder", name="mnist", data_dir=str(tmp_path / "file"))
  (tmp_path / "mnist" / "3.0.1").mkdir(parents=True)
  options = {"name": "mnist", "data_dir": str(tmp_path), "manual_dir": str(data_dir / "mnist")}
  fails(tmp_path / "mnist" / "3.0.1", "holds no prepared data set; remove it", **options)


def test_a_set_in_another_format_is_named(root):
  info = root / CIFAR10 / "dataset_info.json"
  info.write_text(info.read_text().replace("array_record", "tfrecord"))
  fails("prepared as tfrecord", "prepared again as array_record", data_dir=str(root), **SMALL)


class Uneven(tensorflow_datasets.core.GeneratorBasedBuilder, skip_registration=True):
  """Images of two sizes, under a configuration."""

  VERSION = tensorflow_datasets.core.Version("1.2.0")
  BUILDER_CONFIGS = [tensorflow_datasets.core.BuilderConfig(name=name) for name in ("even", "odd")]  # noqa: RUF012
  url_infos = None

  def _info(self):
    features = tensorflow_datasets.features
    return tensorflow_datasets.core.DatasetInfo(
      builder=self,
      features=features.FeaturesDict(
        {"picture": features.Image(), "kind": features.ClassLabel(num_classes=2), "number": np.int64}
      ),
    )

  def _split_generators(self, dl_manager):
    return {"train": self._generate_examples(), "validation": self._generate_examples()}

  def _generate_examples(self):
    for i in range(40):
      side = 5 + (self.builder_config.name == "odd" and i == 30)
      image = Image.fromarray(np.full((side, 5, 3), i, np.uint8))
      yield i, {"picture": image, "kind": i % 2, "number": i}


@pytest.fixture
def uneven(tmp_path):
  for config in ("even", "odd"):
    Uneven(data_dir=tmp_path, config=config).download_and_prepare(file_format="array_record")
  return {"data_dir": str(tmp_path), "test": "validation", "image": "picture", "label": "kind"}


@pytest.mark.thorough
def test_a_set_of_ones_own_with_configurations_is_read(uneven, tmp_path):
  """Its class is nowhere to be found: the prepared files are enough."""
  for name in ("uneven", "uneven/even", "uneven:1.*.*", "uneven/even:1.2.0"):
    data = sources.tfds(name=name, **uneven)
    assert (data.num_classes, data.train.inputs.shape) == (2, (36, 5, 5, 3))
  fails("unequal sizes", "(5, 5, 3)", "(6, 5, 3)", name="uneven/odd", **uneven)
  fails("data.tfds.label", "'number'", "it has kind", name="uneven", **uneven | {"label": "number"})
  fails("did you mean 'uneven'?", name="unven", **uneven)
  (tmp_path / "uneven" / ".config" / "metadata.json").unlink()
  fails("of uneven there is even/1.2.0, odd/1.2.0", name="uneven", **uneven)


def test_a_streamed_set_has_the_same_images_and_labels(uneven, monkeypatch):
  read = lambda name="uneven/even", **options: sources.tfds(name=name, stream=True, **uneven, **options)
  of_five = lambda data: data.decoded_by(size=5)
  for options in ({}, {"subset": Subset(num_train=7), "val": "validation"}, {"train": "train[10:]"}):
    whole = sources.tfds(name="uneven/even", **uneven, **options)
    lazy = of_five(read(**options)).checked()
    assert (lazy.num_classes, lazy.scale) == (whole.num_classes, whole.scale)
    for name, split in lazy.splits().items():
      np.testing.assert_array_equal(np.asarray(split.inputs), whole.splits()[name].inputs)
      np.testing.assert_array_equal(split.labels, whole.splits()[name].labels)
  # Of unequal sizes too; and the labels, once read, are kept.
  odd = of_five(read("uneven/odd"))
  colours = np.concatenate([np.asarray(split.inputs)[:, 0, 0, 0] for split in (odd.train, odd.val)])
  assert sorted(colours) == list(range(40))
  assert odd.describe() != of_five(read()).describe()
  monkeypatch.setattr(tfds_records, "_values", lambda *_: pytest.fail("they were read before"))
  assert of_five(read("uneven/odd")).describe() == odd.describe()
  with pytest.raises(RunError, match="order: must be stored"):
    read(order="id")


class Sixteen(Uneven, skip_registration=True):
  """Images of one grey of 16 bits each, and of a palette."""

  def _generate_examples(self):
    for i in range(40):
      image = Image.fromarray(np.full((5, 5), 256 * i + 77, np.uint16))
      if self.builder_config.name == "odd":
        image = Image.fromarray(np.full((5, 5, 3), i, np.uint8)).quantize(4)
      file = io.BytesIO()
      image.save(file, "PNG")
      file.seek(0)
      yield i, {"picture": file, "kind": i % 2, "number": i}


@pytest.mark.parametrize("config", ["even", "odd"])
def test_images_of_16_bits_and_of_palettes_keep_their_colours(tmp_path, config):
  """The higher 8 bits, as TensorFlow takes them."""
  Sixteen(data_dir=tmp_path, config=config).download_and_prepare(file_format="array_record")
  options = {"data_dir": str(tmp_path), "val": "validation", "test": "validation", "order": "stored"}
  whole = sources.tfds(name=f"sixteen/{config}", image="picture", label="kind", **options)
  assert sorted(whole.train.inputs[:, 2, 2, 1]) == list(range(40))
  lazy = sources.tfds(name=f"sixteen/{config}", image="picture", label="kind", stream=True, **options)
  images = np.asarray(lazy.decoded_by(size=5).train.inputs)
  np.testing.assert_array_equal(images, whole.train.inputs)


def test_a_damaged_record_of_a_streamed_set_is_named(uneven, tmp_path):
  data = sources.tfds(name="uneven/even", stream=True, **uneven)
  folder = tmp_path / "uneven" / "even" / "1.2.0"
  (file,) = folder.glob("*train*")
  tfds_records._opened.cache_clear()
  file.write_bytes(bytes(len(file.read_bytes())))
  with pytest.raises(RunError, match=r"image \d+ of split train in .*1\.2\.0 cannot be decoded"):
    data.train.inputs.cut(0)
  tfds_records._opened.cache_clear()
  shutil.rmtree(tmp_path / "home" / ".cache" / "jaxreg" / "tfds")
  fails("split train", "remove that folder", name="uneven/even", stream=True, **uneven)


def test_a_missing_package_is_named(monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  fails("pip install -e '.[data]'", data_dir=str(tmp_path))


def test_the_trainer_reads_it(root):
  fields = {"data.name": "tfds", "data.tfds.data_dir": str(root), "data.tfds.train": "train[:200]"}
  data = load_data(runs.make_config(fields, base={"data.tfds.test": "test[:50]"}))
  assert [len(split) for split in data.splits().values()] == [180, 20, 50]
