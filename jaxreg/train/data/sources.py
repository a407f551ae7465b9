"""The sources of data: each is a function `(**options) -> Dataset`, and its options are fields."""

import dataclasses
import math
from pathlib import Path

import numpy as np

from jaxreg.train.data.bounded_files import ERRORS, plain_or_gzipped, read_idx, read_npz
from jaxreg.train.data.dataset import Dataset, Split, check_apart, moments, remedy
from jaxreg.train.data.huggingface import huggingface as huggingface
from jaxreg.train.data.image_folder import image_folder as image_folder
from jaxreg.train.data.subsets import ALL, Subset, hold_out
from jaxreg.train.data.tables import csv as csv
from jaxreg.train.data.text import parallel_text as parallel_text
from jaxreg.train.data.tfds.prepared import tfds as tfds
from jaxreg.train.errors import ArgumentError
from jaxreg.train.user_paths import local_path

MOST_VALIDATION = 5000  # examples of idx files for validation
ATTRIBUTES = {
  "even": (0, 2, 4, 6, 8),
  "prime": (2, 3, 5, 7),
  "has a loop": (0, 6, 8, 9),
  "above 4": range(5, 10),
}


def digits(*, attributes: bool = False) -> Dataset:
  """Loads scikit-learn's 1797 handwritten digits, 8x8 pixels: 60/20/20 per cent, stratified, always alike.

  Args:
    attributes: give each digit four labels in place of its class: whether it is even, is prime, has a loop
      and is above 4.

  References:
    Alpaydin, Kaynak, `Optical Recognition of Handwritten Digits`, UCI Machine Learning Repository, 1998
    (CC BY 4.0).
  """
  arrays = read_npz(Path(__file__).with_name("digits.npz"))  # scikit-learn has them, too, but starts slowly

  def split(part: str) -> Split:
    labels = arrays[f"y_{part}"]
    if attributes:
      labels = np.stack([np.isin(labels, [*group]) for group in ATTRIBUTES.values()], axis=1)
    return Split(arrays[f"x_{part}"], labels.astype(np.int64))

  splits = map(split, ("train", "val", "test"))
  names = tuple(ATTRIBUTES) if attributes else ()
  return Dataset(*splits, num_classes=2 if attributes else 10, scale=16.0, class_names=names)


def diabetes() -> Dataset:
  """Loads scikit-learn's 442 diabetes patients: ten measurements, and the progression after a year.

  264, 89 and 89 of them for training, validation and test, always the same; measurements are standardised.
  """
  from sklearn.datasets import load_diabetes
  from sklearn.model_selection import train_test_split

  inputs, progression = load_diabetes(return_X_y=True, scaled=False)
  examples = Split(np.asarray(inputs, np.float64), np.asarray(progression, np.float64))
  train, rest = train_test_split(np.arange(len(examples)), train_size=264, random_state=0)
  val, test = train_test_split(rest, test_size=0.5, random_state=0)
  splits = [examples.take(np.sort(part)) for part in (train, val, test)]
  return Dataset(*splits, num_classes=0, class_names=("progression",)).standardized()


