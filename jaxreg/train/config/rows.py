"""Rows of a job: tables of fields and values in a configuration, and their text on the command line.

`compare.rows`, `flatness.rows` and `flatness.alignment.noises` are `{label: {field: value}}`. `compare.grid`
is `{field: values}` for every row, and `{label: {field: values}}` for one row.
"""

import ast
import dataclasses
import difflib
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from jaxreg.train.config.choices import ROWS, Config, flatten
from jaxreg.train.errors import RunError
from jaxreg.train.lookup import short
from jaxreg.train.registry import REGISTRY

METHODS = REGISTRY["method"]
Fields = dict[str, Any]  # values by the full names of their fields
NAME = r"[\w.]+:\w+"  # `module:NAME`
ENTRIES = (*ROWS, "mesh.shard", "optimizer.mahalanobis.metric")  # the fields whose text `parse_entries` reads


@dataclasses.dataclass(frozen=True)
class Row:
  """One row of the table: the fields that it sets, and the settings that the search chooses from."""

  label: str
  fields: Fields
  grid: list[Fields]


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
  rows: dict[str, Any] = known[where]
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


def _checked(field: str, value: Any, known: Mapping[str, Any], where: str) -> Any:
  """The value, if it has the type that the field has now; an integer for a float becomes one."""
  if field not in known:
    near = difflib.get_close_matches(str(field), known, n=2, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise RunError(f"{where}: there is no field {field}{hint}")
  now = tuple(known[field]) if isinstance(known[field], list) else known[field]
  if isinstance(now, tuple) and isinstance(value, list):
    return tuple(value)
  if isinstance(now, float) and type(value) is int:
    return float(value)
  if now is not None and type(value) is not type(now):
    raise RunError(f"{where}: {field} must be of type {type(now).__name__}, got {value!r}")
  return value


def parse_entries(field: str, entries: Iterable[Any], known: Mapping[str, Any] | None = None) -> Any:
  """The value of a field in `ENTRIES` from the texts that a flag gives for it.

  Args:
    field: the field.
    entries: for rows, the name of a method or `label: field=value ...`; for the grid,
      `field=value,value,...` or `label: field=value,...`; for `mesh.shard`, a rule's name or
      `GLOB: DIMENSION=AXIS`; for the metric, `GLOB: NUMBER`.
    known: the fields with their values, whose types say how a text is read; None before they are known.
  """
  texts = [str(entry) for entry in entries]
  if field == "compare.grid":
    return _parse_grid(texts, known)
  if field == "mesh.shard":
    return tuple(map(_parse_rule, texts))
  if field == "optimizer.mahalanobis.metric":
    return tuple((glob.strip(), _literal(number)) for glob, _, number in (t.rpartition(":") for t in texts))
  return _parse_rows(field, texts, known)


def _parse_rows(where: str, texts: list[str], known: Mapping[str, Any] | None) -> dict[str, Fields]:
  rows: dict[str, Fields] = {}
  for text in texts:
    method = text if re.fullmatch(NAME, text) or text in METHODS else ""
    label, colon, rest = (short(method), ":", f"method.name={method}") if method else text.partition(":")
    label = label.strip()
    if not colon:
      raise RunError(
        f"{where}: got {text!r}; a row is a method ({', '.join(METHODS)}) or 'label: field=value ...'"
      )
    if label in rows:
      raise RunError(f"{where}: the label {label!r} must be given once")
    rows[label] = {}
    for part in rest.split():
      field, value = _assignment(part, where)
      if field in rows[label]:
        raise RunError(f"{where}: {label!r} sets {field} twice")
      rows[label][field] = _value(field, value, known)
  return rows


def _parse_grid(texts: list[str], known: Mapping[str, Any] | None) -> dict[str, Any]:
  grid: dict[str, Any] = {}
  for text in texts:
    labelled = re.fullmatch(r"(.*?):\s*([\w.]+=.*)", text)  # a value may be `module:NAME`
    label, rest = (labelled[1].strip(), labelled[2]) if labelled else ("", text)
    field, values = _assignment(rest.strip(), "compare.grid")
    line = grid.setdefault(label, {}) if labelled else grid
    if field in line:
      raise RunError(f"compare.grid: {field} is given twice for {label or 'all rows'}")
    line[field] = tuple(_value(field, value, known) for value in values.split(","))
  return grid


def _parse_rule(text: str) -> Any:
  """A rule of `mesh.shard`: `(glob, dimension, axes)`, or the text as it is, which may be a rule's name."""
  found = re.fullmatch(r"\s*(\S+)\s*:\s*(-?\d+|\w+)\s*=\s*(\w+)(?:\+(\w+))?\s*", text)
  return (found[1], _literal(found[2]), *filter(None, found.groups()[2:])) if found else text


def _assignment(text: str, where: str) -> tuple[str, str]:
  field, equals, value = text.partition("=")
  if not equals or not value:
    raise RunError(f"{where}: got {text!r}; give field=value")
  return field.strip(), value


def _value(field: str, text: str, known: Mapping[str, Any] | None) -> Any:
  return text if known and isinstance(known.get(field), str) else _literal(text)


def _literal(text: str) -> Any:
  """A number, a tuple, ... of a text; the text itself if it is none of them."""
  try:
    return ast.literal_eval(text.strip())
  except (ValueError, SyntaxError):
    return text
