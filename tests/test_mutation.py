"""Every mutation of `mutation.py` is caught by the test that claims it."""

import os
import pathlib
import shutil
import subprocess
import sys

import mutation
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def test_every_row_fits_its_source_and_names_a_test():
  for row in mutation.MUTATIONS:
    row.apply((ROOT / row.file).read_text())
    file, test = row.test.split("::")
    assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(), row


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
  """A copy of the checkout, in which a source may be changed."""
  copy = tmp_path_factory.mktemp("mutation") / "jaxreg"
  shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "records", "_build", "runs"))
  return copy


@pytest.mark.slow
@pytest.mark.parametrize("row", mutation.MUTATIONS, ids=str)
def test_mutation_is_caught(row, checkout):
  source = checkout / row.file
  text = source.read_text()
  source.write_text(row.apply(text))
  command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", row.test]
  try:
    done = subprocess.run(
      command, cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)}, capture_output=True, text=True
    )
  finally:
    source.write_text(text)
  # 1 is the status of failed tests; 2 to 5 are tests that could not be run.
  assert done.returncode == 1, done.stdout
