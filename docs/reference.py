"""The pages of the reference: one for each public name, grouped by folder, and the links to them.

`conf.py` writes them into `docs/reference/` before Sphinx reads the pages. A name is public if it is in the
`__all__` of a public module of jaxreg. What a page says comes from the docstring.
"""

import ast
import functools
import importlib
import inspect
import re
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]  # this checkout, whatever is installed

import plain_numpy  # noqa: E402

import jaxreg  # noqa: E402

# Names without a docstring of their own: types and tables.
DATA = {
  "paths.Pattern": "How leaves are selected: a glob, a regular expression or a function of the name.",
  "train.Config": "A configuration: an `ml_collections.ConfigDict` with the fields of `base_config`.",
  "typing.Mask": "Which parameters: globs on their names, a tree of bools, or a function that gives one.",
}

# The names of `losses` by task, as globs. A name is under the first heading that fits: a new loss under the
# last.
TASKS = {
  "Helpers: predictions": "*_log_probs *_probs",
  "Helpers: the terms of a loss": "*_terms *_diagnostics",
  "Helpers: heads": "*_heads",
  "DropMax and its relatives": "*dropmax* deterministic_attention",
  "Group softmax": "group_softmax*",
  "Unlabelled examples and two views": """consistency entropy pseudo_label semi_supervised r_drop
    jensen_shannon""",
  "Several tasks": "multitask uncertainty_weighting",
  "Autoencoders": "reconstruction",
  "Many classes": "linear",
  "Weights of classes": "class_weights",
  "Wrong labels": "active_passive bi_tempered forward_correction generalized_cross_entropy transition_matrix",
  "Numbers: regression": "gaussian_nll pinball student_t_nll",
  "Yes-or-no labels": "asymmetric binary_*",
  "Classification": "*",
}
GROUPED = ("losses", "flatness")  # the other folders are short enough for the alphabet


@functools.cache
def public() -> dict[str, list[str]]:
  """The public names of each public module: `{"losses": ["arcface", ...], ...}`."""
  return {folder: list(importlib.import_module(f"jaxreg.{folder}").__all__) for folder in jaxreg.__all__}


def public_object(folder: str, name: str) -> Any:
  """The object that a public name stands for."""
  return getattr(importlib.import_module(f"jaxreg.{folder}"), name)


def groups(folder: str) -> dict[str, list[str]]:
  """The names of a folder by heading: tasks of `losses`, files of `flatness`, elsewhere one empty heading."""
  if folder not in GROUPED:
    return {"": public()[folder]}
  # Read from below, so that what one calls first stands first.
  headings = (
    list(reversed(TASKS)) if folder == "losses" else sorted({_file_heading(n) for n in public()[folder]})
  )
  task = lambda name: next(
    task for task, globs in TASKS.items() if any(fnmatch(name, g) for g in globs.split())
  )
  of = task if folder == "losses" else _file_heading
  found = {heading: [name for name in public()[folder] if of(name) == heading] for heading in headings}
  return {heading: names for heading, names in found.items() if names}


def _file_heading(name: str) -> str:
  """The first line of the file of `flatness` that has a name, without the full stop."""
  module = importlib.import_module(getattr(importlib.import_module("jaxreg.flatness"), name).__module__)
  return (inspect.getdoc(module) or "").partition("\n")[0].removesuffix(".")


@functools.cache
def members(folder: str, name: str) -> dict[str, str]:
  """The public methods and properties of a class of ours, and `__call__`: "method" or "property" by name.

  What a base class of another package has as well, such as Flax's `setup`, is not the class's own.
  """
  found = public_object(folder, name)
  if not inspect.isclass(found) or f"{folder}.{name}" in DATA:
    return {}
  bases = [base for base in inspect.getmro(found) if base.__module__.startswith("jaxreg.")]
  theirs = {key for base in inspect.getmro(found) if base not in bases for key in vars(base)}
  kinds: dict[str, str] = {}
  for base in bases:
    for key, value in vars(base).items():
      if key == "__call__" or not (key.startswith("_") or key in theirs):
        if isinstance(value, property | functools.cached_property):
          kinds.setdefault(key, "property")
        elif inspect.isfunction(value) or isinstance(value, staticmethod | classmethod):
          kinds.setdefault(key, "method")
  return kinds


