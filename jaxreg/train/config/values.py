"""Values that a flag or a row gives to fields.

`compare.rows` is `{label: {field: value}}`. `compare.grid` is `{field: values}` for every row, and
`{label: {field: values}}` for one row.
"""

import ast
import dataclasses
import difflib
import itertools
import re
import typing
from collections.abc import Iterable, Mapping

from jaxreg.train.config.choices import ROWS, add_options, chooser, flatten, is_choice, relevant
from jaxreg.train.config.describe import NOTHING, fits, in_words, kind_of
from jaxreg.train.config.fields import Config, Flat, Rows, is_read
from jaxreg.train.errors import RunError, shortened
from jaxreg.train.lookup import Fields, short
from jaxreg.train.registry import REGISTRY

METHODS = REGISTRY["method"]
NAME = r"[\w.]+:\w+"  # `module:NAME`
ENTRIES = (*ROWS, "mesh.shard", "optimizer.mahalanobis.metric")  # the fields whose text `parse_entries` reads
# The jobs of a single run, which reads only its own configuration's choices; rows of other jobs may choose
# differently.
ALONE = ("train", "evaluate", "report")
BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


@dataclasses.dataclass(frozen=True)
class Row:
  """One row of the table: the fields that it sets, and the settings that the search chooses from."""

  label: str
  fields: Fields
  grid: list[Fields]


def take_fields(arguments: list[str]) -> tuple[dict[str, str | None], list[str]]:
  """Splits off the last text of every `--config.FIELD`; `--config` itself is the field ""."""
  texts: dict[str, str | None] = {}
  others, left = [], list(arguments)
  while left:
    argument = left.pop(0)
    found = re.fullmatch(r"--?config(?:\.([^=]*))?(?:=(.*))?", argument, re.DOTALL)
    if not found:
      others.append(argument)
      continue
    field, text = found.groups()
    if text is None and left and not re.match(r"--?[a-z]", left[0]):
      text = left.pop(0)
    texts[field or ""] = text
  return texts, others


def override(config: Config, texts: Mapping[str, str | None]) -> Fields:
  """Sets fields of the configuration to the values of their texts, and returns these values."""
  choosing = {field: text for field, text in texts.items() if is_choice(field)}
  add_options(config, {field: _read(field, text, NOTHING) for field, text in choosing.items()})
  known = flatten(config)
  for field in texts:
    if field not in known:
      raise _no_field(field, known)
  values = {field: _read(field, text, known) for field, text in texts.items()}
  with config.unlocked():
    config.update_from_flattened_dict(values)
  return values


def _no_field(field: str, known: Iterable[str]) -> RunError:
  inside = [other for other in known if other.startswith(f"{field}.")]
  if inside:
    first = sorted(inside, key=lambda other: other.count("."))[:10]
    more = ", ..." if len(inside) > len(first) else ""
    return RunError(f"--config.{field}: is a group of fields; set one of {', '.join(first)}{more}")
  return RunError(f"--config.{field}: there is no such field{meant(field, known)}; --helpfull lists all")


def meant(field: str, known: Iterable[str]) -> str:
  """The fields whose names are near, as a hint."""
  near = difflib.get_close_matches(field, known, n=3, cutoff=0.6)
  near += [other for other in known if other.split(".")[-1] == field.split(".")[-1] and other not in near]
  return f"; did you mean {' or '.join(near[:4])}?" if near else ""


def check_read(overrides: Flat, config: Config) -> None:
  """Checks that the run reads each override; jobs with rows are left out, because a row may read it."""
  flat = flatten(config)
  for field in overrides if config.job in ALONE else ():
    if by := chooser(field, flat):
      value = tuple(flat[by]) if isinstance(flat[by], list) else flat[by]
      raise RunError(f"--config.{field}: nothing reads it with {by}={value}; name it there, or leave it out")


def fields_read(config: Config) -> list[str]:
  """The fields that the job of a configuration reads, also in its rows if it has rows."""
  flat = flatten(config)
  variants = [flat]
  if config.job == "compare":
    variants = [flat | point | row.fields for row in compared_rows(config) for point in row.grid or [{}]]
  read = {field for variant in variants for field in relevant(variant) if is_read(field, variant)}
  return [field for field in flat if field in read]


def compared_rows(config: Config) -> list[Row]:
  """The rows of `compare.rows`; the search of a row goes over the product of its lines of `compare.grid`."""
  rows = checked_rows(config, "compare.rows")
  lines: dict[str, Fields] = {label: {} for label in rows}
  for key, value in config.compare.grid.items():
    if isinstance(value, dict) and key not in rows:
      raise RunError(f"compare.grid: got the row {key!r}; the rows are {', '.join(rows)}")
    for field, points in value.items() if isinstance(value, dict) else [(key, value)]:
      if not isinstance(points, list | tuple) or not points:
        raise RunError(f"compare.grid: {field} needs a tuple of values, got {points!r}")
      points = [_checked(field, point, flatten(config), "compare.grid") for point in points]
      if any(point in points[:place] for place, point in enumerate(points)):
        raise RunError(f"compare.grid: {field} has a value twice, got {tuple(points)}")
      for label in [key] if isinstance(value, dict) else rows:
        lines[label][field] = points  # a line of one row counts more than an earlier one of all rows
  settings = lambda line: [dict(zip(line, point, strict=True)) for point in itertools.product(*line.values())]
  return [Row(label, fields, settings(lines[label])) for label, fields in rows.items()]


