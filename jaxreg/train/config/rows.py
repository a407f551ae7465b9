"""Fields whose value is a table or a list of entries: rows, grids, rules of `mesh.shard`, a metric.

`compare.rows` is `{label: {field: value}}`. `compare.grid` is `{field: values}` for every row, and
`{label: {field: values}}` for one row.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from jaxreg.train.config.choices import ROWS, flatten
from jaxreg.train.config.fields import Config, Rows
from jaxreg.train.config.values import NO_FIELDS, fits, hint, in_words, kind_of, literal, read_value
from jaxreg.train.entries import Fields, Options
from jaxreg.train.errors import RunError
from jaxreg.train.registry import REGISTRY
from jaxreg.train.user_modules import short

METHODS = REGISTRY["method"]
NAME = r"[\w.]+:\w+"  # `module:NAME`
PARSED = (*ROWS, "mesh.shard", "optimizer.mahalanobis.metric")  # the fields whose text `parse_entries` reads


@dataclasses.dataclass(frozen=True)
class Row:
  """One row of the table: the fields that it sets, and the settings that the search chooses from."""

  label: str
  fields: Fields
  grid: list[Fields]


def compared_rows(config: Config) -> list[Row]:
  """Returns the rows of `compare.rows`, each with the product of its values in `compare.grid`."""
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
  return [Row(label, fields, _points(lines[label])) for label, fields in rows.items()]


def _points(line: Mapping[str, Any]) -> list[Fields]:
  """Lists the points of a grid: one value for each field."""
  return [dict(zip(line, point, strict=True)) for point in itertools.product(*line.values())]


def checked_rows(config: Config, where: str) -> dict[str, Fields]:
  """Checks the rows of the field `where`, and returns the fields of each with values of their types."""
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


def _checked(field: str, value: object, known: Options, where: str) -> object:
  """Checks the type of a value, and turns an integer for a float into one and a list into a tuple."""
  if field not in known:
    raise RunError(f"{where}: there is no field {field}{hint(str(field), known)}")
  kind = kind_of(field, known)
  if not fits(value, kind):
    raise RunError(f"{where}: {field} must be {in_words(kind)}, got {value!r}")
  if isinstance(value, list):
    return tuple(value)
  return float(value) if kind is float and isinstance(value, int | float) else value


def parse_entries(field: str, entries: Iterable[object], known: Options = NO_FIELDS) -> object:
  """Reads the texts that a flag gives for a field in `PARSED`.

  A text is, for rows, the name of a method or `label: field=value ...`; for the grid, `field=value,value,...`
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


def _parse_rows(where: str, texts: list[str], known: Options) -> Rows:
  rows: Rows = {}
  for text in texts:
    method = text if re.fullmatch(NAME, text) or text in METHODS else ""
    label, colon, rest = (short(method), ":", f"method.name={method}") if method else text.partition(":")
    label = label.strip()
    if not colon:
      methods = ", ".join(METHODS)
      raise RunError(f"{where}: got {text!r}; a row is a method ({methods}) or 'label: field=value ...'")
    if label in rows:
      raise RunError(f"{where}: the label {label!r} appears twice")
    rows[label] = {}
    for part in rest.split():
      field, value = _assignment(part, where)
      if field in rows[label]:
        raise RunError(f"{where}: {label!r} sets {field} twice")
      rows[label][field] = read_value(value, kind_of(field, known), f"{where}, {label!r}: {field}")
  return rows


def _parse_grid(texts: list[str], known: Options) -> Fields:
  grid: Fields = {}
  for text in texts:
    labelled = re.fullmatch(r"(.*?):\s*([\w.]+=.*)", text)  # a value may be `module:NAME`
    label, rest = (labelled[1].strip(), labelled[2]) if labelled else ("", text)
    field, values = _assignment(rest.strip(), "compare.grid")
    line = grid.setdefault(label, {}) if labelled else grid
    if field in line:
      raise RunError(f"compare.grid: {field} is given twice for {label or 'all rows'}")
    kind = kind_of(field, known)
    line[field] = tuple(read_value(value, kind, f"compare.grid: {field}") for value in values.split(","))
  return grid


def _parse_rule(text: str) -> str | tuple:
  """Reads a rule of `mesh.shard` as `(glob, dimension, axes)`; any other text may be the name of a rule."""
  rule = re.fullmatch(r"\s*(\S+)\s*:\s*(-?\d+|\w+)\s*=\s*(\w+)(?:\+(\w+))?\s*", text)
  return (rule[1], literal(rule[2]), *filter(None, rule.groups()[2:])) if rule else text


def _assignment(text: str, where: str) -> tuple[str, str]:
  field, equals, value = text.partition("=")
  if not equals or not value:
    raise RunError(f"{where}: got {text!r}; give field=value")
  return field.strip(), value
