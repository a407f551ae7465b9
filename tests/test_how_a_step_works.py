"""The page on how a step works names what there is, and its order of calls is the order of the code."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/how_a_step_works.md").read_text()
# The functions of `step.py`, with what the page says that they do, in the page's order.
ORDER = {
  "objective": ("augment", "make_examples", "by_class", "loss_fn", "weighted"),
  "train_step": ("step", "gradient_at", "update", "apply_updates", "update", "_gradient_norms"),
}


def named_in_code():
  """Every name that a file of the library defines, takes as an argument or has as an attribute or text."""
  names = set()
  for file in (ROOT / "jaxreg").rglob("*.py"):
    names |= {file.stem, *re.findall(r"\w+", file.read_text())}
  return names


def test_what_the_page_names_exists():
  code = re.sub(r"\[`[^`]*`\]\(([^)]*)\)", "", PAGE)
  words = {word for text in re.findall(r"`([^`-][^`]*)`", code) for word in re.findall(r"[A-Za-z_]\w+", text)}
  assert len(words) > 40
  assert words - named_in_code() == set()
  files = re.findall(r"\]\(\.\./([^)]*\.py)\)", PAGE)
  assert files
  assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("function", ORDER)
def test_the_code_calls_in_the_order_of_the_page(function):
  tree = ast.parse((ROOT / "jaxreg/train/step/step.py").read_text())
  functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
  [body] = [each for each in functions if each.name == function]
  calls = [node for node in ast.walk(body) if isinstance(node, ast.Call)]
  calls.sort(key=lambda call: (call.lineno, call.col_offset))
  names = [getattr(call.func, "attr", getattr(call.func, "id", "")) for call in calls]
  steps = iter(names)
  assert all(name in steps for name in ORDER[function]), names


def test_the_page_gives_the_order_that_is_tested():
  walk, _, _ = PAGE.partition("## A batch")
  firsts = re.findall(r"^\d\. \*\*(\w+)", walk, re.MULTILINE)
  assert firsts == ["Key", "Gradient", "Update", "Metrics", "Augment", "Make", "Forward", "Log"]
