"""Which examples make a batch, and where they come from."""

import dataclasses
import functools
import gzip
import io
import itertools
import pickle
import re
import tracemalloc
import zipfile
import zlib

import jax
import numpy as np
import pytest
import runs
import zips
from image_files import write_idx

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.data import bounded_files, sources
from jaxreg.train.data.batches import _permutation, batch_indices, padded_indices
from jaxreg.train.data.dataset import Dataset, Split, scale_remark
from jaxreg.train.data.subsets import Subset, flip_labels, subset

IDX_NAMES = {
  "train_images": "train-images-idx3-ubyte",
  "train_labels": "train-labels-idx1-ubyte",
  "test_images": "t10k-images-idx3-ubyte",
  "test_labels": "t10k-labels-idx1-ubyte",
}


# Which examples make a batch.


def test_each_epoch_is_a_permutation_without_repeats():
  epochs = []
  for epoch in range(4):
    steps = range(5 * epoch, 5 * epoch + 5)
    epochs.append(np.concatenate([batch_indices(3, step, num_examples=64, batch_size=12) for step in steps]))
  for indices in epochs:
    assert indices.dtype == np.int32
    assert len(indices) == len(set(indices)) == 60  # 4 of 64 are left out
    assert set(indices) <= set(range(64))
  # What is left out differs as well.
  assert len({tuple(e) for e in epochs}) == len({frozenset(e) for e in epochs}) == 4


def test_seeds_differ_and_steps_can_be_asked_in_any_order():
  get = lambda seed, step: tuple(batch_indices(seed, step, num_examples=50, batch_size=10))
  forward = {(seed, step): get(seed, step) for seed in range(3) for step in range(20)}
  _permutation.cache_clear()
  backward = {(seed, step): get(seed, step) for step in reversed(range(20)) for seed in (2, 0, 1)}
  assert forward == backward
  assert len(set(forward.values())) == 60


def test_shuffling_is_uniform():
  """Of 4000 epochs, how often each example stands first: 4 sigma."""
  first = [batch_indices(0, epoch, num_examples=8, batch_size=8)[0] for epoch in range(4000)]
  counts = np.bincount(first, minlength=8)
  assert np.abs(counts - 500).max() < 4 * np.sqrt(4000 / 8 * 7 / 8)


