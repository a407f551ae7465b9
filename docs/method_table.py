"""The table of methods: what each function does, the field and the configs that reach it, and its source.

    python docs/method_table.py     prints it

`conf.py` writes it into `docs/reference/methods.md`. Words and sources are read from the docstrings, fields
from the tables of the trainer. A config is named that has the name of the function or of its row.
"""

import collections
import functools
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]  # this checkout, whatever is installed

import reference  # noqa: E402

from configs.toolbox_digits import TOOLBOX  # noqa: E402
from jaxreg import train  # noqa: E402
from jaxreg.train.config.choices import flatten  # noqa: E402
from jaxreg.train.config.config_files import list_files  # noqa: E402
from jaxreg.train.registry import CHOOSERS, REGISTRY, SEVERAL  # noqa: E402

FOLDERS = (
  *("losses", "noise", "penalties", "constraints", "augment", "adversarial", "optim", "averaging"),
  *("ensembles", "calibration", "reparam", "flatness"),
)
ALONE = "as a function"
MANY = 4  # what a cell names at most
HEAD = """\
# Methods

What a function does is the first sentence of its docstring, and its source the section `References`. A field,
such as `method.name=focal`, is a flag of every configuration that reads it: `--config.method.name=focal`. A
configuration, such as `toolbox_digits:l2`, is run by `python run.py --config configs/toolbox_digits.py:l2`.
"""


def functions(folder: str) -> list[str]:
  """The public functions of a folder."""
  module = importlib.import_module(f"jaxreg.{folder}")
  return [name for name in reference.public()[folder] if inspect.isfunction(getattr(module, name))]


def source(doc: str) -> str:
  """The authors, the title and the year of each entry of a docstring's section `References`."""
  block = re.search(r"^References:\n((?:\n| +.*\n?)+)", doc, re.MULTILINE)
  entries = re.split(r"(?<!Eq)\.\s+(?=[A-Z])", " ".join(block[1].split()).rstrip(".")) if block else []
  dated = [re.split(r"(?<=, (?:18|19|20)\d\d)\b", entry)[0] for entry in entries]
  return re.sub("`([^`]+)`", r"*\1*", "; ".join(dict.fromkeys(dated)))


@functools.cache
def rows() -> dict[str, dict[str, str]]:
  """The rows of the trainer's tables that reach each function: `{"losses.focal": {"focal": its field}}`.

  A row reaches the function that it holds, else the one that has its name, else all that its code calls.
  """
  holds, named, calls = (collections.defaultdict(dict) for _ in range(3))
  for field, row, thing in _table_rows():
    for part in _parts(thing):
      function = inspect.unwrap(getattr(part, "func", part))
      _, folder, *_ = f"{function.__module__}..".split(".")
      if folder in FOLDERS:
        holds[f"{folder}.{function.__name__}"][row] = field
      elif function.__module__.startswith("jaxreg.train.") and inspect.isfunction(function):
        for name in re.findall(rf"\b((?:{'|'.join(FOLDERS)})\.\w+)", inspect.getsource(function)):
          calls[name][row] = field
    if not getattr(thing, "__module__", "").startswith("optax"):
      named |= {f"{folder}.{row}": {row: field} for folder in ("losses", "adversarial")}
  return {**calls, **named, **holds}


def _table_rows() -> list[tuple[str, str, Any]]:
  found: list[tuple[str, str, Any]] = []
  for group, rows in REGISTRY.items():
    for row, entry in rows.items():
      field = f"{CHOOSERS[group]}=" + (f"('{row}',)" if group in SEVERAL else row)
      found.append((f"regularizers.{row}.weight" if group == "regularizers" else field, row, entry.function))
  return found


def _parts(thing: Any) -> list[Any]:
  parts = (thing.loss, thing.predict, thing.diagnose) if isinstance(thing, train.Method) else (thing,)
  return [part for part in parts if part is not None]


@functools.cache
def _options() -> dict[str, list[str]]:
  """The options of the toolbox by their value, the name of a function: `model.MLP.layer=weight_norm`."""
  found: dict[str, list[str]] = collections.defaultdict(list)
  for options in TOOLBOX.values():
    for field, value in options.items():
      if isinstance(value, str) and not field.endswith(".name"):
        found[value].append(f"{field}={value}")
  return found


@functools.cache
def _strengths() -> dict[str, str]:
  """The options such as `dropout_rate` by the name of a noise; `*` stands for several models."""
  found: dict[str, str] = {}
  for field in flatten(train.base_config()):
    if option := re.fullmatch(r"model\.\w+\.((\w+)_(?:rate|std|alpha))", field):
      found[option[2]] = f"model.*.{option[1]}" if option[2] in found else field
  return found


@functools.cache
def _called() -> dict[str, str]:
  """Returns the functions that the trainer or its networks call."""
  called: dict[str, str] = {}
  files = [file for folder in ("models", "train") for file in (ROOT / "jaxreg" / folder).rglob("*.py")]
  for file in files:
    for name in re.findall(rf"\b((?:{'|'.join(FOLDERS)})\.\w+)", file.read_text()):
      called[name] = "within the trainer"
  return called


def fields(full: str) -> str:
  """The fields that reach a function: of its rows, else options with its name, else what calls it."""
  name = full.partition(".")[2]
  strength = [_strengths()[name]] if name in _strengths() else []
  found = [*rows().get(full, {}).values()] or [*_options().get(name, ()), *strength]
  return _cell(list(dict.fromkeys(found))) or _called().get(full, ALONE)


@functools.cache
def _configs() -> dict[str, list[str]]:
  """The variants of each configuration."""
  found: dict[str, list[str]] = {}
  for line in list_files(ROOT / "configs").splitlines():
    if file := re.fullmatch(r"configs/(\w+)\.py", line):
      found[file[1]] = variants = []
    elif line.strip().startswith(":"):
      variants += line.split()
  return found


def configs(full: str) -> list[str]:
  """The configurations with the name of a function or of a row that reaches it, else those that say it."""
  names = dict.fromkeys([full.partition(".")[2], *rows().get(full, {})])
  found = [f"{stem}:{name}" for stem, known in _configs().items() for name in names if f":{name}" in known]
  found += [stem for stem in _configs() for name in names if f"{stem}_".startswith(f"{name}_")]
  said = rf"[\"'](?:{'|'.join(rows().get(full, {}))})[\"':]" if full in rows() else "$^"
  return found or [stem for stem in _configs() if re.search(said, (ROOT / f"configs/{stem}.py").read_text())]


def page() -> str:
  """The text of `docs/reference/methods.md`."""
  lines = [HEAD]
  for folder in FOLDERS:
    module = importlib.import_module(f"jaxreg.{folder}")
    lines += [
      f"## {folder}",
      "",
      "| function | what it does | field | config | source |",
      "|---|---|---|---|---|",
    ]
    for name in functions(folder):
      full = f"{folder}.{name}"
      first = re.sub(r":math:`(.*?)`", r"$\1$", reference.first_sentence(full)).replace("|", r"\|")
      told = source(inspect.getdoc(getattr(module, name)) or "")
      lines.append(f"| `{full}` | {first} | {fields(full)} | {_cell(configs(full))} | {told} |")
    lines.append("")
  return "\n".join(lines)


def _cell(names: list[str]) -> str:
  more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
  return ", ".join(f"`{name}`" for name in names[:MANY]) + more


def write(docs: Path) -> None:
  """Writes the page, if it changed."""
  file = docs / "reference/methods.md"
  file.parent.mkdir(exist_ok=True)
  if not file.exists() or file.read_text() != page():
    file.write_text(page())


if __name__ == "__main__":
  print(page(), end="")