def checked_rows(config: Config, where: str) -> dict[str, Fields]:
  """The fields that each row of the field `where` sets, by its label, with values of the fields' types."""
  known = flatten(config)
  rows: Rows = known[where]
  if not rows:
    raise RunError(f"{where}: give at least one, such as {', '.join(METHODS)}")
  for label, fields in rows.items():
    if not isinstance(label, str) or not re.fullmatch(r"[\w .=(),+-]+", label):
      raise RunError(f"{where}: the label {label!r} must have letters, digits and .=(),+- only")
    if not isinstance(fields, dict):
      raise RunError(f"{where}: {label!r} needs a table of fields and values, got {fields!r}")
  return {
    label: {field: _checked(field, value, known, f"{where}, {label!r}") for field, value in fields.items()}
    for label, fields in rows.items()
  }


def _checked(field: str, value: object, known: Flat, where: str) -> object:
  """The value, if it has the type of the field; an integer for a float becomes one, a list a tuple."""
  if field not in known:
    raise RunError(f"{where}: there is no field {field}{meant(str(field), known)}")
  kind = kind_of(field, known)
  if not fits(value, kind):
    raise RunError(f"{where}: {field} must be {in_words(kind)}, got {value!r}")
  if isinstance(value, list):
    return tuple(value)
  return float(value) if kind is float and isinstance(value, int | float) else value


def _read(field: str, text: str | None, known: Flat) -> object:
  """The value of a flag for a field, whose type is that of its value in `known`."""
  flag, kind = f"--config.{field}", kind_of(field, known)
  if text is None and kind is not bool:
    raise RunError(f"Missing value for flag {flag}")
  if field in ENTRIES:
    return parse_entries(field, _tuple(f"{flag}:", text or ""), known)
  return True if text is None else value_of(text, kind, f"{flag}:")


def value_of(text: str, kind: object, where: str) -> object:
  """The value of a text that has a type; `where` begins the error."""
  number = float if kind == float | None else kind
  try:
    if kind is bool:
      return BOOLEANS[text.lower()]
    if number in (int, float):
      return None if text == "None" and kind is not number else number(text)
  except (ValueError, KeyError):
    raise RunError(f"{where} must be {in_words(kind)}, got {shortened(repr(text), 80)}") from None
  return _tuple(where, text) if tuple in (kind, typing.get_origin(kind)) else text


def _tuple(where: str, text: str) -> tuple[object, ...]:
  """The tuple that a text holds; any other text is the tuple's only item."""
  value = literal(text)
  if value == text and re.search(r"^[(\[{]|[,\s]", text):
    raise RunError(f"{where} must be a tuple, as \"('a', 'b')\", got {shortened(repr(text), 80)}")
  return tuple(value) if isinstance(value, list | tuple) else (value,)


def literal(text: str) -> object:
  """A number, a tuple, ... of a text; the text itself if it is none of them."""
  try:
    return ast.literal_eval(text.strip())
  except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
    return text


def parse_entries(field: str, entries: Iterable[object], known: Flat = NOTHING) -> object:
  """The value of a field in `ENTRIES` from the texts that a flag gives for it.

  Each is, for rows, the name of a method or `label: field=value ...`; for the grid, `field=value,value,...`
  or `label: field=value,...`; for `mesh.shard`, a rule's name or `GLOB: DIMENSION=AXIS`; for the metric,
  `GLOB: NUMBER`. The types of the `known` fields say how a value is read.
  """
  texts = [str(entry) for entry in entries]
  if field == "compare.grid":
    return _parse_grid(texts, known)
  if field == "mesh.shard":
    return tuple(map(_parse_rule, texts))
  if field == "optimizer.mahalanobis.metric":
    return tuple((glob.strip(), literal(number)) for glob, _, number in (t.rpartition(":") for t in texts))
  return _parse_rows(field, texts, known)


def _parse_rows(where: str, texts: list[str], known: Flat) -> Rows:
  rows: Rows = {}
  for text in texts:
    method = text if re.fullmatch(NAME, text) or text in METHODS else ""
    label, colon, rest = (short(method), ":", f"method.name={method}") if method else text.partition(":")
    label = label.strip()
    if not colon:
      methods = ", ".join(METHODS)
      raise RunError(f"{where}: got {text!r}; a row is a method ({methods}) or 'label: field=value ...'")
    if label in rows:
      raise RunError(f"{where}: the label {label!r} must be given once")
    rows[label] = {}
    for part in rest.split():
      field, value = _assignment(part, where)
      if field in rows[label]:
        raise RunError(f"{where}: {label!r} sets {field} twice")
      rows[label][field] = value_of(value, kind_of(field, known), f"{where}, {label!r}: {field}")
  return rows


def _parse_grid(texts: list[str], known: Flat) -> Fields:
  grid: Fields = {}
  for text in texts:
    labelled = re.fullmatch(r"(.*?):\s*([\w.]+=.*)", text)  # a value may be `module:NAME`
    label, rest = (labelled[1].strip(), labelled[2]) if labelled else ("", text)
    field, values = _assignment(rest.strip(), "compare.grid")
    line = grid.setdefault(label, {}) if labelled else grid
    if field in line:
      raise RunError(f"compare.grid: {field} is given twice for {label or 'all rows'}")
    kind = kind_of(field, known)
    line[field] = tuple(value_of(value, kind, f"compare.grid: {field}") for value in values.split(","))
  return grid


def _parse_rule(text: str) -> str | tuple:
  """A rule of `mesh.shard`: `(glob, dimension, axes)`, or the text as it is, which may be a rule's name."""
  found = re.fullmatch(r"\s*(\S+)\s*:\s*(-?\d+|\w+)\s*=\s*(\w+)(?:\+(\w+))?\s*", text)
  return (found[1], literal(found[2]), *filter(None, found.groups()[2:])) if found else text


def _assignment(text: str, where: str) -> tuple[str, str]:
  field, equals, value = text.partition("=")
  if not equals or not value:
    raise RunError(f"{where}: got {text!r}; give field=value")
  return field.strip(), value
