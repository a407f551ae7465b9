"""The meaning and the allowed values of each field of the configuration: the text of `--help`.

If a field is a parameter of a function, that function's docstring describes it. `DESCRIPTIONS` describes the
other fields; `*` in it stands for any name.
"""

import fnmatch
import functools
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxreg import adversarial, averaging, losses, models, penalties
from jaxreg.train.config.choices import BY_NAME, FIELDS, named_in
from jaxreg.train.config.descriptions import CHOICES, DESCRIPTIONS
from jaxreg.train.data.images import Decoding
from jaxreg.train.lookup import is_yours, short
from jaxreg.train.step import averages

WIDTH = 80


def described(flat: Mapping[str, Any], fields: Iterable[str]) -> str:
  """The fields with their values, and below each its description and its allowed values."""
  lines = []
  for field in fields:
    lines.append(f"  --config.{field}={flat[field]}")
    values = allowed(field, flat)
    text = describe(field, flat) + (f" {' | '.join(values)}." if values else "")
    lines += textwrap.wrap(
      text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
    )
  return "\n".join(lines)


def describe(field: str, flat: Mapping[str, Any] = types.MappingProxyType({})) -> str:
  """The description of a field in one sentence, or ""; `flat` gives the names of choices from outside."""
  for pattern, text in DESCRIPTIONS.items():
    if fnmatch.fnmatchcase(field, pattern):
      return text
  for function, name in _origins(field, flat):
    if text := _parameters(function).get(name):
      return text
  return ""


def allowed(field: str, flat: Mapping[str, Any] = types.MappingProxyType({})) -> tuple[str, ...]:
  """The names that a field may have; none for a number, a path or a list of the user's."""
  if field in FIELDS:
    return (*BY_NAME[FIELDS[field]].table, "MODULE:NAME")
  if field in CHOICES:
    return CHOICES[field]
  for function, name in _origins(field, flat):
    annotation = _hints(function).get(name)
    if typing.get_origin(annotation) is typing.Literal:
      return tuple(map(str, typing.get_args(annotation)))
  return ()


def _origins(field: str, flat: Mapping[str, Any]) -> list[tuple[Callable[..., Any], str]]:
  """The functions that have a field as a parameter, each with the parameter's name."""
  group, *rest = field.split(".")
  if field.startswith("optimizer.constraints."):
    group, rest = "optimizer.constraints", rest[1:]
  if group == "translate":
    return [(models.beam_decode, rest[0])]
  if field.startswith("data.stream."):
    return [(Decoding, rest[1])]
  if group == "method" and len(rest) == 3:
    return [(getattr(thing, rest[1]), rest[2]) for thing in _things(group, rest[0], flat)]
  if len(rest) != 2:
    return []
  places = {"regularizers": (penalties, adversarial, losses), "average": (averages, averaging)}.get(group, ())
  found = [*_things(group, rest[0], flat), *(getattr(place, rest[0], None) for place in places)]
  return [(_inner(function), rest[1]) for function in found if callable(function)]


def _things(group: str, key: str, flat: Mapping[str, Any]) -> list[Any]:
  """The function or class whose options are `group.key`: one of ours, or one that `flat` names."""
  if group not in BY_NAME:
    return []
  names = [key] if key in BY_NAME[group].table else []
  names += [name for _, of, name in named_in(flat) if of == group and is_yours(name) and short(name) == key]
  return [BY_NAME[group].find(name) for name in names[:1]]


def _inner(function: Any) -> Any:
  return function.func if isinstance(function, functools.partial) else function


@functools.cache
def _parameters(function: Callable[..., Any]) -> dict[str, str]:
  """The first sentence on each parameter, from the section `Args` or `Attributes` of a docstring."""
  doc = inspect.getdoc(function) or ""
  section = re.search(r"^(?:Args|Attributes):\n((?: +.*\n?|\n)*)", doc, re.MULTILINE)
  found: dict[str, str] = {}
  for entry in re.split(r"\n(?=\S)", inspect.cleandoc(section[1])) if section else []:
    names, colon, text = entry.partition(":")
    for name in re.sub(r"\([^)]*\)|[`*]", "", names).split(",") if colon else []:
      found[name.strip()] = _sentence(" ".join(text.split()))
  return found


def _sentence(text: str) -> str:
  first = re.split(r"(?<=[a-z0-9)`\]])\. (?=[A-Z])", re.sub(r":\w+:`([^`]*)`", r"\1", text))[0].rstrip(".")
  return f"{first[:1].upper()}{first[1:]}." if first else ""


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
  try:
    return typing.get_type_hints(function)
  except (NameError, TypeError):  # a function from outside may have annotations that cannot be read
    return {}