@pytest.mark.parametrize(("num_examples", "batch_size"), [(10, 4), (8, 4), (3, 4), (1, 1)])
def test_padded_indices_give_every_example_once_with_weight_1(num_examples, batch_size):
  batches = list(padded_indices(num_examples, batch_size))
  assert len(batches) == -(-num_examples // batch_size)
  assert all(len(index) == len(weights) == batch_size for index, weights in batches)
  index, weights = (np.concatenate(parts) for parts in zip(*batches))
  assert index.dtype == np.int32
  assert weights.dtype == np.float32
  np.testing.assert_array_equal(index[weights == 1], np.arange(num_examples))
  assert weights.sum() == num_examples
  assert set(weights) <= {0.0, 1.0}
  assert set(index[weights == 0]) <= {num_examples - 1}  # the padding is a real example


# Digits.


def test_digits_are_split_60_20_20_stratified_and_disjoint():
  from sklearn.datasets import load_digits

  images, labels = load_digits(return_X_y=True)
  digits = sources.digits()
  assert [len(split) for split in digits.splits().values()] == [1078, 359, 360]
  assert (digits.num_classes, digits.scale) == (10, 16.0)
  share = np.bincount(labels) / len(labels)
  for split in digits.splits().values():
    assert split.inputs.shape == (len(split), 8, 8, 1)
    assert split.inputs.dtype == np.uint8
    assert split.inputs.max() == 16
    assert np.abs(np.bincount(split.labels) - share * len(split)).max() < 1
  # Together they are the data set, each example once.
  rows = lambda x, y: sorted((*map(int, image), int(label)) for image, label in zip(x, y))
  together = [rows(s.inputs.reshape(-1, 64), s.labels) for s in digits.splits().values()]
  assert sorted(itertools.chain(*together)) == rows(images, labels)


def test_digits_are_always_the_same():
  one, other = sources.digits(), sources.digits()
  assert one.describe() == other.describe()
  # Recorded once: results on pages are of this split.
  assert one.describe().crc32 == {"train": 1022131263, "val": 2543224565, "test": 3709806764}


# idx files.


def write_set(folder, arrays, zipped):
  return write_idx(folder, {IDX_NAMES[part]: array for part, array in arrays.items()}, zipped=zipped)


@functools.cache
def small_idx():
  random = np.random.default_rng(0)
  image = lambda n: random.integers(256, size=(n, 5, 4)).astype(np.uint8)
  label = lambda n: random.permutation(np.arange(n) % 3).astype(np.uint8)
  return {
    "train_images": image(60),
    "train_labels": label(60),
    "test_images": image(20),
    "test_labels": label(20),
  }


@pytest.fixture(params=[False, True], ids=["raw", "gz"])
def idx_folder(request, tmp_path):
  return write_set(tmp_path / "set", small_idx(), request.param)


def idx_file(folder, part):
  (file,) = folder.glob(f"{IDX_NAMES[part]}*")
  return file


def load_idx(folder, **options):
  return runs.read_source("idx", path=str(folder), subset=options)


def first_and_next_of_each_class(labels, n):
  """A plain loop: positions of the first n of each class, and of the next n."""
  seen, first, following = dict.fromkeys(sorted(set(labels.tolist())), 0), [], []
  for position, label in enumerate(labels.tolist()):
    if seen[label] < n:
      first.append(position)
    elif seen[label] < 2 * n:
      following.append(position)
    seen[label] += 1
  return first, following


def assert_split(split, images, labels, positions):
  assert len(split) == len(positions) > 0
  np.testing.assert_array_equal(split.inputs[..., 0], images[positions])
  np.testing.assert_array_equal(split.labels, labels[positions])


def test_idx_files_are_read_alike_gzipped_or_not(idx_folder):
  data, arrays = load_idx(idx_folder), small_idx()
  images, labels = arrays["train_images"], arrays["train_labels"]
  assert_split(data.val, images, labels, range(6))
  assert_split(data.train, images, labels, range(6, 60))
  assert_split(data.test, arrays["test_images"], arrays["test_labels"], range(20))
  assert (data.num_classes, data.scale) == (3, 255.0)
  assert data.train.inputs.dtype == np.uint8
  assert data.train.inputs.shape[1:] == (5, 4, 1)


def test_per_class_takes_the_first_of_each_in_file_order(idx_folder):
  data, arrays = load_idx(idx_folder, per_class=7, drawn=False), small_idx()
  images, labels = arrays["train_images"], arrays["train_labels"]
  first, following = first_and_next_of_each_class(labels, 7)
  assert_split(data.train, images, labels, first)
  assert_split(data.val, images, labels, following)
  assert_split(data.test, arrays["test_images"], arrays["test_labels"], range(20))
  assert not set(first) & set(following)


def test_the_first_of_the_files_can_be_for_training(idx_folder):
  data, arrays = load_idx(idx_folder, num_train=30), small_idx()
  images, labels = arrays["train_images"], arrays["train_labels"]
  assert_split(data.train, images, labels, range(30))
  assert_split(data.val, images, labels, range(30, 36))
  assert_split(data.test, arrays["test_images"], arrays["test_labels"], range(20))
  assert len(load_idx(idx_folder, num_train=54).train) == 54


@pytest.mark.parametrize(
  ("options", "message"),
  [
    *(
      (options, rf"\.num_train: .* the first per_class, at most 54, .* got {options['num_train']}$")
      for options in ({"num_train": 55}, {"num_train": 5, "per_class": 5, "drawn": False})
    ),
    ({"num_train": -1}, r"\.num_train: must be at least 0 and at most 1e9, got -1"),
    ({"per_class": -1}, r"\.per_class: must be at least 0 and at most 1e9, got -1"),
    *(
      ({"per_class": n, "drawn": False}, rf"\.per_class: got {n}, at most 10 are allowed") for n in (11, 1000)
    ),
  ],
)
def test_idx_options_that_do_not_fit_are_refused(idx_folder, options, message):
  with pytest.raises(train.RunError, match=rf"^data\.subset{message}"):
    load_idx(idx_folder, **options)


def test_as_many_of_each_class_as_there_are(idx_folder):
  assert len(load_idx(idx_folder, per_class=10, drawn=False).train) == 30


def read_idx_plainly(file, offset):
  return np.frombuffer(gzip.open(file).read(), np.uint8)[offset:]


def test_mnist_per_class(data_dir):
  per_class = 500
  folder = data_dir / "mnist"
  data = sources.idx(path=str(folder), subset=Subset(per_class=per_class, drawn=False)).checked()
  labels = read_idx_plainly(folder / "train-labels-idx1-ubyte.gz", 8)
  images = read_idx_plainly(folder / "train-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
  assert len(labels) == len(images) == 60000
  first, following = first_and_next_of_each_class(labels, per_class)
  assert_split(data.train, images, labels, first)
  assert_split(data.val, images, labels, following)
  assert not set(first) & set(following)
  assert list(np.bincount(data.train.labels)) == list(np.bincount(data.val.labels)) == [per_class] * 10
  assert list(np.bincount(data.test.labels)) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
  assert (data.num_classes, data.scale, data.train.inputs.shape[1:]) == (10, 255.0, (28, 28, 1))


@pytest.mark.thorough
def test_mnist_asking_for_too_many_of_a_class(data_dir):
  # 5421 fives: 2710 for training and as many for validation.
  with pytest.raises(train.RunError, match=r"data\.subset\.per_class: got 2711, at most 2710 are allowed"):
    load_idx(data_dir / "mnist", per_class=2711, drawn=False)
  assert len(load_idx(data_dir / "mnist", per_class=2710, drawn=False).val) == 27100


def content(file):
  return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


def put(file, raw):
  file.write_bytes(gzip.compress(raw) if file.suffix == ".gz" else raw)


# By the damage to a file: the damage itself, and a part of the message.
IDX_DAMAGES = {
  "missing": (lambda file: file.unlink(), "has no "),
  **{
    f"cut at {kept}": (
      lambda file, kept=kept: file.write_bytes(file.read_bytes()[:kept]),
      "truncated or damaged|does not begin as an idx file",
    )
    for kept in (0, 3, 7, 20, -1)
  },
  "too long": (lambda file: put(file, content(file) + b"\0"), "truncated or damaged"),
  "of another kind": (
    lambda file: put(file, bytes([0, 0, 13]) + content(file)[3:]),
    "does not begin as an idx file",
  ),
}


@pytest.mark.parametrize("part", ["train_images", "test_labels"])
@pytest.mark.parametrize(("damage", "message"), IDX_DAMAGES.values(), ids=IDX_DAMAGES)
def test_a_damaged_idx_file_is_named(idx_folder, part, damage, message):
  file = idx_file(idx_folder, part)
  damage(file)
  with pytest.raises(train.RunError, match=message) as refused:
    load_idx(idx_folder)
  assert str(idx_folder) in str(refused.value)
  assert IDX_NAMES[part] in str(refused.value)
  assert ("give the folder with the four" in str(refused.value)) == (message == "has no ")


@pytest.mark.thorough
@pytest.mark.parametrize("promised", [(60, 5, 4), (2**16, 2**12, 2**12)])
def test_no_more_is_unpacked_than_the_header_promises(tmp_path, promised):
  """A small file that unpacks to 128 MB: more than its header promises, or less than that one promises."""
  folder = write_set(tmp_path / "set", small_idx(), True)
  header = bytes([0, 0, 8, 3]) + np.array(promised, ">u4").tobytes()
  packer = zlib.compressobj(1, wbits=31)
  packed = [packer.compress(header), *(packer.compress(bytes(2**24)) for _ in range(8)), packer.flush()]
  file = idx_file(folder, "train_images")
  file.write_bytes(b"".join(packed))
  told = "it has more" if promised[0] == 60 else "unpacks to more than|half of the memory"
  tracemalloc.start()
  try:
    with pytest.raises(ValueError, match=told):
      bounded_files.read_idx(file, 3)
    assert tracemalloc.get_traced_memory()[1] < 2**26
  finally:
    tracemalloc.stop()
  with pytest.raises(train.RunError, match=rf"{IDX_NAMES['train_images']}.* is truncated or damaged"):
    load_idx(folder)


@pytest.mark.parametrize("size", [10, 2**20])
def test_less_data_than_promised_takes_no_memory_for_the_rest(tmp_path, size):
  file = tmp_path / "images-idx3-ubyte"
  file.write_bytes(bytes([0, 0, 8, 3]) + np.array((2**10, 2**10, 2**10), ">u4").tobytes() + bytes(size))
  with pytest.raises(ValueError, match=rf"promises {2**30} bytes of data, it has {size}|half of the memory"):
    bounded_files.read_idx(file, 3)


@pytest.mark.parametrize(("least", "told"), [(1, "give labels - 1"), (5, "give labels - 5")])
def test_idx_labels_that_do_not_begin_at_0_have_a_remedy(tmp_path, least, told):
  arrays = {k: v + np.uint8(least) if k.endswith("labels") else v for k, v in small_idx().items()}
  with pytest.raises(train.RunError, match=rf"label {least} at position .* and 0 does not occur; {told}$"):
    load_idx(write_set(tmp_path / "set", arrays, False))


def test_images_in_the_place_of_labels_are_named(idx_folder):
  images, labels = idx_file(idx_folder, "train_images"), idx_file(idx_folder, "train_labels")
  labels.write_bytes(images.read_bytes())
  with pytest.raises(train.RunError, match="does not begin as an idx file of 1-dimensional") as refused:
    load_idx(idx_folder)
  assert str(labels) in str(refused.value)


@pytest.mark.parametrize("part", ["train", "test"])
def test_as_many_labels_as_images(tmp_path, part):
  arrays = {**small_idx(), f"{part}_labels": small_idx()[f"{part}_labels"][:-1]}
  images, labels = len(arrays[f"{part}_images"]), len(arrays[f"{part}_labels"])
  with pytest.raises(train.RunError, match=rf"{images} \w+ but {labels} labels"):
    load_idx(write_set(tmp_path / "set", arrays, False))


def test_a_class_that_only_the_test_split_has_is_refused(tmp_path):
  arrays = {**small_idx(), "test_labels": small_idx()["test_labels"].copy()}
  arrays["test_labels"][4] = 7
  with pytest.raises(train.RunError, match=r"split test: label 7 at position 4 is out of range.* 0 to 2"):
    load_idx(write_set(tmp_path / "set", arrays, False))


# npz files.


@functools.cache
def arrays():
  random = np.random.default_rng(0)
  part = lambda n: (random.normal(size=(n, 3)).astype(np.float32), np.arange(n) % 4)
  (x, y), (x_test, y_test), (x_val, y_val) = part(40), part(12), part(8)
  return {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test, "x_val": x_val, "y_val": y_val}


def write_npz(tmp_path, **changes):
  """The arrays with changes; None leaves one out."""
  content = {name: value for name, value in {**arrays(), **changes}.items() if value is not None}
  np.savez(tmp_path / "data.npz", **content)
  return tmp_path / "data.npz"


def load_npz(file, **options):
  return runs.read_source("npz", path=str(file), **options)


def test_npz_with_its_own_validation_split(tmp_path):
  data = load_npz(write_npz(tmp_path), scale=2.0)
  assert (data.num_classes, data.scale) == (4, 2.0)
  for name, split in data.splits().items():
    np.testing.assert_array_equal(split.inputs, arrays()[f"x_{name}"])
    np.testing.assert_array_equal(split.labels, arrays()[f"y_{name}"])


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_npz_without_one_is_split_stratified(tmp_path, fraction):
  file = write_npz(tmp_path, x_val=None, y_val=None)
  data = load_npz(file, validation_fraction=fraction)
  assert len(data.val) == fraction * 40
  if fraction == 0.5:
    assert list(np.bincount(data.val.labels)) == list(np.bincount(data.train.labels)) == [5] * 4
  rows = lambda split: {(*row, label) for row, label in zip(split.inputs.tolist(), split.labels)}
  assert rows(data.train) | rows(data.val) == rows(Split(arrays()["x_train"], arrays()["y_train"]))
  assert not rows(data.train) & rows(data.val)
  assert load_npz(file, validation_fraction=fraction).describe() == data.describe()


@pytest.mark.parametrize(
  ("dtype", "expected"),
  [("uint8", "uint8"), ("float64", "float32"), ("int16", "float32"), ("float16", "float32")],
)
def test_npz_inputs_become_uint8_or_float32(tmp_path, dtype, expected):
  changes = {
    f"x_{part}": np.abs(arrays()[f"x_{part}"] * 9).astype(dtype) for part in ("train", "val", "test")
  }
  data = load_npz(write_npz(tmp_path, **changes))
  assert data.train.inputs.dtype == expected
  np.testing.assert_array_equal(data.train.inputs, changes["x_train"])


def set_at(x, position, value):
  x = x.copy()
  x[position] = value
  return x


X, Y = arrays()["x_train"], arrays()["y_train"]
LATE = np.arange(12) % 4
MISTAKES = {
  "no x_train": ({"x_train": None}, r"lacks x_train; it has x_test, "),
  "no test": ({"x_test": None, "y_test": None}, r"lacks x_test, y_test; it has "),
  "objects": (
    {"x_train": np.array([{"a": 1}] * 40)},
    r"data\.npz\.path: .*data\.npz cannot be read \(Object arrays",
  ),
  "float labels": ({"y_train": Y.astype(float)}, "labels must be floating, got int64"),
  "float labels in test": ({"y_test": np.ones(12)}, "split test: labels must be integers, got float64"),
  "float labels in val": ({"y_val": np.ones(8)}, "split val: labels must be integers, got float64"),
  "one-hot labels": ({"y_train": np.eye(4, dtype=int)[Y]}, r"integers \[n\], got int64 \(\d+, 4\)"),
  "label too large in test": (
    {"y_test": set_at(LATE, 5, 4)},
    r"split test: label 4 at position 5 is out of range; the classes are 0 to 3",
  ),
  "label too large in val": (
    {"y_val": set_at(LATE[:8], 2, 9)},
    r"split val: label 9 at position 2 is out of range; the classes are 0 to 3",
  ),
  "label negative": ({"y_train": np.where(Y == 0, -1, Y)}, r"split train: label -1 at position 0 is out of"),
  "NaN": ({"x_train": set_at(X, 3, np.nan)}, r"split train: inputs have NaN or infinite values"),
  "infinite in test": ({"x_test": np.full((12, 3), np.inf)}, r"split test: inputs have NaN or infinite"),
  "strings": ({"x_train": np.full((40, 3), "a")}, r"x_train must be real numbers, got <U1"),
  "complex": ({"x_test": np.ones((12, 3), complex)}, r"x_test must be real numbers, got complex128"),
  "other shape in test": (
    {"x_test": np.ones((12, 4))},
    r"split test: inputs are float32 \(4,\), in the train split float32 \(3,\)",
  ),
  "other type in test": (
    {"x_test": np.ones((12, 3), np.uint8)},
    r"split test: inputs are uint8 \(3,\), in the train split float32 \(3,\)",
  ),
  "one class": (
    {"y_train": np.zeros(40, int), "y_test": np.zeros(12, int)},
    r"at least 2 classes, all \d+ are of one",
  ),
  "the test split twice": (
    {"x_test": X, "y_test": Y},
    r"data\.npz: split test: it has the examples of the train split",
  ),
  "a class of weight 0": (
    {"weights_train": 1.0 * (Y > 0)},
    r"split train: class 0 has only examples of weight 0; weigh one more, or leave the class out of all",
  ),
  "a class of weight 0 that is in the test split": (
    {"weights_train": 1.0 * (Y < 3)},
    r"split train: class 3 has only examples of weight 0",
  ),
  "a last class of weight 0, with names": (
    {"weights_train": 1.0 * (Y < 3), "class_names": np.array(list("abcd"))},
    r"split train: class 3 has only examples of weight 0",
  ),
  "fewer inputs": ({"x_train": X[:-1]}, r"39 inputs but 40 labels"),
  "more inputs": ({"x_train": np.concatenate([X, X])}, r"80 inputs but 40 labels"),
  "fewer inputs in test": ({"x_test": X[:11]}, r"split test: 11 inputs but 12 labels"),
  "nothing to train on": ({"x_train": X[:0], "y_train": Y[:0]}, r"split train: it has no examples"),
  "nothing to test on": ({"x_test": X[:0], "y_test": LATE[:0]}, r"split test: it has no examples"),
  "scalar labels": ({"y_train": np.array(3)}, r"split train: labels must be integers \[n\], got int64 \(\)"),
  "features far from 0": (
    {"x_train": X.astype(float) + 1e9},
    r"x_train\[\.\.\., 0\] lies between .* which float32 rounds; give standardize=True",
  ),
  "images far from 0": (
    {"x_train": (X.astype(float) + 1e9)[:, None, None]},
    r"x_train\[\.\.\., 0\] lies between .* which float32 rounds; subtract a number from it",
  ),
  "scalar inputs": ({"x_train": np.array(3.0)}, r"train"),
}


@pytest.mark.parametrize("of_its_own", [True, False])
@pytest.mark.parametrize(("changes", "message"), MISTAKES.values(), ids=MISTAKES)
def test_npz_mistakes_are_told(tmp_path, changes, message, of_its_own):
  """With a validation split of its own or without."""
  without = {} if of_its_own or "y_val" in changes else {"x_val": None, "y_val": None}
  with pytest.raises(train.RunError, match=message) as refused:
    load_npz(write_npz(tmp_path, **{**changes, **without}))
  assert str(refused.value).startswith("data.npz")
  assert "\n" not in str(refused.value)


REMEDIES = {
  "1 to 4": (Y + 1, "give labels - 1"),
  "-1 and 1": (2 * (Y % 2) - 1, r"give \(labels \+ 1\) // 2"),
  "-2 to 1": (Y - 2, r"give labels \+ 2"),
  "gaps": (Y * 10, "give np.searchsorted"),
  "a column": (Y[:, None], r"give labels\[:, 0\]"),
  "one-hot": (np.eye(4)[Y], r"these are one-hot: give labels.argmax\(1\)"),
  "one-hot of booleans": (np.eye(4, dtype=bool)[Y], r"these are one-hot: give labels.argmax\(1\)"),
  "booleans": (Y % 2 == 1, r"give labels.astype\(int\)"),
  "strings": (np.array(list("abcd"))[Y], r"class_names, labels = np.unique\(labels, return_inverse=True\)"),
  "objects": (np.array(list("abcd"), object)[Y], r"numpy.savez saves texts as x.astype\(str\)"),
}


@pytest.mark.parametrize(("labels", "told"), REMEDIES.values(), ids=REMEDIES)
def test_labels_of_other_kinds_have_a_remedy(tmp_path, labels, told):
  with pytest.raises(train.RunError, match=told) as refused:
    load_npz(write_npz(tmp_path, y_train=labels))
  assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["1 to 4", "-2 to 1", "a column", "one-hot", "one-hot of booleans"])
def test_the_remedy_gives_the_labels(tmp_path, kind):
  """What the message says, done to the labels, gives those that were meant."""
  labels = REMEDIES[kind][0]
  with pytest.raises(train.RunError) as refused:
    load_npz(write_npz(tmp_path, y_train=labels))
  remedied = eval(str(refused.value).rpartition("give ")[2], {"labels": labels})
  np.testing.assert_array_equal(remedied, Y)


def test_npz_may_name_the_classes(tmp_path):
  names = ["ant", "bee", "cat", "dog"]
  data = load_npz(write_npz(tmp_path, class_names=np.array(names)))
  assert data.describe().class_names == tuple(names)
  with pytest.raises(train.RunError, match="class_names must have a name for each of 4 classes, got 3"):
    load_npz(write_npz(tmp_path, class_names=np.array(names[:3])))


def test_a_class_of_one_example_is_named(tmp_path):
  labels = np.concatenate([np.arange(39) % 3, [3]])
  changes = {"y_train": labels, "x_val": None, "y_val": None}
  with pytest.raises(
    train.RunError, match=r"validation_fraction: got 0.1, but class 3 has a single training"
  ):
    load_npz(write_npz(tmp_path, **changes))
  named = {**changes, "class_names": np.array(["ant", "bee", "cat", "dog"])}
  with pytest.raises(train.RunError, match="but class 'dog' has a single training example"):
    load_npz(write_npz(tmp_path, **named))


def pixels(dtype, shape=(4, 4), top=255):
  random = np.random.default_rng(0)
  sizes = {"train": 40, "test": 12, "val": 8}
  return {f"x_{part}": random.integers(0, top + 1, (n, *shape)).astype(dtype) for part, n in sizes.items()}


@pytest.mark.parametrize(
  ("changes", "options", "told"),
  [
    (pixels(np.uint8), {}, r"pixels up to 255, .*give --config\.data\.npz\.scale=255$"),
    (pixels(np.float64), {}, r"pixels up to 255, .*give --config\.data\.npz\.scale=255$"),
    (pixels(np.int16, (64,)), {}, r"give --config\.data\.npz\.scale=255$"),
    (pixels(np.uint8, (64,), 16), {}, r"pixels up to 16, .*give --config\.data\.npz\.scale=16$"),
    ({"x_train": X * [1, 1, 300]}, {}, r"not standardised, .*give --config\.data\.npz\.standardize=True$"),
    ({"x_train": X * 1e-3}, {}, r"give --config\.data\.npz\.standardize=True$"),
    ({"x_train": X + 1e3}, {}, r"give --config\.data\.npz\.standardize=True$"),
    (pixels(np.uint8), {"scale": 255.0}, None),
    (pixels(np.uint8, top=1), {}, None),
    ({"x_train": X * [1, 1, 300]}, {"standardize": True}, None),
    ({}, {}, None),
  ],
)
def test_inputs_of_a_bad_scale_are_told_in_one_line(tmp_path, recwarn, changes, options, told):
  fields = {f"data.npz.{name}": value for name, value in options.items()}
  file = write_npz(tmp_path, **changes)
  load_data(runs.make_config({"data.name": "npz", "data.npz.path": str(file), **fields}))
  lines = [str(warning.message) for warning in recwarn if "data.npz" in str(warning.message)]
  assert len(lines) == (told is not None)
  for line in lines:
    assert re.search(told, line)
    assert "\n" not in line


def test_a_source_of_ones_own_is_told_too():
  inputs = pixels(np.uint8)["x_train"]
  split = Split(inputs, np.arange(40) % 2)
  line = scale_remark(Dataset(split, split, split, num_classes=2))
  assert line == "the inputs are pixels up to 255, and nothing divides them; give its Dataset the scale=255"


@pytest.mark.thorough
def test_standardised_inputs_reach_the_network_so(tmp_path):
  """The network sees (x / scale - mean) / std, with the training split's moments, and the run predicts so."""
  x = X.astype(np.float64) * [1, 0, 300] + [0, 4, 1000]
  file = write_npz(
    tmp_path, **{f"x_{part}": x[: len(arrays()[f"x_{part}"])] for part in ("val", "test")}, x_train=x
  )
  fields = {
    "data.name": "npz",
    "data.npz.path": str(file),
    "data.npz.standardize": True,
    "data.npz.scale": 2.0,
  }
  config = runs.make_config({**fields, "batch_size": 8, "method.name": "softmax", "model.MLP.widths": ()})
  data = load_data(config)
  std = np.where(x.std(0) > 0, x.std(0), 1)
  np.testing.assert_allclose(data.input_mean, x.mean(0), rtol=1e-12)
  np.testing.assert_allclose(data.input_std, std, rtol=1e-12)
  program = build(config, data.describe())
  state = program.init(np.uint32(0))
  outputs, _ = program.apply_fn(state.params, state.model_state, data.train.inputs, key=None, train=False)
  kernel, bias = (np.asarray(x, np.float64) for x in jax.tree.leaves(state.params)[::-1])
  np.testing.assert_allclose(outputs["logits"], (x - x.mean(0)) / std @ kernel + bias, atol=1e-4)
  with pytest.raises(
    train.RunError, match=r"augment\.mean: the inputs of data\.npz are standardised already"
  ):
    build(
      runs.make_config({**fields, "augment.mean": (0.0,) * 3, "augment.std": (1.0,) * 3}), data.describe()
    )


def test_features_over_time_keep_their_digits(tmp_path):
  """Times in seconds; float32 would keep minutes only."""
  x = 1.7e9 + np.random.default_rng(0).integers(0, 60, (40, 4, 3)).astype(np.float64)
  data = load_npz(write_npz(tmp_path, x_train=x, x_val=x[:8] + 1, x_test=x[:12] + 1), standardize=True)
  rows = x.reshape(-1, 3)
  np.testing.assert_allclose(data.train.inputs, (x - rows.mean(0)) / rows.std(0), rtol=1e-6, atol=1e-6)


def npy(array):
  np.save(stream := io.BytesIO(), array)
  return stream.getvalue()


def zip_of(name, text):
  with zipfile.ZipFile(stream := io.BytesIO(), "w") as archive:
    archive.writestr(name, text)
  return stream.getvalue()


def flipped(content):
  at = content.index(X.tobytes()) + 50
  return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


BROKEN = {
  "text": lambda content: b"x_train, y_train\n1, 2\n",
  "empty": lambda content: b"",
  "truncated": lambda content: content[: len(content) // 2],
  "flipped": flipped,
  "pickle": lambda content: pickle.dumps({"x_train": X}),
  "npy": lambda content: npy(X),
  "lzma": zips.damaged_lzma,
  "zip of others": lambda content: zip_of("x_train.npy", b"hello"),
}


def test_members_of_an_npz_that_are_not_arrays(tmp_path):
  file = write_npz(tmp_path)
  with zipfile.ZipFile(file, "a") as archive:
    archive.writestr("notes.txt", "hello")
  load_npz(file)
  with zipfile.ZipFile(file, "a") as archive:
    archive.writestr("weights_train.npy", b"hello")
  with pytest.raises(train.RunError, match=r"cannot be read \(weights_train\.npy is not an array\); give an"):
    load_npz(file)


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_what_is_not_a_whole_npz_is_told(tmp_path, damage):
  file = write_npz(tmp_path)
  file.write_bytes(damage(file.read_bytes()))
  with pytest.raises(train.RunError, match=r"^data\.npz\.path: ") as refused:
    load_npz(file)
  assert str(file) in str(refused.value)
  assert "\n" not in str(refused.value)


@pytest.mark.parametrize("path", ["", "nowhere.npz", "."])
def test_an_npz_that_is_not_there_is_told(tmp_path, monkeypatch, path):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(
    train.RunError, match=r"data\.npz\.path: got .* is not a file; give an \.npz with x_train"
  ):
    runs.read_source("npz", path=path)


@pytest.mark.parametrize(
  ("option", "value"),
  [
    *(("validation_fraction", fraction) for fraction in (0.0, 1.0, -0.1, 1.5, float("nan"), 0.01)),
    *(("scale", scale) for scale in (0.0, -1.0, float("nan"), float("inf"))),
  ],
)
def test_npz_options_out_of_range(tmp_path, option, value):
  file = write_npz(tmp_path, x_val=None, y_val=None)
  with pytest.raises(train.RunError, match=rf"data(\.npz)?\.{option}: .*got "):
    load_npz(file, **{option: value})


# What a data set knows of itself.


@pytest.mark.parametrize(("num_classes", "per_class"), [(0, 20), (3, 0), (5, 20), (10, 100)])
def test_a_subset_has_as_many_of_each_class(num_classes, per_class):
  digits = sources.digits()
  taken = subset(digits, Subset(num_classes=num_classes, per_class=per_class, seed=4))
  assert taken.num_classes == (num_classes or 10)
  for name, split in taken.splits().items():
    assert set(split.labels) == set(range(taken.num_classes))
    if name == "train" and per_class:
      np.testing.assert_array_equal(np.bincount(split.labels), per_class)
  # The examples are the set's own, each once; the classes keep their order.
  pixels = {image.tobytes(): label for image, label in zip(digits.train.inputs, digits.train.labels)}
  found = [(int(k), int(pixels[x.tobytes()])) for x, k in zip(taken.train.inputs, taken.train.labels)]
  assert len({x.tobytes() for x in taken.train.inputs}) == len(taken.train)
  pairs = sorted(set(found))
  assert len(pairs) == taken.num_classes
  assert [old for _, old in pairs] == sorted(old for _, old in pairs)
  kept = [old for _, old in pairs]
  assert len(taken.test) == np.isin(digits.test.labels, kept).sum()


def test_smaller_subsets_lie_in_larger_ones_and_seeds_differ():
  digits = sources.digits()
  images = lambda **options: {x.tobytes() for x in subset(digits, Subset(**options)).train.inputs}
  assert images(num_classes=2, per_class=10) < images(num_classes=5, per_class=10)
  assert images(num_classes=5, per_class=10) < images(num_classes=5, per_class=30) < images(per_class=30)
  assert images(per_class=10) != images(per_class=10, seed=1)
  assert images(per_class=10) == images(per_class=10)
  assert subset(digits, Subset()) is digits


def test_the_first_examples_of_a_class_and_of_all_and_a_limit():
  digits = sources.digits()
  labels = digits.train.labels
  first = subset(digits, Subset(per_class=5, drawn=False))
  positions = np.sort([at for k in range(10) for at in np.flatnonzero(labels == k)[:5]])
  np.testing.assert_array_equal(first.train.inputs, digits.train.inputs[positions])
  some = subset(digits, Subset(num_train=300, limit=200))
  assert [len(split) for split in some.splits("rest").values()] == [200, 200, 200, 200]
  np.testing.assert_array_equal(some.train.labels, labels[:200])
  np.testing.assert_array_equal(some.rest.labels, labels[300:500])


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"num_classes": 1}, "^num_classes: must be 0 or from 2 to 10, got 1"),
    ({"num_classes": 11}, "^num_classes: must be 0 or from 2 to 10, got 11"),
    ({"num_train": 2000}, "^num_train: must be 0 or at most 1078, got 2000"),
    ({"per_class": 500}, "^per_class: must be 0 or at most 104, got 500"),
  ],
)
def test_a_subset_that_is_not_there(options, message):
  with pytest.raises(train.RunError, match=message):
    subset(sources.digits(), Subset(**options))


