"""The data of a run: from the fields of `config.data` to a data set, and to the order of its examples.

The functions of `data` see no configuration. Their errors name arguments, and this file names the fields.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Generator

from jaxreg.train.config.choices import Config, chosen
from jaxreg.train.data import sources
from jaxreg.train.data.batches import Balanced, Order, bootstrap
from jaxreg.train.data.dataset import Dataset, scale_remark
from jaxreg.train.data.subsets import Subset, flip_labels, hide_labels, subset
from jaxreg.train.data.undecodable import without_faults
from jaxreg.train.devices import processes
from jaxreg.train.entries import shown
from jaxreg.train.errors import ArgumentError, RunError, field_error, one_line
from jaxreg.train.user_modules import short

HINT = "; the job check-data finds all such images, and --config.data.skip_unreadable=True leaves them out"
NPZ = {"scale": "--config.data.npz.scale", "standardize": "--config.data.npz.standardize=True"}


def load_data(config: Config) -> Dataset:
  """Loads the data set that `config.data` names, checks it, and cuts it to the examples that a run uses."""
  return used_part(config, read_source(config))


def read_source(config: Config) -> Dataset:
  """Reads the data set that `config.data` names, unchecked and whole."""
  fraction, options = config.data.validation_fraction, Subset(**config.data.subset)
  source = chosen(config, "data").bound(subset=options, validation_fraction=fraction)
  with _fields_of(_source(config)), _own_source(config):
    data = source()
    if not isinstance(data, Dataset):
      raise TypeError(f"must return a jaxreg.train.Dataset, got {shown(data)}")
    return data.decoded_by(hint=HINT, **config.data.stream)


def used_part(config: Config, data: Dataset) -> Dataset:
  """Returns the examples that a run uses, with the labels that it sees; warns of oddities in the data."""
  name, fields = _source(config), config.data
  remarks = [f"{name}: {line}" for line in data.remarks]
  if fields.skip_unreadable:
    with _fields_of("data.skip_unreadable"):
      data, left_out = without_faults(data)
      remarks += [f"data.skip_unreadable: {left_out}"] if left_out else []
  with _fields_of(name), _own_source(config):
    data = data.checked()
  if not config.augment.mean and (odd := scale_remark(data, **(NPZ if name == "data.npz" else {}))):
    remarks.append(f"{name}: {odd}")
  if processes.is_first():
    for line in remarks:
      warnings.warn(line, stacklevel=2)
  with _fields_of("data.subset"):
    data = subset(data, Subset(**fields.subset))
  if fields.balanced and (not data.num_classes or data.train.labels.ndim > 1 or fields.bootstrap):
    raise RunError(
      "data.balanced: needs one class per example and data.bootstrap=False, "
      f"got {data.train.labels_in_words} and data.bootstrap={fields.bootstrap}"
    )
  with _fields_of("data.flipped_labels"):
    data = flip_labels(data, **fields.flipped_labels)
  with _fields_of("data.unlabelled"):
    return hide_labels(data) if fields.unlabelled.batch_size else dataclasses.replace(data, rest=None)


def is_resident(config: Config, dataset: Dataset) -> bool:
  """Tells whether the whole data set is kept in the devices' memory."""
  return not dataset.streams() and dataset.nbytes <= config.data.resident_gib * 2**30


def make_order(config: Config, dataset: Dataset) -> Order:
  """Makes the order that says which training examples make the batch of a step."""
  seeds, number = range(config.seed, config.seed + config.replicas), len(dataset.train)
  labels = dataset.train.labels
  return Order(
    seeds,
    number,
    config.batch_size,
    drawn=tuple(bootstrap(seed, number) for seed in seeds) if config.data.bootstrap else (),
    num_unlabelled=0 if dataset.unlabelled is None else len(dataset.unlabelled),
    unlabelled_batch_size=config.data.unlabelled.batch_size,
    balanced=Balanced(labels) if config.data.balanced else None,
  )


def _source(config: Config) -> str:
  """Returns the section of the configuration that the data come from, such as `data.npz`."""
  return f"data.{short(config.data.name)}"


@contextlib.contextmanager
def _own_source(config: Config) -> Generator[None]:
  """Names the source in errors of a user's own source; a fault of ours keeps its traceback."""
  try:
    yield
  except RunError:
    raise
  except (Exception, SystemExit) as error:  # A source is a user's program: anything can be wrong with it.
    if chosen(config, "data").entry.function in vars(sources).values():
      raise
    raise RunError(f"data.name: {config.data.name}: {type(error).__name__}: {one_line(error)}") from error


@contextlib.contextmanager
def _fields_of(section: str) -> Generator[None]:
  """Names the fields in errors of functions whose arguments are the fields of this section."""
  try:
    yield
  except ArgumentError as error:
    general = error.argument.partition(".")[0] in ("subset", "validation_fraction")
    raise field_error("data" if general else section, error) from error
