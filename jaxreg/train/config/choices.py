"""The choices that a configuration makes by name, and the options of each choice.

A name is a row of one of our tables, or `my_package.my_module:NAME`. The options of a choice stand in a group
of its name beside the choice, as `method.NAME.loss.epsilon`. Their defaults come from its signature.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxreg.train.config import defaults
from jaxreg.train.config.flat import SHARED, flatten
from jaxreg.train.data import sources
from jaxreg.train.errors import RunError
from jaxreg.train.lookup import check_imported, short
from jaxreg.train.step import named, network, optimizer, tables
from jaxreg.train.step.methods import METHODS, find_method


@dataclasses.dataclass(frozen=True)
class Choice:
  """The alternatives of one group of the configuration.

  Attributes:
    table: our functions and classes by name.
    find: `name -> thing`, the function or class of a name, also for `module:NAME`.
    options: `thing -> options`, with their defaults.
    several: whether the group has a field `names`, and no field `name`.
  """

  table: Mapping[str, Any]
  find: Callable[[str], Any]
  options: Callable[[Any], Any]
  several: bool = False

  @property
  def field(self) -> str:
    return "names" if self.several else "name"


BY_NAME = {
  "data": Choice(sources.SOURCES, sources.find_source, defaults.options),
  "augment": Choice(
    tables.AUGMENTATIONS, named.find_augmentation, defaults.augmentation_options, several=True
  ),
  "model": Choice(network.BACKBONES, network.find_backbone, defaults.model_options),
  "method": Choice(METHODS, find_method, defaults.method_options),
  "regularizers": Choice(
    tables.CHOSEN["regularizers"], named.find_regularizer, defaults.regularizer_options, several=True
  ),
  "noise": Choice(tables.NOISES, named.find_noise, defaults.leaf_options, several=True),
  "optimizer": Choice(optimizer.OPTIMIZERS, optimizer.find_optimizer, defaults.optimizer_options),
  "optimizer.constraints": Choice(
    tables.CONSTRAINTS, named.find_constraint, defaults.leaf_options, several=True
  ),
}
FIELDS = {f"{group}.{choice.field}": group for group, choice in BY_NAME.items()}
# Fields whose entries set other fields, as 'label: field=value ...'.
ROWS = ("compare.rows", "compare.grid", "flatness.rows", "flatness.alignment.noises")
NAME = r"[\w.]+:\w+"


def is_choice(field: str) -> bool:
  """Whether a field names a choice with options, itself or in its rows."""
  return field in FIELDS or field in ROWS or _is_inner(field)


def chosen(config: Any, group: str, name: str | None = None) -> tuple[Any, dict[str, Any]]:
  """The function or class that a group of the configuration names, and its options as keyword arguments.

  Args:
    config: a configuration.
    group: a key of `BY_NAME`.
    name: one of several names, or a wrapper's `inner`; by default the group's own `name`.

  Raises:
    RunError: if nothing has that name.
  """
  part = _part(config, group)
  which: str = part.name if name is None else name
  return BY_NAME[group].find(which), part[short(which)].to_dict()


def add_options(config: Any, flat: Mapping[str, Any] | None = None) -> Any:
  """Adds the group of options of every choice that has none in the configuration yet.

  A configuration has the options of our tables from the start. After any other choice, this adds its options:

    config.method.name = "my_package.my_module:POLY"
    add_options(config).method.POLY.loss.epsilon = 2.0

  Args:
    config: the configuration, which is changed.
    flat: the fields that choose, by their full names; by default the fields of `config` itself.

  Returns:
    `config`.

  Raises:
    RunError: if a name is wrong, or the place of its options is taken.
  """
  with config.unlocked():
    for group, choice in BY_NAME.items():
      for name, thing in choice.table.items():
        if name not in _part(config, group):
          _part(config, group)[name] = choice.options(thing)
    for field, group, name in named_in(flatten(config) if flat is None else flat):
      wanted = BY_NAME[group].options(_find(field, group, name))
      part, place = _part(config, group), short(name)
      if place in SHARED.get(group, ()) or not isinstance(part.get(place, wanted), ConfigDict):
        raise RunError(f"{field}: {name} has the name of the field {group}.{place}; rename it")
      if field in FIELDS and part.get("name", name) != name and short(part.name) == place:
        del part[place]  # the options of the choice that it replaces
      if flatten(part.get(place, wanted)).keys() != flatten(wanted).keys():
        raise RunError(
          f"{field}: {group}.{place} holds the options of something other than {name}; rename it"
        )
      if place not in part:
        part[place] = wanted
  return config


def check_choices(config: Any) -> None:
  """Checks that each choice exists, has options, and shares them with no other choice.

  Raises:
    RunError: with the field, its value and the allowed values.
  """
  owners: dict[tuple[str, str], str] = {}
  for field, group, name in named_in(flatten(config)):
    _find(field, group, name)
    if short(name) not in _part(config, group):
      raise RunError(
        f"{field}: {name} has no options yet; call jaxreg.train.add_options(config) after naming it"
      )
    other = owners.setdefault((group, short(name)), name)
    if other != name:
      raise RunError(f"{field}: {other} and {name} would share {group}.{short(name)}; rename one of them")


def check_imports(flat: Mapping[str, Any]) -> None:
  """Checks that the names in a work directory's configuration need no import.

  Raises:
    RunError: with the field and the module.
  """
  for field, _, name in named_in(flat):
    if field not in ROWS:
      check_imported(name, field)


def named_in(flat: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
  """The field, the group and the name of every choice in a flat configuration.

  Rows give only their names of the form `module:NAME`. Values of wrong types are left out.
  """
  for field, value in flat.items():
    values = value if isinstance(value, list | tuple) else [value] if isinstance(value, str) else []
    if field in FIELDS or _is_inner(field):
      yield from ((field, FIELDS.get(field, "optimizer"), name) for name in values)
    elif field in ROWS:
      for entry in map(str, values):
        yield from ((field, group, name) for group, name in _named_in_row(entry))


def _named_in_row(entry: str) -> Iterator[tuple[str, str]]:
  if re.fullmatch(NAME, entry):
    yield "method", entry
  for field, value in re.findall(r"([\w.]+)=(\S+)", entry):
    if field in FIELDS or _is_inner(field):
      yield from ((FIELDS.get(field, "optimizer"), name) for name in re.findall(NAME, value))


def _is_inner(field: str) -> bool:
  return re.fullmatch(r"optimizer\.\w+\.inner", field) is not None


def _find(field: str, group: str, name: str) -> Any:
  if _is_inner(field):
    return optimizer.find_step(name, field)
  try:
    return BY_NAME[group].find(name)
  except RunError as error:
    raise RunError(f"{field}: {error}" if field in ROWS else str(error)) from error


def _part(config: Any, group: str) -> Any:
  return functools.reduce(lambda part, name: part[name], group.split("."), config)