def test_a_subset_may_leave_nothing_over(idx_folder):
  whole = load_idx(idx_folder)
  assert not len(whole.rest)
  assert len(np.unique(subset(whole, Subset(num_classes=2)).train.labels)) == 2
  balanced = load_idx(idx_folder, per_class=2, drawn=False)
  assert len(subset(balanced, Subset(per_class=2)).train) == len(balanced.train)


def test_a_split_without_any_of_the_classes_is_refused():
  digits = sources.digits()
  one = subset(digits, Subset(num_classes=2)).train.inputs  # of the classes that seed 0 draws
  kept = np.array([any((image == other).all() for other in one) for image in digits.train.inputs])
  classes = np.unique(digits.train.labels[kept])
  without = dataclasses.replace(digits, val=digits.val.take(~np.isin(digits.val.labels, classes)))
  with pytest.raises(train.RunError, match=r"^num_classes: the val split has no example of the 2 classes"):
    subset(without, Subset(num_classes=2))


def test_limited_takes_the_first_of_each_split():
  digits = sources.digits()
  assert digits.limited(0) is digits
  limited = digits.limited(300)
  assert [len(split) for split in limited.splits().values()] == [300, 300, 300]
  np.testing.assert_array_equal(limited.test.labels, digits.test.labels[:300])


