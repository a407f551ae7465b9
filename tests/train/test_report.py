"""What a job leaves on the screen, and the table of a comparison."""

from pathlib import Path

import pytest
import runs

from jaxreg import train
from jaxreg.train.jobs.compare import markdown


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
  lines = train.report(results, config, Path("run")).splitlines()
  assert lines[0] == f"{config.method.name}, checkpoint of step 24{said}"
  assert lines[1] == "test  error 1.67 ± 0.20%   NLL 0.0512   ECE 0.40%"


def test_table_of_a_comparison():
  mean = {"test/error": 0.05, "test/error_ci95": 0.01, "test/nll": 0.25, "test/ece": 0.012}
  less = {"test/error": -0.01, "test/error_ci95": 0.002}
  plain, small = {}, {"optimizer.learning_rate": 0.03, "model.MLP.dropout_rate": 0.5}
  rows = {
    "plain": {"mean": mean, "setting": plain},
    "small": {"mean": mean, "difference": less, "setting": small},
  }
  assert markdown({"seeds": 2, "rows": rows}).splitlines() == [
    "| 2 seeds | test error, % | NLL | ECE, % | error less plain's, % | setting |",
    "|---|---|---|---|---|---|",
    "| plain | 5.00 ± 1.00 | 0.250 | 1.20 |  |  |",
    "| small | 5.00 ± 1.00 | 0.250 | 1.20 | -1.00 ± 0.20 | learning_rate 0.03, dropout_rate 0.5 |",
  ]
