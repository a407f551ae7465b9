"""Flags that override fields: what they may name, and how several values of a field are joined."""

import difflib
import functools
import itertools
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict, config_dict
from ml_collections.config_flags import tuple_parser

from jaxreg.train.config.choices import Config, chooser, flatten, is_choice
from jaxreg.train.config.rows import ENTRIES, parse_entries
from jaxreg.train.errors import RunError

# The jobs of a single run, which reads only its own configuration's choices; rows of other jobs may choose
# differently.
ALONE = ("train", "evaluate", "translate")


def choosing_fields(arguments: list[str]) -> dict[str, Any]:
  """The fields among the flags that choose something with options, before the options are known."""
  found: dict[str, Any] = {}
  left = iter(arguments)
  for argument in left:
    name, equals, value = argument.lstrip("-").partition("=")
    field = name.removeprefix("config.")
    if argument.startswith("-") and field != name and is_choice(field):
      value = value if equals else next(left, "")
      found[field] = value if field.endswith((".name", ".inner")) else _several(value)
  return parsed(found)


def parsed(overrides: Mapping[str, Any], config: Config | None = None) -> dict[str, Any]:
  """The overrides with values in the place of the texts of rows and rules; `config` gives their types."""
  known = None if config is None else flatten(config)
  return {
    field: parse_entries(field, value, known) if field in ENTRIES else value
    for field, value in overrides.items()
  }


def _several(text: str) -> tuple[Any, ...]:
  """The names in a tuple on the command line; `config_flags` reports text that is not a tuple."""
  try:
    return tuple_parser.TupleParser().parse(text)
  except (ValueError, TypeError):
    return ()


def check_names(arguments: list[str], config: Config) -> None:
  """Checks that every `--config.FIELD` names a field, and not a group of fields."""
  known: dict[str, Any] = flatten(config)
  for argument in arguments:
    name = argument.lstrip("-").partition("=")[0]
    if not argument.startswith("-") or not name.startswith("config."):
      continue
    field = name.removeprefix("config.")
    if field in known:
      continue
    inside = [other for other in known if other.startswith(f"{field}.")]
    if inside:
      first = sorted(inside, key=lambda other: other.count("."))[:10]
      more = ", ..." if len(inside) > len(first) else ""
      raise RunError(f"--config.{field}: is a group of fields; set one of {', '.join(first)}{more}")
    raise RunError(f"--config.{field}: there is no such field{meant(field, known)}; --helpfull lists all")


def last_tuples(arguments: list[str], config: Config) -> list[str]:
  """The arguments with only the last value of each tuple: ml_collections would join several values.

  For other fields, the last value overrides by itself.
  """
  tuples = {f"config.{field}" for field, value in flatten(config).items() if isinstance(value, list | dict)}
  last: dict[str, list[str]] = {}
  others, left = [], iter(arguments)
  for argument in left:
    name, equals, _ = argument.lstrip("-").partition("=")
    if argument.startswith("-") and name in tuples:
      last[name] = [argument] if equals else [argument, *itertools.islice(left, 1)]
    else:
      others.append(argument)
  return [argument for pair in last.values() for argument in pair] + others


def named_part(arguments: list[str], config: Config) -> ConfigDict:
  """The fields of the configuration that the flags name."""
  part: dict[str, Any] = {}
  for argument in arguments:
    name = argument.lstrip("-").partition("=")[0].removeprefix("no")
    if argument.startswith("-") and name.startswith("config."):
      *groups, field = name.removeprefix("config.").split(".")
      of_config, of_part = config, part
      for group in groups:
        of_config, of_part = of_config[group], of_part.setdefault(group, {})
      # A field that is None has its type only in the configuration.
      empty = of_config[field] is None
      of_part[field] = config_dict.placeholder(of_config.get_type(field)) if empty else of_config[field]
      if isinstance(of_config[field], dict):  # a flag gives the rows of a table as texts
        of_part[field] = ()
  return ConfigDict(part)


def check_read(overrides: Mapping[str, Any], config: Config) -> None:
  """Checks that the run reads each override; jobs with rows are left out, because a row may read it."""
  flat = flatten(config)
  for field in overrides if config.job in ALONE else ():
    if chosen := chooser(field, flat):
      value = functools.reduce(lambda part, name: part[name], chosen.split("."), config)
      raise RunError(
        f"--config.{field}: nothing reads it with {chosen}={value}; name it there, or leave it out"
      )


def meant(field: str, known: Mapping[str, Any]) -> str:
  near = difflib.get_close_matches(field, known, n=3, cutoff=0.6)
  near += [other for other in known if other.split(".")[-1] == field.split(".")[-1] and other not in near]
  return f"; did you mean {' or '.join(near[:4])}?" if near else ""
