"""The configuration and the folder of a row, for jobs that train several runs."""

import re

from jaxreg.train.config.choices import Config, base_config, flatten, relevant
from jaxreg.train.config.fields import row_of
from jaxreg.train.entries import Options
from jaxreg.train.errors import RunError, one_line
from jaxreg.train.run.folder_name import short_hash


def check_replicas(config: Config) -> None:
  """Checks that `replicas` is not set for a job that sets it itself."""
  if config.replicas not in (1, config.ensemble):
    raise RunError(f"replicas: job={config.job} sets them itself; leave it out, got {config.replicas}")


def row_config(config: Config, label: str, fields: Options, *, seeds: int) -> Config:
  """The configuration of one run: `config` with `fields` set, and a replica for each member."""
  for field in ("job", "replicas"):
    if field in fields:
      raise RunError(f"{field}: is the same in all rows; leave it out of {label!r}")
  # A deep copy, so that the fields of one row do not reach the next.
  row: Config = config.copy_and_resolve_references()
  members = fields.get("ensemble", config.ensemble)
  for field, value in {**fields, "job": "train", "replicas": seeds * members}.items():
    try:
      row.update_from_flattened_dict({field: value})
    except (TypeError, ValueError) as error:
      raise RunError(f"{field}={value} in {label!r}: {one_line(error)}") from error
  return row.lock()


def row_folder(label: str, config: Config) -> str:
  """A name with the row's label and a hash of all fields that the result depends on."""
  # Fields with their default values are left out, so that fields of later versions do not change the name.
  defaults, fields = flatten(base_config()), relevant(flatten(config))
  fields = {name: value for name, value in fields.items() if value != defaults.get(name)}
  fields = {name: value for name, value in fields.items() if row_of(name).scope != "call"}
  return f"{re.sub(r'[^0-9A-Za-z_]+', '_', label).strip('_')}-{short_hash(fields)}"
