"""Writes the claims of the sources, and their tests, from the tests' markers: `papers/<source>/README.md`.

    python tests/claims.py

A test of a claim is marked `@pytest.mark.claim(source, where, text)`. If the source is wrong, as printed or
as derived, the marker has `status="erratum"`, and the test asserts the correction. `size` says how the test
shows it: in closed form (the default), by enumeration, on a toy problem, on real data, or at the source's own
size. The table stands between two comments of the source's page.
"""

import ast
import collections
import pathlib
import re
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = re.compile(r"(<!-- claims -->\n)(.*?)(<!-- end -->)", re.DOTALL)
STATUS = {"holds": "holds", "erratum": "**erratum**: the test asserts the correction"}


def collect() -> dict[str, str]:
  """The pages with their tables, by source. The markers are read and not run, which is ten times faster."""
  claims: dict[str, dict[tuple[str, str, str, str], list[str]]] = {}
  for file in sorted((ROOT / "tests").rglob("test_*.py")):
    body = ast.parse(file.read_text()).body
    for name, arguments, options in marked(body, texts(body)):
      source, where, text = arguments
      claim = (where, text, options.get("status", "holds"), options.get("size", "closed form"))
      test = f"{file.relative_to(ROOT)}::{name}"
      claims.setdefault(source, collections.defaultdict(list))[claim].append(test)
  pages = {}
  for source, found in sorted(claims.items()):
    before, old, after = TABLE.search(text := page(source).read_text()).groups()
    pages[source] = text.replace(f"{before}{old}{after}", f"{before}{table(found)}{after}")
  return pages


def texts(body: list[ast.stmt]) -> dict[str, str]:
  """The constants of a module that are texts."""
  return {
    node.targets[0].id: node.value.value
    for node in body
    if isinstance(node, ast.Assign)
    and isinstance(node.targets[0], ast.Name)
    and isinstance(node.value, ast.Constant)
    and isinstance(node.value.value, str)
  }


def marked(body: list[ast.stmt], named: dict[str, str]) -> Iterator[tuple[str, list[str], dict[str, str]]]:
  """The name of each test with a claim, and the arguments of the marker."""
  value = lambda node: named[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)
  for node in body:
    if isinstance(node, ast.ClassDef):
      for name, *marker in marked(node.body, named):
        yield f"{node.name}::{name}", *marker
    elif isinstance(node, ast.FunctionDef):
      for mark in reversed(node.decorator_list):
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.claim":
          yield node.name, [*map(value, mark.args)], {each.arg: value(each.value) for each in mark.keywords}


def table(claims: dict[tuple[str, str, str, str], list[str]]) -> str:
  lines = ["| where | claim | status | size | test |", "|---|---|---|---|---|"]
  for (where, text, status, size), tests in sorted(claims.items(), key=lambda claim: _order(claim[0][0])):
    named = ", ".join(f"`{test.removeprefix('tests/').replace('::', ' ')}`" for test in tests)
    lines.append(f"| {where} | {text} | {STATUS[status]} | {size} | {named} |")
  return "\n".join(lines) + "\n"


def page(source: str) -> pathlib.Path:
  return ROOT / "papers" / source / "README.md"


def _order(where: str) -> list[tuple[int, int | str]]:
  """`Eq. 9` before `Eq. 10`."""
  words = where.replace("-", " ").replace(",", " ").split()
  return [(0, int(word)) if word.isdigit() else (1, word) for word in words]


if __name__ == "__main__":
  for name, text in collect().items():
    page(name).write_text(text)
    print(page(name).relative_to(ROOT))