def first_sentence(full: str) -> str:
  """The first sentence or paragraph of the docstring of `losses.dropmax`."""
  if full in DATA:
    return DATA[full]
  folder, _, name = full.partition(".")
  found = public_object(folder, name)
  return " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())


def pages() -> dict[str, str]:
  """The text of each page by its path in `docs/`: `{"reference/losses/focal.rst": ...}`."""
  found = {"reference/index.rst": _overview()}
  for folder, names in public().items():
    found[f"reference/{folder}/index.rst"] = _folder(folder, names)
    for name in names:
      found[f"reference/{folder}/{file_of(folder, name)}.rst"] = _page(folder, name)
  return found


def file_of(folder: str, name: str) -> str:
  """The page of a name: `Hessian` beside `hessian` needs another one on a disk that knows no capitals."""
  others = {other.lower() for other in public()[folder] if other != name}
  return f"{name}-class" if name.lower() in others and name[0].isupper() else name


def write(docs: Path) -> None:
  """Writes the pages that changed, so that Sphinx reads only those; removes those of names that are gone."""
  wanted = {docs / path: text for path, text in pages().items()}
  for path in (docs / "reference").rglob("*.rst"):
    if path not in wanted:
      path.unlink()
  for path, text in wanted.items():
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
      path.write_text(text)


def linked(text: str, folder: str = "", at: str = "") -> str | None:
  """The public name that a piece of code in a text means, such as "losses.focal", or None.

  Args:
    text: the code: `losses.focal`, `jaxreg.losses.focal`, `.focal`, or on a page of the reference `focal`.
    folder: the folder that `.focal` belongs to: that of the name before it.
    at: the folder of the page, where its names stand alone.
  """
  names = public()
  found = re.fullmatch(r"(?:jaxreg\.)?([\w.]+?)(?:\(.*\))?", text)
  if not found:
    return None
  module, _, name = found[1].rpartition(".")
  module, _, owner = module.rpartition(".") if module not in names else (module, "", "")
  module = module or (folder if text.startswith(".") else at)
  if owner:
    known = owner in names.get(module, ()) and name in members(module, owner)
    return f"{module}.{owner}.{name}" if known else None
  return f"{module}.{name}" if name in names.get(module, ()) else None


def _overview() -> str:
  count = lambda folder: str(len(public()[folder]))
  rows = [(f":doc:`{folder} <{folder}/index>`", count(folder), _about(folder)) for folder in public()]
  text = "Every public name is on one page of its own. Each module says how its functions are called."
  table = _table(("module", "names", "what"), (15, 8, 77), rows)
  text = f"{_title('Reference')}{text}\n\n{_hidden([f'{folder}/index' for folder in public()])}\n{table}"
  for folder in GROUPED:
    links = lambda names: ", ".join(f":doc:`{n} <{folder}/{file_of(folder, n)}>`" for n in names)  # noqa: B023
    tasks = [(heading, links(names)) for heading, names in groups(folder).items()]
    title = f"jaxreg.{folder} by task"
    text += f"\n{title}\n{'-' * len(title)}\n\n{_table(('task', 'names'), (25, 75), tasks)}"
  return text


def _folder(folder: str, names: list[str]) -> str:
  text = inspect.getdoc(importlib.import_module(f"jaxreg.{folder}")) or ""
  first, _, rest = text.partition("\n\n")
  tables, pages = "", []
  for heading, group in groups(folder).items():
    files = [file_of(folder, name) for name in group]
    pages += [f"{name} <{file}>" for name, file in zip(group, files)]
    links = [f":doc:`{name} <{file}>`" for name, file in zip(group, files)]
    rows = [(link, first_sentence(f"{folder}.{name}")) for name, link in zip(group, links)]
    tables += f"{heading}\n{'-' * len(heading)}\n\n" if heading else ""
    tables += _table(("name", "what it does"), (32, 68), rows) + "\n"
  top = f"{_title(f'jaxreg.{folder}')}.. py:module:: jaxreg.{folder}\n\n"
  # Headings would take in the text below them, so it stands above.
  body = f"{first}\n\n{rest}\n\n{tables}" if folder in GROUPED else f"{first}\n\n{tables}{rest}\n\n"
  return f"{top}{body}{_hidden(pages)}"


