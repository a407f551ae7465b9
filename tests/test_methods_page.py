"""The page of methods is current and complete: what is public and what the trainer knows has a row."""

import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from jaxreg.train import METHODS, base_config, cli, flatten

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
  *("losses", "noise", "penalties", "constraints", "augment", "adversarial", "optim", "averaging"),
  *("ensembles", "calibration", "sparse", "reparam", "symmetry", "theory", "flatness", "models"),
)


@pytest.fixture(scope="module")
def methods():
  spec = importlib.util.spec_from_file_location("methods_page", ROOT / "docs" / "methods.py")
  assert spec
  assert spec.loader
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def rows(methods):
  return [row for section in methods.SECTIONS.values() for row in section]


def test_the_page_is_current(methods):
  assert (ROOT / "docs" / "methods.md").read_text() == methods.page(), "run python docs/methods.py"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_public_function_has_one_row(methods, folder):
  module = importlib.import_module(f"jaxreg.{folder}")
  # Classes are states and results, but in `models`, where they are what one calls.
  public = {
    f"{folder}.{name}"
    for name in module.__all__
    if folder == "models" or inspect.isfunction(getattr(module, name))
  }
  named = [name for row in rows(methods) for name in methods.functions(row) if name.startswith(f"{folder}.")]
  assert public - set(named) == set(), "give each a row in docs/methods.py"
  assert sorted(named) == sorted(public), "a name that does not exist, or that has two rows"


@pytest.mark.parametrize("method", METHODS)
def test_a_method_of_the_trainer_has_a_row(methods, method):
  """As one of its functions or in its config: `losses.dropmax`, `method.name=softmax`."""
  assert any(re.search(rf"\b{method}\b", f"{row.functions} {row.config}") for row in rows(methods))


def test_the_configs_and_fields_that_rows_name_exist(methods):
  known, config = set(flatten(base_config())), ""
  for line in cli.parse(["--list"], ROOT / "configs").text.splitlines():
    if found := re.match(r"configs/(\w+)\.py", line):
      config = found[1]
      known.add(config)
    elif line.strip().startswith(":"):
      known |= {config + variant for variant in line.split()}
  named = {code.partition("=")[0] for row in rows(methods) for code in re.findall("`(.*?)`", row.config)}
  assert {name for name in named - known if not (ROOT / name).is_file()} == set()
