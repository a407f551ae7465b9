"""Every mutation of `mutation.py` is caught by the test that claims it; the generator makes what it says."""

import ast
import json
import subprocess
import sys

import mutants
import mutate
import mutation
import pytest

SOURCE = """
def f(x, y, *, scale: int = 2):
  \"\"\"Adds 1.\"\"\"
  if x < 0 and not y:
    raise ValueError(f"x is {x - 1}")
  return g(stop_gradient(x) / -y, scale=scale)
"""


@pytest.mark.thorough
def test_every_row_fits_its_source_and_names_a_test():
  for row in mutation.MUTATIONS:
    changed = row.apply((mutants.ROOT / row.file).read_text())
    assert ast.unparse(changed) != ast.unparse(ast.parse((mutants.ROOT / row.file).read_text())), row
    file, test = row.test.split("::")
    assert f"def {test.partition('[')[0]}(" in (mutants.ROOT / file).read_text(), row


def test_mutants_change_code_and_no_text_or_annotation():
  found = {(mutant.kind, mutant.new) for mutant in mutate.mutants("f.py", SOURCE)}
  assert found == {
    ("constant", "3"),
    ("constant", "1"),
    ("negate", "if not (x < 0 and (not y)):"),
    ("and/or", "x < 0 or not y"),
    ("compare", "x >= 0"),
    ("drop not", "y"),
    ("drop scale", "g(stop_gradient(x) / -y)"),
    ("drop stop_gradient", "x"),
    ("operator", "stop_gradient(x) * -y"),
    ("swap", "-y / stop_gradient(x)"),
    ("drop sign", "y"),
  }
  for mutant in mutate.mutants("f.py", SOURCE):
    text = ast.unparse(mutate.mutated(SOURCE, mutant))
    assert mutant.new.rstrip(":") in text
    assert text != ast.unparse(ast.parse(SOURCE))


@pytest.fixture(scope="module")
def statuses():
  command = [sys.executable, mutation.__file__]
  done = subprocess.run(command, cwd=mutants.ROOT, stdout=subprocess.PIPE, text=True, check=True)
  return {name: statuses for name, *statuses in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("row", mutation.MUTATIONS, ids=str)
def test_mutation_is_caught(row, statuses):
  # 1 is the status of failed tests, 0 of passed; 2 to 5 would be a test that could not be run.
  assert statuses[str(row)] == [0, 1]
