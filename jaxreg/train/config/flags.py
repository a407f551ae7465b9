"""The fields that flags set, from texts, and the fields that a job reads."""

import re
from collections.abc import Iterable, Mapping

from jaxreg.train.config.choices import add_options, chooser, flatten, is_choice, relevant
from jaxreg.train.config.fields import Config, is_read
from jaxreg.train.config.rows import PARSED, compared_rows, parse_entries
from jaxreg.train.config.values import NO_FIELDS, hint, kind_of, read_tuple, read_value
from jaxreg.train.entries import Fields, Options
from jaxreg.train.errors import RunError

# The jobs of a single run, which reads the choices of its own configuration only. The rows of other jobs may
# choose differently.
SINGLE_RUN = ("train", "evaluate", "predict", "export", "report", "merge")


def take_fields(arguments: list[str]) -> tuple[dict[str, str | None], list[str]]:
  """Splits off the last text of every `--config.FIELD`; `--config` itself is the field ""."""
  texts: dict[str, str | None] = {}
  others, left = [], list(arguments)
  while left:
    argument = left.pop(0)
    flag = re.fullmatch(r"--?config(?:\.([^=]*))?(?:=(.*))?", argument, re.DOTALL)
    if not flag:
      others.append(argument)
      continue
    field, text = flag.groups()
    if text is None and left and not re.match(r"--?[a-z]", left[0]):
      text = left.pop(0)
    texts[field or ""] = text
  return texts, others


def override(config: Config, texts: Mapping[str, str | None]) -> Fields:
  """Sets fields of the configuration to the values of their texts, and returns these values."""
  choosing = {field: text for field, text in texts.items() if is_choice(field)}
  add_options(config, {field: _read(field, text, NO_FIELDS) for field, text in choosing.items()})
  known = flatten(config)
  for field in texts:
    if field not in known:
      raise _unknown_field(field, known)
  values = {field: _read(field, text, known) for field, text in texts.items()}
  with config.unlocked():
    config.update_from_flattened_dict(values)
  return values


def _read(field: str, text: str | None, known: Options) -> object:
  """Reads the text of a flag; a field outside the table has the type of its value in `known`."""
  flag, kind = f"--config.{field}", kind_of(field, known)
  if text is None and kind is not bool:
    raise RunError(f"Missing value for flag {flag}")
  if field in PARSED:
    return parse_entries(field, read_tuple(text or "", f"{flag}:"), known)
  return True if text is None else read_value(text, kind, f"{flag}:")


def _unknown_field(field: str, known: Iterable[str]) -> RunError:
  inside = [other for other in known if other.startswith(f"{field}.")]
  if inside:
    first = sorted(inside, key=lambda other: other.count("."))[:10]
    more = ", ..." if len(inside) > len(first) else ""
    return RunError(f"--config.{field}: is a group of fields; set one of {', '.join(first)}{more}")
  return RunError(f"--config.{field}: there is no such field{hint(field, known)}; --helpfull lists all")


def check_read(overrides: Options, config: Config) -> None:
  """Checks that a single run reads each override; a job with rows may read it in a row."""
  flat = flatten(config)
  for field in overrides if config.job in SINGLE_RUN else ():
    if by := chooser(field, flat):
      value = tuple(flat[by]) if isinstance(flat[by], list) else flat[by]
      raise RunError(f"--config.{field}: nothing reads it with {by}={value}; name it there, or leave it out")


def fields_read(config: Config) -> list[str]:
  """Returns the fields that the job of a configuration reads, also in its rows if it has rows."""
  flat = flatten(config)
  variants = [flat]
  if config.job == "compare":
    variants = [flat | point | row.fields for row in compared_rows(config) for point in row.grid or [{}]]
  read = {field for variant in variants for field in relevant(variant) if is_read(field, variant)}
  return [field for field in flat if field in read]
