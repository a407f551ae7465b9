"""The configuration with all its fields, and the choices that it makes by name.

A name is a row of the registry, or `my_package.my_module:NAME`. The options of a choice stand in a group of
its name, next to the choice, as `method.NAME.loss.epsilon`. Their defaults come from its signature.
"""

import copy
import functools
import re
from collections.abc import Iterator
from typing import cast

import jax
from ml_collections import ConfigDict, config_dict

from jaxreg.train import registry
from jaxreg.train.config.fields import FIELDS, Choice, Config
from jaxreg.train.entries import Chosen, Entry, Fields, Options
from jaxreg.train.errors import RunError
from jaxreg.train.registry import REGISTRY, options_of
from jaxreg.train.user_modules import check_imported, is_yours, short

CHOICES = {field: group for group, field in registry.CHOOSERS.items()}  # the group of each field that chooses
# Fields whose tables set other fields, as `{label: {field: value}}`.
ROWS = ("compare.rows", "compare.grid")


def base_config() -> Config:
  """Makes a configuration of all fields with their defaults; a config file changes some of them."""
  config = cast(Config, _group({}))
  for field, row in FIELDS.items():
    *parents, name = field.split(".")
    part = config
    for parent in parents:
      if parent not in part:
        part[parent] = _group({})
      part = part[parent]
    part[name] = copy.deepcopy(row.default)
  return add_options(config).lock()


def _group(fields: Options) -> ConfigDict:
  """Returns a group of the configuration; a field whose default is None is a number that may be left out."""
  group = ConfigDict(convert_dict=False)  # a dict is a value: rows, whose labels and fields have dots
  for name, value in fields.items():
    value = _group(value) if isinstance(value, dict) else value
    group[name] = config_dict.placeholder(float) if value is None else value
  return group


def flatten(config: ConfigDict | Options, prefix: str = "") -> Fields:
  """Returns the fields by their dotted names: `{"optimizer.name": "adam", ...}`."""
  flat = {}
  for name, value in config.items():
    if isinstance(value, type(config)):  # a dict in a configuration is a value, as `compare.rows`
      flat |= flatten(value, f"{prefix}{name}.")
    else:
      flat[prefix + name] = list(value) if isinstance(value, tuple) else value
  return flat


def relevant(flat: Options) -> Fields:
  """Removes the options of choices that a flat configuration does not name."""
  return {field: value for field, value in flat.items() if chooser(field, flat) is None}


def split_option(field: str) -> tuple[str, str, str] | None:
  """Splits an option into group, choice and name: `method`, `focal`, `loss.gamma`; None for other fields."""
  if field in FIELDS:
    return None
  group = max((group for group in REGISTRY if field.startswith(f"{group}.")), key=len, default="")
  choice, dot, name = field.removeprefix(f"{group}.").partition(".")
  return (group, choice, name) if group and dot else None


def chooser(field: str, flat: Options) -> str | None:
  """Returns the field that would have to name this option's choice; None if it names it."""
  option = split_option(field)
  if option is None:
    return None
  group, choice, _ = option
  by = registry.CHOOSERS[group]
  named = flat.get(by, ())
  names = [short(each) for each in (named if isinstance(named, list) else [named])]
  inner = [short(flat.get(f"{group}.{name}.inner")) for name in names]
  return None if choice in (*names, *inner) else by


def is_choice(field: str) -> bool:
  """Tells whether a field names a choice with options, itself or in its rows."""
  return field in CHOICES or field in ROWS or _is_inner(field)


def chosen(config: Config, group: str, name: str | None = None) -> Chosen:
  """Returns the entry that a group of the configuration names, or one `name` of several, with its options."""
  part = _part(config, group)
  which: str = part.name if name is None else name
  return registry.choose(group, which, part[short(which)].to_dict())


def chosen_all(config: Config, group: str) -> list[Chosen]:
  """Returns the entries that the field `names` of a group names, in their order."""
  return [chosen(config, group, name) for name in _part(config, group).names]


def add_options(config: Config, flat: Options | None = None) -> Config:
  """Adds the group of options of every choice that has none in the configuration yet.

  A configuration has the options of our tables from the start. After any other choice, this adds its options:

    config.method.name = "my_package.my_module:POLY"
    add_options(config).method.POLY.loss.epsilon = 2.0

  Args:
    config: the configuration, which is changed and returned.
    flat: the fields that choose, by their full names; by default the fields of `config` itself.

  Raises:
    RunError: if a name is wrong, or the place of its options is taken.
  """
  with config.unlocked():
    for group, rows in REGISTRY.items():
      for name, row in rows.items():
        if name not in _part(config, group):
          _part(config, group)[name] = _group(options_of(row))
    for field, group, name in named_in(flatten(config) if flat is None else flat):
      wanted = _group(options_of(_find(field, group, name)))
      part, place = _part(config, group), short(name)
      if any(f"{known}.".startswith(f"{group}.{place}.") for known in FIELDS):
        raise RunError(f"{field}: {name} has the name of the field {group}.{place}; rename it")
      if field in CHOICES and part.get("name", name) != name and short(part.name) == place:
        del part[place]  # the options of the choice that it replaces
      if place not in part:
        part[place] = wanted
      if flatten(part[place]).keys() != flatten(wanted).keys():
        raise RunError(f"{field}: {group}.{place} holds other options than {name} has; rename it")
  return config


def check_choices(config: Config) -> None:
  """Checks that each choice exists, has options, and shares them with no other choice."""
  owners: dict[tuple[str, str], str] = {}
  for field, group, name in named_in(flatten(config)):
    _find(field, group, name)
    if short(name) not in _part(config, group):
      raise RunError(f"{field}: {name} has no options yet; call jaxreg.train.add_options(config) after it")
    other = owners.setdefault((group, short(name)), name)
    if other != name:
      raise RunError(f"{field}: {other} and {name} would share {group}.{short(name)}; rename one of them")


def check_imports(flat: Options) -> None:
  """Checks that the names in a work directory's configuration need no import."""
  for field, _, name in named_in(flat):
    if field not in ROWS:
      check_imported(name, field)


def named_in(flat: Options) -> Iterator[tuple[str, str, str]]:
  """Yields the field, group and name of every choice; of choices in rows, only those named `module:NAME`."""
  for field, value in flat.items():
    if field in CHOICES or _is_inner(field):
      names = (name for name in jax.tree.leaves(value) if isinstance(name, str))
      yield from ((field, CHOICES.get(field, "optimizer"), name) for name in names)
    elif field in ROWS and isinstance(value, dict):
      for key, fields in value.items():
        named = named_in(fields if isinstance(fields, dict) else {key: fields})
        yield from ((field, group, name) for _, group, name in named if is_yours(name))


def _is_inner(field: str) -> bool:
  return re.fullmatch(r"optimizer\.\w+\.inner", field) is not None


def _find(field: str, group: str, name: str) -> Entry:
  if _is_inner(field):
    return registry.find(group, name, field=field, kind="step")
  try:
    return registry.find(group, name)
  except RunError as error:
    raise RunError(f"{field}: {error}" if field in ROWS else str(error)) from error


def _part(config: Config, group: str) -> Choice:
  return cast(Choice, functools.reduce(lambda part, name: part[name], group.split("."), config))