def idx(
  *,
  path: str = "data/mnist",
  subset: Subset = ALL,
  rotation: bool = False,
  background: bool = False,
) -> Dataset:
  """Reads the four idx files of MNIST, or of a set in its format, gzipped or not.

  5000 examples are for validation, or a tenth if that is fewer: the first in the files, or those that follow
  `subset.num_train`. With `subset.per_class` and without `subset.drawn`, validation takes as many examples of
  each class, those that follow.

  Args:
    path: the folder that holds the files.
    subset: the examples that the run uses.
    rotation: rotate every image by a random angle.
    background: lay every image on random noise. Angles and noise are always the same for a split.
  """
  folder = local_path(path, "path")
  examples, test = (
    Split(
      _read_idx(folder, f"{part}-images-idx3-ubyte")[..., None],
      _read_idx(folder, f"{part}-labels-idx1-ubyte").astype(np.int64),
    )
    for part in ("train", "t10k")
  )
  examples.check("train")
  check_apart(examples, test=test)
  num_classes = _count_classes(examples.labels)
  num_validation = min(MOST_VALIDATION, -(-len(examples) // 10))
  per_class, num_train = 0 if subset.drawn else subset.per_class, subset.num_train
  if num_train and (per_class or num_train > len(examples) - num_validation):
    raise ArgumentError(
      "subset.num_train",
      f"must be 0 or, without the first per_class, at most {len(examples) - num_validation}, which "
      f"validation leaves of {len(examples)} examples, got {num_train}",
    )
  if num_train:
    train, val = np.split(np.arange(num_train + num_validation), [num_train])
  elif per_class == 0:
    val, train = np.arange(num_validation), np.arange(num_validation, len(examples))
  else:
    of_class = [np.flatnonzero(examples.labels == k) for k in range(num_classes)]
    smallest = min(len(members) for members in of_class)
    if 2 * per_class > smallest:
      raise ArgumentError(
        "subset.per_class",
        f"got {per_class}, at most {smallest // 2} are allowed: the smallest class has {smallest} examples, "
        "and validation takes the same number as training",
      )
    train = np.sort(np.concatenate([members[:per_class] for members in of_class]))
    val = np.sort(np.concatenate([members[per_class : 2 * per_class] for members in of_class]))
  parts = [
    vary(part, np.random.default_rng(number), rotation=rotation, background=background)
    for number, part in enumerate((examples.take(train), examples.take(val), test))
  ]
  left = np.setdiff1d(np.arange(len(examples)), np.concatenate([train, val]))
  rest = None if rotation or background else examples.take(left)
  return Dataset(*parts, num_classes=num_classes, scale=255.0, rest=rest)


def vary(split: Split, generator: np.random.Generator, *, rotation: bool, background: bool) -> Split:
  """Rotates each image of `split`, uint8 `[n, height, width, 1]`, lays it on a background, or does both.

  The angle is uniform over the circle. The background is noise, each pixel uniform over 0 to 255; it shows
  wherever it is brighter than the digit.

  References:
    Larochelle et al., `An Empirical Evaluation of Deep Architectures on Problems with Many Factors of
    Variation`, 2007: the idea; the paper's sets are other draws, and its rotated digits lie on photographs.
  """
  images = split.inputs
  if rotation:
    images = rotate(images, generator.uniform(0, 360, len(images)))
  if background:
    images = np.maximum(images, generator.integers(0, 256, images.shape, np.uint8))
  return dataclasses.replace(split, inputs=images)


def rotate(images: np.ndarray, angles: np.ndarray) -> np.ndarray:
  """Rotates each image `[height, width, 1]` counter-clockwise about its centre by its angle in degrees."""
  from scipy import ndimage  # its import takes a moment, and few runs need it

  turned = np.empty_like(images)
  for image, angle, output in zip(images, angles, turned, strict=True):
    ndimage.rotate(image, angle, reshape=False, order=1, output=output)
  return turned


def npz(
  *, path: str = "", scale: float = 1.0, standardize: bool = False, validation_fraction: float = 0.1
) -> Dataset:
  """Reads your arrays: `x_train, y_train, x_test, y_test` and optionally `x_val, y_val` of an `.npz` file.

  Labels are integers `[n]` from 0, or `[n, labels]`, each 0 or 1 for no or yes, or -1 if it is not known. Or
  they are floating numbers, `[n]`, or `[n, targets]`, where NaN is not known. A text array `class_names` may
  name the classes, or the labels. Numbers `weights_train` `[n]` of at least 0 weigh the training examples in
  the loss.

  Args:
    path: the `.npz` file; nothing in it is unpickled.
    scale: divisor of the inputs, for instance 255 for uint8 images.
    standardize: subtract the mean of each feature, or channel, of the training inputs, and divide by its
      standard deviation.
    validation_fraction: without `x_val`, the fraction of the training examples for validation.
  """
  file = local_path(path, "path")
  if not path or not file.is_file():
    problem = "which is not a file; give an .npz with x_train, y_train, x_test, y_test"
    raise ArgumentError("path", f"got {path!r}, {problem}")
  try:
    arrays = read_npz(file)
  except ERRORS as error:
    hint = "; numpy.savez saves texts as x.astype(str), numbers as x.astype(float)"
    problem = f"cannot be read ({error}); give an undamaged .npz of plain arrays"
    hint = hint if "Object arrays" in str(error) else ""
    raise ArgumentError("path", f"{file} {problem}{hint}") from error
  parts = ["train", "test"] + (["val"] if {"x_val", "y_val"} & arrays.keys() else [])
  missing = [name for part in parts for name in (f"x_{part}", f"y_{part}") if name not in arrays]
  if missing:
    there = ", ".join(sorted(arrays)) or "nothing"
    raise ArgumentError("path", f"{file} lacks {', '.join(missing)}; it has {there}")
  if not (math.isfinite(scale) and scale > 0):
    raise ArgumentError("scale", f"must be positive, got {scale}")
  splits = {part: Split(_inputs(arrays, part, standardize), arrays[f"y_{part}"]) for part in parts}
  splits["train"] = dataclasses.replace(splits["train"], weights=arrays.get("weights_train"))
  train, test = splits["train"], splits["test"]
  train.check("train")
  train = train.counting()
  check_apart(train, test=test)
  names = tuple(map(str, arrays.get("class_names", np.array(())).tolist()))
  if train.has_numbers:
    num_classes = 0
  elif train.labels.ndim == 2:
    num_classes = 2
  else:
    others = np.concatenate([splits[part].labels.ravel() for part in parts[1:]])
    lost = np.setdiff1d(splits["train"].labels, train.labels)
    # Any other label of weight 0 may be no class at all.
    missed = (lost >= 0) & ((lost < max(len(names), train.labels.max())) | np.isin(lost, others))
    if missed.any():
      problem = (
        f"class {lost[missed][0]} has only examples of weight 0; weigh one more, or leave the class out"
      )
      raise ArgumentError("", f"split train: {problem} of all splits and of class_names")
    num_classes = _count_classes(train.labels)
  val = splits.get("val")
  if val is None:
    train, val = hold_out(train, validation_fraction, names)
  read = [f"{axis}_{part}" for part in parts for axis in "xy"]
  others = sorted(arrays.keys() - {*read, "weights_train", "class_names"})
  unread = f"{file} has the arrays {', '.join(others[:5])} too, which nothing reads" if others else ""
  remarks = (unread,) if unread else ()
  data = Dataset(train, val, test, num_classes, scale, class_names=names, remarks=remarks)
  if train.inputs.dtype == np.float64:
    return data.standardized()
  mean, std = moments(train.inputs / scale) if standardize else ((), ())
  return dataclasses.replace(data, mean=mean, std=std)


def _inputs(arrays: dict[str, np.ndarray], part: str, standardize: bool) -> np.ndarray:
  """Reads the inputs of a part: bytes as they are, features to standardize as float64, others as float32.

  Features have at most an axis of time beside their own; arrays with more axes are images, which keep their
  units on the device.
  """
  x = arrays[f"x_{part}"]
  if not np.issubdtype(x.dtype, np.number) or np.issubdtype(x.dtype, np.complexfloating):
    raise ArgumentError("path", f"x_{part} must be real numbers, got {x.dtype}")
  if x.dtype == np.uint8:
    return x
  if standardize and x.ndim <= 3:
    return x.astype(np.float64)
  rounded = x.astype(np.float32)
  if x.dtype.itemsize > 2 and x.dtype != np.float32 and x.ndim and x.size:
    _check_digits(f"x_{part}", x, rounded)
  return rounded


def _check_digits(name: str, x: np.ndarray, rounded: np.ndarray) -> None:
  """Checks that float32 keeps how the values of each feature, or channel, differ."""
  values = x.reshape(-1, x.shape[-1]).astype(np.float64)
  high, low = np.fmax.reduce(values), np.fmin.reduce(values)  # which pass over NaN
  with np.errstate(invalid="ignore"):  # infinite values, which another check names
    bad = np.fmax.reduce(np.abs(values - rounded.reshape(values.shape))) > 1e-3 * (high - low)
  if (bad & (high > low)).any():
    k = int((bad & (high > low)).argmax())
    remedy = "subtract a number from it" if x.ndim > 3 else "give standardize=True"
    between = f"between {low[k]:.10g} and {high[k]:.10g}"
    raise ArgumentError("path", f"{name}[..., {k}] lies {between}, which float32 rounds; {remedy}")


def _count_classes(labels: np.ndarray) -> int:
  """Counts the classes; labels must be 0, 1, 2, ... without gaps, which a damaged label would leave."""
  classes = np.unique(labels)
  odd = classes != np.arange(len(classes))
  if odd.any():
    label, missing = int(classes[odd.argmax()]), int(odd.argmax())
    raise ArgumentError(
      "",
      f"split train: label {label} at position {int((labels == label).argmax())} is out of range: labels "
      f"must be 0, 1, 2, ..., and {missing} does not occur{remedy(labels)}",
    )
  return len(classes)


def _read_idx(folder: Path, name: str) -> np.ndarray:
  file = plain_or_gzipped(folder, name)
  if file is None:
    raise ArgumentError(
      "path",
      f"{folder} has no {name}[.gz]; give the folder with the four MNIST files, or another source, such as "
      "digits, which needs no files",
    )
  try:
    return read_idx(file, 3 if "idx3" in name else 1)
  except ERRORS as error:
    raise ArgumentError("path", f"{file} is truncated or damaged ({error}); fetch it again") from error