@functools.cache
def guides() -> dict[str, list[str]]:
  """The guides that name something public, as links: `{"losses.focal": [":doc:`...`"]}`."""
  found: dict[str, list[str]] = {}
  for guide in sorted((Path(__file__).resolve().parent / "guides").glob("*.md")):
    text = guide.read_text()
    link = f":doc:`{text.partition(chr(10))[0].lstrip('# ')} </guides/{guide.stem}>`"
    folder, names = "", set()
    # In code `losses.focal`, and in prose `.poly_loss` behind it.
    for module, dot, name in re.findall(r"\b(\w+)\.(\w+)|`(\.\w+)", text):
      folder = module if module in public() else folder
      full = f"{folder}{name}" if name else f"{module}.{dot}"
      names |= {full} if linked(full) == full else set()
    for full in names:
      found.setdefault(full, []).append(link)
  return found


def _page(folder: str, name: str) -> str:
  top = f"{_title(f'{folder}.{name}')}.. py:currentmodule:: jaxreg.{folder}\n\n"
  if f"{folder}.{name}" in DATA:
    value = f"\n   .. code-block:: python\n\n      {value}\n" if (value := _assignment(folder, name)) else ""
    return f"{top}.. py:data:: {name}\n\n   {DATA[f'{folder}.{name}']}\n{value}"
  found = public_object(folder, name)
  text = f"{top}.. auto{'class' if inspect.isclass(found) else 'function'}:: jaxreg.{folder}.{name}\n"
  for member, kind in members(folder, name).items():
    text += f"\n   .. auto{kind}:: jaxreg.{folder}.{name}.{member}\n"
  links = guides().get(f"{folder}.{name}", [])
  text += f"\nGuides: {', '.join(links)}.\n" if links else ""
  return text + (_in_plain_numpy(f"{folder}.{name}") if folder == "losses" else "")


def _in_plain_numpy(full: str) -> str:
  """The section with the oracle of a loss."""
  oracle = plain_numpy.oracle(full)
  if not oracle:
    return ""
  options = f", with the options ``{oracle.options}``" if oracle.options else ""
  arguments = (
    "" if oracle.named else " In the last function `a` holds the arguments as NumPy arrays in float64."
  )
  code = "".join(f"   {line}".rstrip() + "\n" for line in oracle.code.splitlines())
  compared = "the sum of these terms" if oracle.summed else "this function"
  text = f"The tests compare {compared} with the following code{options}.{arguments}"
  return f"\nIn plain NumPy\n{'-' * 14}\n\n{text}\n\n.. code-block:: python\n\n{code}"


def _assignment(folder: str, name: str) -> str | None:
  module = ast.parse(inspect.getsource(importlib.import_module(f"jaxreg.{folder}")))
  nodes = [node for node in module.body if isinstance(node, ast.Assign)]
  return next((ast.unparse(node) for node in nodes if ast.unparse(node.targets[0]) == name), None)


def _about(folder: str) -> str:
  doc = inspect.getdoc(importlib.import_module(f"jaxreg.{folder}")) or ""
  return " ".join(doc.split("\n\n")[0].split())


def _title(text: str) -> str:
  return f"{text}\n{'=' * len(text)}\n\n"


def _hidden(pages: list[str]) -> str:
  return "\n".join([".. toctree::", "   :hidden:", "", *(f"   {page}" for page in pages), ""])


def _table(head: tuple[str, ...], widths: tuple[int, ...], rows: list[tuple[str, ...]]) -> str:
  lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {' '.join(map(str, widths))}", ""]
  for row in (head, *rows):
    lines += [f"   {'*' if not number else ' '} - {cell}" for number, cell in enumerate(row)]
  return "\n".join(lines) + "\n"
