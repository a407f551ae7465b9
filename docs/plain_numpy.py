"""The NumPy that the tests hold each loss against, as code for its page of the reference.

    python docs/plain_numpy.py NAME     prints it for `losses.NAME`

The code is read from `tests/`, not copied. It is the oracle of the function's first case, or the function of
the same name in `oracles.py`, with every helper that it calls.
"""

import ast
import functools
import re
import sys
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent.parent / "tests"
CASES, ORACLES = ("cases_losses", "contract"), "oracles"
IMPORTS = {
  "np": "import numpy as np",
  "jax": "import jax",
  "scipy": "import scipy.stats",
  "itertools": "import itertools",
}


class File(NamedTuple):
  text: str
  cases: dict[str, ast.Call]  # by the name of the function: its first case
  defined: dict[str, ast.stmt]  # functions and constants by name


class Oracle(NamedTuple):
  code: str  # the last function is the oracle
  options: str  # the options of the case, as in a call
  named: bool  # whether the oracle takes the arguments by name, and not `a` that holds them
  summed: bool = False  # whether the oracle is that of the sum of the terms


@functools.cache
def read(name: str) -> File:
  """Reads the cases and the definitions of a file of `tests/`."""
  text = (TESTS / f"{name}.py").read_text()
  tree = ast.parse(text)
  cases: dict[str, ast.Call] = {}
  for node in sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0)):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Case":
      function = node.args[0]
      if isinstance(function, ast.Constant):
        cases.setdefault(str(function.value), node)
  defined: dict[str, ast.stmt] = {}
  for node in tree.body:
    if isinstance(node, ast.FunctionDef):
      defined[node.name] = node
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
      defined[ast.unparse(node.targets[0])] = node
  return File(text, cases, defined)


def oracle(full: str) -> Oracle | None:
  """Returns the oracle of a function such as `losses.focal`, or None if the tests have none in NumPy."""
  for file in CASES:
    case = read(file).cases.get(full)
    if case is None or len(case.args) < 3:
      continue
    options = case.args[3] if len(case.args) > 3 else ast.Dict([], [])
    if not isinstance(options, ast.Dict):
      raise ValueError(f"the options of the first case of {full} must be a dictionary, got {options}")
    pairs = zip(options.keys, options.values, strict=True)
    shown = [f"{ast.literal_eval(key)}={ast.unparse(value)}" for key, value in pairs if key]
    return Oracle(_code(file, case.args[2], full), ", ".join(shown), named=False)
  name = full.partition(".")[2]
  function = read(ORACLES).defined.get(name)
  if function is None and name.endswith("_terms"):
    total = oracle(full.removesuffix("_terms"))
    return total and total._replace(summed=True)
  return Oracle(_with_helpers(ORACLES, [function]), "", named=True) if function else None


def _code(file: str, node: ast.expr, full: str) -> str:
  """The code of a case's oracle, which is the name of a function or a lambda of one line."""
  if isinstance(node, ast.Name):
    return _with_helpers(file, [read(file).defined[node.id]])
  if not isinstance(node, ast.Lambda) or node.args.defaults:
    raise ValueError(f"the oracle of the first case of {full} must be a named function or a plain lambda")
  body = f"def oracle({ast.unparse(node.args)}):\n  return {_source(file, node.body)}"
  return _with_helpers(file, [], last=(node.body, body))


def _with_helpers(file: str, nodes: list[ast.stmt], last: tuple[ast.expr, str] | None = None) -> str:
  """Imports, the helpers in the order in which they are needed, and the functions themselves."""
  parts: dict[tuple[str, str], str] = {}

  def visit(file: str, node: ast.AST) -> None:
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    local = {part.id for part in names if isinstance(part.ctx, ast.Store)}
    for part in ast.walk(node):
      if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == ORACLES:
        add(ORACLES, part.attr)
      elif isinstance(part, ast.Name) and part.id in read(file).defined.keys() - local:
        add(file, part.id)

  def add(file: str, name: str) -> None:
    if (file, name) not in parts:
      node = read(file).defined[name]
      visit(file, node)
      parts[file, name] = _source(file, node)

  for node in nodes:
    visit(file, node)
    parts[file, getattr(node, "name", "")] = _source(file, node)
  codes = list(parts.values())
  if last:
    visit(file, last[0])
    codes = [*parts.values(), last[1]]
  text = "\n\n".join(codes)
  imports = [line for name, line in IMPORTS.items() if re.search(rf"\b{name}\.", text)]
  return "\n".join([*imports, "", text, ""]).lstrip()


def _source(file: str, node: ast.AST) -> str:
  """The text of a node. Types of results are left out, and the names of `oracles` stand alone."""
  text = ast.get_source_segment(read(file).text, node)
  if not text:
    raise ValueError(f"{file} has no text for {ast.dump(node)}")
  text = re.sub(rf"\b{ORACLES}\.", "", text)
  return re.sub(r"(?m)\) -> [\w.\[\], ]+:$", "):", text)


if __name__ == "__main__":
  for name in sys.argv[1:]:
    told = oracle(f"losses.{name}")
    print(told.code if told else f"the tests have no oracle of losses.{name}")
