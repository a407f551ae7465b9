"""The text of `--help`: which fields a job reads, what they mean and what they may be.

Where the table has no text, the field is a parameter of a function, whose docstring describes it.
"""

import functools
import inspect
import itertools
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxreg import adversarial, averaging, losses, models, penalties
from jaxreg.train.config.choices import CHOICES, Config, flatten, named_in, relevant
from jaxreg.train.config.fields import attribute, is_read
from jaxreg.train.config.rows import checked_rows, compared_rows
from jaxreg.train.data.images import Decoding
from jaxreg.train.lookup import is_yours, short
from jaxreg.train.registry import REGISTRY, find, takes_modules

WIDTH = 80


def fields_read(chosen: Config) -> list[str]:
  """The fields that the job of a configuration reads, also in its rows if it has rows."""
  flat = flatten(chosen)
  variants = [flat]
  if chosen.job == "compare":
    variants = [flat | point | row.fields for row in compared_rows(chosen) for point in row.grid or [{}]]
  elif chosen.job == "flatness" and chosen.flatness.rows:
    variants = [flat | row for row in checked_rows(chosen, "flatness.rows").values()]
  read = {field for variant in variants for field in relevant(variant) if is_read(field, variant)}
  return [field for field in flat if field in read]


def described(flat: Mapping[str, Any], fields: Iterable[str]) -> str:
  """The fields with their values, and below each its description and its allowed values."""
  lines = []
  for field in fields:
    lines.append(f"  --config.{field}={flat[field]}")
    values = allowed(field, flat)
    interval = attribute(field, "allowed")
    shown = isinstance(interval, str) and re.match(r"[\[(]\d", interval)
    numbers = f" In {interval}." if shown else ""
    text = describe(field, flat) + (f" {' | '.join(values)}." if values else numbers)
    lines += textwrap.wrap(
      text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
    )
  return "\n".join(lines)


def describe(field: str, flat: Mapping[str, Any] = types.MappingProxyType({})) -> str:
  """The description of a field in one sentence, or ""; `flat` gives the names of choices from outside."""
  if text := attribute(field, "help"):
    return text
  for function, name in _origins(field, flat):
    if text := _parameters(function).get(name):
      return text
  return ""


def allowed(field: str, flat: Mapping[str, Any] = types.MappingProxyType({})) -> tuple[str, ...]:
  """The names that a field may have; none for a number, a path or a list of the user's."""
  if field in CHOICES:
    group = CHOICES[field]
    return (*REGISTRY[group], *(["MODULE:NAME"] if takes_modules(group) else []))
  if isinstance(attribute(field, "allowed"), tuple):
    return attribute(field, "allowed")
  for function, name in _origins(field, flat):
    annotation = _hints(function).get(name)
    if typing.get_origin(annotation) is typing.Literal:
      return tuple(map(str, typing.get_args(annotation)))
  return ()


def _origins(field: str, flat: Mapping[str, Any]) -> list[tuple[Callable[..., Any], str]]:
  """The functions that have a field as a parameter, each with the parameter's name."""
  group, *rest = field.split(".")
  if ".".join((group, *rest[:1])) in REGISTRY:  # optimizer.constraints and optimizer.schedule
    group, rest = f"{group}.{rest[0]}", rest[1:]
  if group == "translate":
    return [(models.beam_decode, rest[0])]
  if field.startswith("data.stream."):
    return [(Decoding, rest[1])]
  if group == "method" and len(rest) == 3:
    found = [getattr(thing, rest[1]) for thing in _things(group, rest[0], flat)]
    return [(function, rest[2]) for function in (*found, getattr(losses, rest[0], None)) if function]
  if len(rest) != 2:
    return []
  places = {"regularizers": (penalties, adversarial, losses), "average": (averaging,)}.get(group, ())
  found = [*_things(group, rest[0], flat), *(getattr(place, rest[0], None) for place in places)]
  return [(_inner(function), rest[1]) for function in found if callable(function)]


def _things(group: str, key: str, flat: Mapping[str, Any]) -> list[Any]:
  """The function or class whose options are `group.key`: one of ours, or one that `flat` names."""
  if group not in REGISTRY:
    return []
  if key in REGISTRY[group]:
    return [REGISTRY[group][key].function]
  yours = (name for _, of, name in named_in(flat) if of == group and is_yours(name) and short(name) == key)
  return [find(group, name).function for name in itertools.islice(yours, 1)]


def _inner(function: Any) -> Any:
  return function.func if isinstance(function, functools.partial) else function


@functools.cache
def _parameters(function: Callable[..., Any]) -> dict[str, str]:
  """The first sentence on each parameter, from the section `Args` or `Attributes` of a docstring.

  A text that only refers to another function of the folder, `as in` its name, is the text there.
  """
  doc = inspect.getdoc(function) or ""
  section = re.search(r"^(?:Args|Attributes):\n((?: +.*\n?|\n)*)", doc, re.MULTILINE)
  found: dict[str, str] = {}
  for entry in re.split(r"\n(?=\S)", inspect.cleandoc(section[1])) if section else []:
    names, colon, text = entry.partition(":")
    for name in re.sub(r"\([^)]*\)|[`*]", "", names).split(",") if colon else []:
      found[name.strip()] = _elsewhere(function, name.strip(), text) or _sentence(" ".join(text.split()))
  return found


def _elsewhere(function: Callable[..., Any], name: str, text: str) -> str:
  """The sentence on a parameter that a text refers to, in the same folder; empty for any other text."""
  refers = re.fullmatch(r"\s*as (?:in|for) `(\w+)`\.?", text)
  if not refers:
    return ""
  other = getattr(sys.modules.get(function.__module__.rpartition(".")[0]), refers[1], None)
  return _parameters(other).get(name, "") if callable(other) else ""


def _sentence(text: str) -> str:
  first = re.split(r"(?<=[a-z0-9)`\]])\. (?=[A-Z])", re.sub(r":\w+:`([^`]*)`", r"\1", text))[0].rstrip(".")
  return f"{first[:1].upper()}{first[1:]}." if first else ""


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
  try:
    return typing.get_type_hints(function)
  except (NameError, TypeError):  # a function from outside may have annotations that cannot be read
    return {}
