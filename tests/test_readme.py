"""What the README and the pages behind it show runs and exists, and every method is in its table."""

import importlib
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jaxreg.train import METHODS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
RESULTS, COMPARISON = ((ROOT / f"docs/{name}.md").read_text() for name in ("results", "comparison"))
PAGES = ("README.md", "docs/flatness.md")
BLOCKS = [
  (page, number, code)
  for page in PAGES
  for number, code in enumerate(
    re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
  )
]


def test_there_are_snippets():
  assert {page for page, _, _ in BLOCKS} == set(PAGES)


@pytest.mark.parametrize(("page", "number", "code"), BLOCKS)
def test_a_snippet_runs(page, number, code, tmp_path, monkeypatch):
  """In a namespace and a folder of its own."""
  monkeypatch.chdir(tmp_path)
  exec(compile(code, f"{page}, python block {number}", "exec"), {"__name__": "snippet"})


def table(page, header):
  """The rows of the table that begins with this line."""
  lines = page.splitlines()
  first = next((n for n, line in enumerate(lines) if line.startswith(header)), None)
  assert first is not None, f"no table {header!r}"
  return list(itertools.takewhile(lambda line: line.startswith("|"), lines[first + 2 :]))


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_a_row_in_the_table(method):
  """Where something in backticks is its name: `losses.dropmax`, `method.name=softmax`."""
  rows = table(README, "| method |")
  assert len(rows) >= len(METHODS)
  named = [
    row for row in rows if any(re.search(rf"\b{method}\b", code) for code in re.findall("`(.*?)`", row))
  ]
  assert named, f"no row names `{method}`"


def names_in(cell):
  """`penalties.l1`, `.l2` as full names; what is a path stays one."""
  folder, found = None, []
  for code in re.findall("`(.*?)`", cell):
    if code.startswith("."):
      assert folder, f"{code} follows no folder in {cell!r}"
      code = folder + code
    folder = code.partition(".")[0]
    found.append(code)
  return found


def test_what_the_features_table_calls_jaxreg_s_exists():
  rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table(COMPARISON, "| feature |")]
  assert {len(row) for row in rows} == {7}
  rows = [row for row in rows if not row[0].startswith("**")]
  assert len(rows) > 50
  for feature, ours, *_ in rows:
    names = names_in(ours)
    assert names or ours.startswith("\N{EN DASH}"), (
      f"{feature}: {ours!r} names no function and does not say none"
    )
    for name in names:
      folder, _, function = name.partition(".")
      if function:
        assert function in importlib.import_module(f"jaxreg.{folder}").__dict__, f"no {name}"
      else:
        assert (ROOT / name).exists(), f"no {name}"


@pytest.mark.parametrize("page", [README, RESULTS], ids=["README", "results"])
def test_paths_that_a_page_names_exist(page):
  named = set(re.findall(r"(?:configs|benchmarks|jaxreg|tests)/[\w/]+\.py", page))
  assert named
  assert {path for path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize(
  "page", ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_files_that_a_page_links_exist(page):
  text = (ROOT / page).read_text()
  links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link}
  missing = {link for link in links if link and not ((ROOT / page).parent / link).exists()}
  assert missing == set()


def test_commands_that_the_readme_shows_can_be_read():
  from jaxreg.train import cli

  commands = re.findall(r"^python run\.py *([^#\n]*)", README, re.MULTILINE)
  assert commands
  before = os.getcwd()
  os.chdir(ROOT)
  try:
    for command in commands:
      if "evaluate" not in command and "job=translate" not in command:  # which read the work directory
        cli.parse(shlex.split(command.replace("\\", "")), ROOT / "configs")
  finally:
    os.chdir(before)


def test_importing_needs_nothing_of_the_trainer():
  """As the README says of the core: a snippet in a plain interpreter."""
  code = (
    "import sys; from jaxreg import losses; print({'flax', 'orbax', 'ml_collections'} & set(sys.modules))"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert done.stdout.strip() == "set()"
