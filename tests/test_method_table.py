"""The table of methods: read from the docstrings and the trainer's tables, and complete."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from jaxreg.train import base_config, cli
from jaxreg.train.config.choices import flatten
from jaxreg.train.registry import REGISTRY

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def table():
  return runpy.run_path(str(ROOT / "docs/method_table.py"))


@pytest.fixture(scope="module")
def rows(table):
  """The cells of each function's row."""
  lines = [line for line in table["page"]().splitlines() if line.startswith("| `")]
  cells = [re.split(r"\s*(?<!\\)\|\s*", line)[1:-1] for line in lines]
  return {name.strip("`"): rest for name, *rest in cells}


def test_every_public_function_has_a_row_that_says_what_it_does(table, rows):
  assert set(rows) == {
    f"{folder}.{name}" for folder in table["FOLDERS"] for name in table["functions"](folder)
  }
  assert [name for name, (what, *_) in rows.items() if not what] == []


@pytest.mark.parametrize(
  ("name", "field", "configs", "source"),
  [
    ("losses.focal", "`method.name=focal`", "`toolbox_digits:focal`", "Lin et al., *Focal Loss for Dense"),
    ("losses.dropmax", "`method.name=dropmax`", "`dropmax_awa2`", "Lee et al., *DropMax: Adaptive"),
    ("losses.softmax_cross_entropy", "`method.name=softmax`", "`softmax_digits`", "Goodfellow, Bengio and"),
    ("losses.sparsemax_log_probs", "`method.name=sparsemax`", "`compare_dropmax_mnist1k`", ""),
    (
      "losses.group_softmax",
      "`method.name=group_softmax`",
      "`group_softmax_caltech256`",
      "Kobayashi, *Group",
    ),
    ("losses.pseudo_label", "`regularizers.pseudo_label.weight`", "`toolbox_digits:pseudo_label`", "Lee, *"),
    ("losses.jensen_shannon", "`regularizers.augmix.weight`", "`toolbox_digits:augmix`", "Hendrycks et al."),
    ("adversarial.pgd", "`regularizers.pgd.weight`", "`toolbox_digits:pgd`", "Madry et al., *Towards"),
    ("penalties.l1", "`regularizers.l1.weight`", "`toolbox_digits:l1`", "Tibshirani, *Regression"),
    (
      "constraints.max_norm",
      "`optimizer.constraints.names=('max_norm',)`",
      "`toolbox_digits:max_norm`",
      "Hin",
    ),
    ("noise.label_noise", "`noise.names=('label_noise',)`", "`toolbox_digits:label_noise`", "Na, *Reg"),
    ("noise.dropout", "`model.*.dropout_rate`", "`toolbox_digits:dropout`", "Srivastava et al., *Dropout:"),
    ("augment.mixup", "`augment.names=('mixup',)`", "`toolbox_digits:mixup`", "Zhang et al., *mixup:"),
    ("optim.sam", "`optimizer.name=sam`", "`optimizers_digits:sam`", "Foret et al., *Sharpness-Aware"),
    ("averaging.swag", "`average.name=swag`", "`toolbox_digits:swag`", "Maddox et al., *A Simple"),
    ("reparam.weight_norm", "`model.MLP.layer=weight_norm`", "`toolbox_digits:weight_norm`", "Salimans and"),
    ("calibration.ece", "within the trainer", "", "Guo et al., *On Calibration of Modern"),
  ],
)
def test_a_row_has_the_field_the_configs_and_the_source(rows, name, field, configs, source):
  _, found, named, told = rows[name]
  assert (found, named[: len(configs)], told[: len(source)]) == (field, configs, source)
  assert configs or not named


@pytest.mark.parametrize(
  ("references", "source"),
  [
    (
      "A and B, `One`, 2011, section 3. C et al., `Two`, 2012.",
      "A and B, *One*, 2011; C et al., *Two*, 2012",
    ),
    ("A, `One`, 2011, Eq. A.2 and A.13.", "A, *One*, 2011"),
    ("A, `One`,\n    2011. A, `One`, 2011, Fig. 2.", "A, *One*, 2011"),
    ("A, `One`, lecture, its end.", "A, *One*, lecture, its end"),
  ],
)
def test_a_source_has_authors_title_and_year(table, references, source):
  assert table["source"](f"Does.\n\nReferences:\n  {references}\n") == source
  assert table["source"]("Does.") == ""


def test_every_row_of_the_trainer_s_tables_reaches_a_function(table):
  """But the terms and methods that only join others: a decoder beside a classifier."""
  reached = {row for found in table["rows"]().values() for row in found}
  groups = ("method", "regularizers", "optimizer.constraints", "noise", "augment")
  assert {name for group in groups for name in REGISTRY[group]} - reached == set()


def test_the_configs_and_fields_that_rows_name_exist(rows):
  known, config = {"job", *flatten(base_config())}, ""
  for line in cli.parse(["--list"], ROOT / "configs").text.splitlines():
    if found := re.match(r"configs/(\w+)\.py", line):
      config = found[1]
      known.add(config)
    elif line.strip().startswith(":"):
      known |= {config + variant for variant in line.split()}
  known |= {re.sub(r"^model\.\w+\.", "model.*.", field) for field in known}
  named = {code.partition("=")[0] for row in rows.values() for code in re.findall("`(.*?)`", row[1] + row[2])}
  assert named - known == set()


@pytest.mark.thorough
@pytest.mark.parametrize("script", ["docs/method_table.py", "docs/reference.py"])
def test_a_generator_imports_the_checkout_it_stands_in(script, tmp_path):
  """With another jaxreg on the path, and from another folder."""
  (tmp_path / "jaxreg").mkdir()
  (tmp_path / "jaxreg/__init__.py").write_text("raise SystemExit('another jaxreg')")
  code = f"import runpy; runpy.run_path({str(ROOT / script)!r}); import jaxreg; print(jaxreg.__file__)"
  env = {**os.environ, "PYTHONPATH": str(tmp_path)}
  run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
  assert run.stdout.strip() == str(ROOT / "jaxreg/__init__.py"), run.stderr