def test_describe_notices_one_pixel_one_label_and_their_order():
  split = lambda: Split(np.arange(24, dtype=np.uint8).reshape(6, 4), np.arange(6))
  data = Dataset(split(), split(), split(), num_classes=6)
  changed = []
  for change in range(3):
    other = split()
    if change == 0:
      other.inputs[5, 3] ^= 1
    elif change == 1:
      other.labels[0] ^= 1
    else:
      other = other.take([1, 0, 2, 3, 4, 5])
    changed.append(Dataset(split(), other, split(), num_classes=6).describe())
  for description in changed:
    assert description.crc32["val"] != data.describe().crc32["val"]
    assert description.crc32["train"] == data.describe().crc32["train"]
  assert data.describe().sizes == {"train": 6, "val": 6, "test": 6}


def test_flipped_labels_are_another_class_and_only_of_the_training_split():
  whole = sources.digits()
  flipped = flip_labels(whole, rate=0.2)
  differ = flipped.train.labels != whole.train.labels
  assert differ.sum() == round(0.2 * len(whole.train))
  assert set(flipped.train.labels) == set(range(10))
  np.testing.assert_array_equal(flipped.val.labels, whole.val.labels)
  np.testing.assert_array_equal(flipped.test.labels, whole.test.labels)
  # Every other class alike: 9 shifts, within 4 standard deviations.
  shifts = np.bincount((flipped.train.labels - whole.train.labels)[differ] % 10, minlength=10)
  mean = differ.sum() / 9
  assert shifts[0] == 0
  assert np.abs(shifts[1:] - mean).max() < 4 * np.sqrt(mean)
  np.testing.assert_array_equal(flip_labels(whole, rate=0.2).train.labels, flipped.train.labels)
  assert flip_labels(whole) is whole
  with pytest.raises(
    train.RunError, match=r"data\.flipped_labels\.rate: must be at least 0 and at most 1, got 2"
  ):
    runs.make_config({"data.flipped_labels.rate": 2.0})
