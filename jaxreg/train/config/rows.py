"""The rows of a comparison: parses `compare.rows` and `compare.grid` into fields and settings."""

import ast
import dataclasses
import difflib
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from jaxreg.train.config.choices import NAME, Config, flatten
from jaxreg.train.errors import RunError
from jaxreg.train.lookup import short
from jaxreg.train.step.methods import METHODS


@dataclasses.dataclass(frozen=True)
class Row:
  """One row of the table: the fields that it sets, and the settings that the search chooses from."""

  label: str
  fields: dict[str, Any]
  grid: list[dict[str, Any]]


def parse_rows(config: Config) -> list[Row]:
  """The rows that `compare.rows` and `compare.grid` describe.

  A row is the name of a method, or `label: field=value field=value`. A line of the grid is
  `field=value,value,...` for every row, or `label: field=value,value,...` for one row. The search of a row
  goes over the product of its lines.
  """
  known = flatten(config)
  rows = parse_fields(config, config.compare.rows, "compare.rows")
  lines: dict[str, dict[str, list[Any]]] = {label: {} for label in rows}
  given: set[tuple[str, str]] = set()
  for entry in map(str, config.compare.grid):
    labelled = re.fullmatch(r"(.*?):\s*([\w.]+=.*)", entry)  # a value may be `module:NAME`
    label, rest = labelled.groups() if labelled else ("", entry)
    label = label.strip()
    if labelled and label not in rows:
      raise RunError(f"compare.grid: got {entry!r}; the rows are {', '.join(rows)}")
    field, values = _assignment(rest.strip(), known, "compare.grid")
    points = [_value(value, known[field], rest, "compare.grid") for value in values.split(",")]
    if len(set(points)) < len(points):
      raise RunError(f"compare.grid: {entry!r} gives a value twice")
    if (label, field) in given:
      raise RunError(f"compare.grid: {field} is given twice for {label or 'all rows'}")
    given.add((label, field))
    for row in [label] if labelled else rows:
      lines[row][field] = points
  return [
    Row(
      label,
      fields,
      [dict(zip(lines[label], point, strict=True)) for point in itertools.product(*lines[label].values())],
    )
    for label, fields in rows.items()
  ]


def parse_fields(config: Config, entries: Iterable[str], where: str) -> dict[str, dict[str, Any]]:
  """The fields that each entry sets, by its label: `label: field=value ...`, or the name of a method."""
  known = flatten(config)
  rows: dict[str, dict[str, Any]] = {}
  for entry in map(str, entries):
    method = entry if re.fullmatch(NAME, entry) else ""
    label, colon, rest = (short(method), "", "") if method else entry.partition(":")
    label = label.strip()
    if not colon and not method and label not in METHODS:
      raise RunError(
        f"{where}: got {entry!r}; a row is a method ({', '.join(METHODS)}) or 'label: field=value ...'"
      )
    if not re.fullmatch(r"[\w .=(),+-]+", label) or label in rows:
      raise RunError(f"{where}: the label {label!r} must be given once, of letters, digits and .=(),+-")
    rows[label] = {"method.name": method or label} if not colon else {}
    for part in rest.split():
      field, value = _assignment(part, known, where)
      if field in rows[label]:
        raise RunError(f"{where}: {label!r} sets {field} twice")
      rows[label][field] = _value(value, known[field], part, where)
  if not rows:
    raise RunError(f"{where}: give at least one, such as {', '.join(METHODS)}")
  return rows


def _assignment(text: str, known: Mapping[str, Any], where: str) -> tuple[str, str]:
  field, equals, values = text.partition("=")
  field = field.strip()
  if not equals or not values:
    raise RunError(f"{where}: got {text!r}; give field=value")
  if field not in known:
    near = difflib.get_close_matches(field, known, n=2, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise RunError(f"{where}: there is no field {field}{hint}")
  return field, values


def _value(text: str, now: Any, whole: str, where: str) -> Any:
  if isinstance(now, str):
    return text
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    value = text
  if isinstance(now, list) and isinstance(value, tuple):
    return value
  if isinstance(now, float) and isinstance(value, int) and not isinstance(value, bool):
    value = float(value)
  if now is not None and type(value) is not type(now):
    raise RunError(f"{where}: {whole!r} sets {text}, where a {type(now).__name__} is needed")
  return value
