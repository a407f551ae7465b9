"""What a job leaves on the screen, and the table of a comparison."""

from pathlib import Path

import pytest
import runs

from jaxreg.train.jobs.compare import markdown
from jaxreg.train.step.metrics import shown
from jaxreg.train.summary import summary


@pytest.mark.parametrize(
  ("replicas", "ensemble", "said"),
  [
    (1, 1, ""),
    (2, 1, ", 2 seeds, mean ± 95 % confidence interval"),
    (2, 2, ", an ensemble of 2"),
    (4, 2, ", 2 ensembles of 2, mean ± 95 % confidence interval"),
  ],
)
def test_lines_of_a_training(replicas, ensemble, said):
  config = runs.make_config({"replicas": replicas, "ensemble": ensemble})
  results = {
    "step": 24,
    "test/error": 0.0167,
    "test/error_ci95": 0.002,
    "test/nll": 0.05123,
    "test/ece": 0.004,
  }
  lines = summary(results, config, Path("run")).splitlines()
  assert lines[0] == f"{config.method.name}, checkpoint of step 24{said}"
  assert lines[1] == "test  error 1.67 ± 0.20%   NLL 0.0512   ECE 0.40%"


def test_the_line_of_goodput_has_the_largest_losses(tmp_path):
  seconds = {"steps": 60.0, "save": 9.0, "compile": 30.0, "input": 0.5, "restore": 0.5}
  goodput = {"share": 0.6, "starts": 1, "wall_seconds": 100.0, "seconds": seconds}
  results = {"step": 24, "test/error": 0.1}
  runs.reseal(tmp_path / "results.json", {**results, "goodput": goodput})
  results |= {"test/nll": 0.1, "test/ece": 0.1}
  lines = summary(results, runs.make_config(), tmp_path).splitlines()
  assert lines[2] == "goodput 60.0% of 100 s; lost: compile 30%, save 9%"


def test_table_of_a_comparison():
  mean = {"test/error": 0.05, "test/error_ci95": 0.01, "test/nll": 0.25, "test/ece": 0.012}
  less = {"test/error": -0.01, "test/error_ci95": 0.002}
  plain, small = {}, {"optimizer.learning_rate": 0.03, "noise.dropconnect_params.rate": 0.5}
  rows = {
    "plain": {"mean": mean, "setting": plain},
    "small": {"mean": mean, "difference": less, "setting": small},
  }
  table = [
    "| 3 seeds | test error, % | NLL   | ECE, % | error less plain's, % | setting                      |",
    "| ------- | ------------- | ----- | ------ | --------------------- | ---------------------------- |",
    "| plain   | 5.00 ± 1.00   | 0.250 | 1.20   |                       |                              |",
    "| small   | 5.00 ± 1.00   | 0.250 | 1.20   | -1.00 ± 0.20          | learning_rate 0.03, rate 0.5 |",
  ]
  assert markdown({"seeds": 3, "rows": rows}).splitlines() == table
  *two, note = markdown({"seeds": 2, "rows": rows}).splitlines()
  assert two == [table[0].replace("3 seeds", "2 seeds"), *table[1:], ""]
  assert "2 runs have one degree of freedom" in note


@pytest.mark.parametrize(
  ("name", "mean", "half", "options", "text"),
  [
    ("test/error", 0.1097, 0.1941, {"factor": 100}, "10.97 [0.00, 30.38]"),
    ("test/error", 0.95, 0.1, {"factor": 100}, "95.00 [85.00, 100.00]"),
    ("test/error", 0.1097, 0.1, {"factor": 100}, "10.97 ± 10.00"),
    ("test/error", -0.1, 0.2, {"factor": 100, "difference": True}, "-10.00 ± 20.00"),
    ("test/error", -0.1, 2.0, {"factor": 100, "difference": True}, "-10.00 [-100.00, 100.00]"),
    ("test/nll", 0.25, 0.5, {}, "0.25 [0.00, 0.75]"),
    ("test/nll", -0.25, 9.0, {"difference": True}, "-0.25 ± 9.00"),
    ("test/brier", 1.9, 0.5, {}, "1.90 [1.40, 2.00]"),
    ("ood/noise/confidence_auroc", 0.9, 0.2, {}, "0.90 [0.70, 1.00]"),
    ("train/loss", 0.25, 0.5, {}, "0.25 ± 0.50"),
    ("test/rmse", 44.6, 1.001, {}, "44.60 ± 1.00"),
    ("test/rmse", 3.21e20, 1e18, {}, "3.21e+20 ± 1e+18"),
    ("test/mae", 0.00123456, 0.0001, {}, "0.001235 ± 0.0001"),
  ],
)
def test_an_interval_ends_where_the_quantity_does(name, mean, half, options, text):
  assert shown({name: mean, f"{name}_ci95": half}, name, digits=2, **options) == text
