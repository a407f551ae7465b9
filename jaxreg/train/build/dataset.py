"""The data of a run, and the order of its examples."""

import warnings

from jaxreg.train.config.choices import Config, chosen
from jaxreg.train.data import scaling
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.data.order import Order, bootstrap
from jaxreg.train.data.readable import without_faults
from jaxreg.train.data.subsets import flip_labels, hide_labels, subset
from jaxreg.train.devices import processes
from jaxreg.train.lookup import short


def load_data(config: Config) -> Dataset:
  """The data set that `config.data` names, checked, and cut to the examples that a run uses."""
  return used_part(config, read_source(config))


def read_source(config: Config) -> Dataset:
  """The data set that `config.data` names, unchecked and whole."""
  return chosen(config, "data").bound()().decoded_by(**config.data.stream)


def used_part(config: Config, data: Dataset) -> Dataset:
  """The examples that a run uses, with the labels that it sees; warns of what is odd in the data."""
  name = f"data.{short(config.data.name)}"
  if config.data.skip_unreadable:
    data = without_faults(data)
  data = data.checked(name)
  if processes.is_first():
    of_scale = "" if config.augment.mean else scaling.remark(data, name)
    for line in filter(None, (*data.remarks, of_scale)):
      warnings.warn(line, stacklevel=2)
  data = subset(data, **config.data.subset).limited(config.data.limit)
  data = flip_labels(data, **config.data.flipped_labels)
  return hide_labels(data) if config.data.unlabelled.batch_size else data.without_rest()


def is_resident(config: Config, dataset: Dataset) -> bool:
  """Whether the whole data set is kept in the devices' memory."""
  return not dataset.streams() and dataset.nbytes <= config.data.resident_gib * 2**30


def make_order(config: Config, dataset: Dataset) -> Order:
  """The order that says which training examples make the batch of a step."""
  seeds, number = range(config.seed, config.seed + config.replicas), len(dataset.train)
  return Order(
    seeds,
    number,
    config.batch_size,
    drawn=tuple(bootstrap(seed, number) for seed in seeds) if config.data.bootstrap else (),
    num_unlabelled=0 if dataset.unlabelled is None else len(dataset.unlabelled),
    unlabelled_batch_size=config.data.unlabelled.batch_size,
  )
