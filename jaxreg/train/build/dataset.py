"""The data of a run, and the order of its examples."""

from jaxreg.train.config.choices import chosen
from jaxreg.train.config.fields import Config
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.data.order import Order, bootstrap
from jaxreg.train.data.subsets import flip_labels, hide_labels, subset
from jaxreg.train.lookup import short


def load_data(config: Config) -> Dataset:
  """The data set that `config.data` names, checked.

  Raises:
    RunError: with the name of the field or file at fault.
  """
  source, options = chosen(config, "data")
  data = source(**options).decoded_by(**config.data.stream).checked(f"data.{short(config.data.name)}")
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
