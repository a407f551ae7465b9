"""`job = report`: a card of a run has the numbers of its evaluation, and continues."""

import json

import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train import cli
from jaxreg.train.jobs.report import _check as check

FEW = ("errors", "calibration")
FIELDS = {"method.name": "softmax", "epochs": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, light_module):
  folder = tmp_path_factory.mktemp("runs")
  for name, seed in (("run", 0), ("other", 1)):
    train.train(runs.make_config({**FIELDS, "seed": seed}), folder / name)
  return folder


def report(trained, **fields):
  given = {"job": "report", "report.sections": FEW, **fields}
  config = runs.make_config({**FIELDS, **{name.replace("__", "."): value for name, value in given.items()}})
  return config, train.report(config, trained / "run")


def test_a_card_has_the_numbers_of_the_evaluation(trained):
  config, results = report(trained)
  evaluated = train.evaluate(runs.make_config({**FIELDS, "job": "evaluate"}), trained / "run")
  card = json.loads((trained / "run" / "report" / "report.json").read_text())["sections"]
  assert card["errors"]["numbers"]["error"]["value"] == pytest.approx(evaluated["test/error"], abs=1e-6)
  for name in ("nll", "brier", "ece"):
    assert card["calibration"]["numbers"][name]["value"] == pytest.approx(evaluated[f"test/{name}"], rel=1e-4)
  page = str(trained / "run" / "report" / "report.html")
  assert train.summary(results, config, trained / "run").splitlines() == ["2 sections", page]


def test_the_noise_and_the_loss_are_those_of_the_training(trained):
  report(trained, report__sections=("noise", "flatness"), report__minutes=0.05)
  card = json.loads((trained / "run" / "report" / "report.json").read_text())["sections"]
  assert card["noise"]["status"] == "done", card["noise"]
  assert card["noise"]["numbers"]["disagreement"]["value"] > 1e-3  # its MLP has dropout
  assert card["flatness"]["numbers"]["loss"]["value"] > 0


def test_another_run_beside_it(trained):
  _, results = report(trained, report__against=str(trained / "other"))
  comparison, card = results["pages"]
  assert comparison == str(trained / "run" / "report" / "against-other" / "report.html")
  assert card == str(trained / "run" / "report" / "report.html")
  assert (trained / "other" / "report" / "report.html").is_file()
  with pytest.raises(train.RunError, match=r"report\.against: must be another run"):
    report(trained, report__against=str(trained / "run"))


def test_flags_of_the_command(trained, tmp_path):
  arguments = ["report", "--workdir", str(trained / "run"), "--against", "x", "--minutes=2"]
  call = cli.parse(arguments, runs.ROOT / "configs")
  assert (call.config.job, call.config.report.against, call.config.report.minutes) == ("report", "x", 2.0)


def test_several_labels_are_refused():
  with pytest.raises(train.RunError, match="job: report needs data in memory with one class or number"):
    check(train.Split(np.zeros((2, 3)), np.zeros((2, 2), int)))
