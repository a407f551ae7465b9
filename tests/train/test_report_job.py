"""`job = report`: a card of a run has the numbers of its evaluation, and continues."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train import cli
from jaxreg.train.jobs.report import _check as check
from jaxreg.train.summary import summary

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


@pytest.mark.thorough
def test_a_card_has_the_numbers_of_the_evaluation(trained):
  config, results = report(trained)
  evaluated = train.evaluate(runs.make_config({**FIELDS, "job": "evaluate"}), trained / "run")
  card = json.loads((trained / "run" / "report" / "report.json").read_text())["sections"]
  assert card["errors"]["numbers"]["error"]["value"] == pytest.approx(evaluated["test/error"], abs=1e-6)
  for name in ("nll", "brier", "ece"):
    assert card["calibration"]["numbers"][name]["value"] == pytest.approx(evaluated[f"test/{name}"], rel=1e-4)
  page = str(trained / "run" / "report" / "report.html")
  title = f"checkpoint of step {results['step']}, 2 sections"
  assert summary(results, config, trained / "run").splitlines() == [title, page]


@pytest.mark.thorough
def test_the_noise_and_the_loss_are_those_of_the_training(trained):
  report(trained, report__sections=("noise", "flatness"), report__minutes=0.05)
  card = json.loads((trained / "run" / "report" / "report.json").read_text())["sections"]
  assert card["noise"]["status"] == "done", card["noise"]
  assert card["noise"]["numbers"]["disagreement"]["value"] > 1e-3  # its MLP has dropout
  assert card["flatness"]["numbers"]["loss"]["value"] > 0


@pytest.mark.thorough
def test_detectors_learn_from_the_features_and_the_last_layer(trained):
  report(trained, report__sections=("ood",), report__minutes=0.05)
  card = json.loads((trained / "run" / "report" / "report.json").read_text())["sections"]["ood"]
  assert card["status"] == "done", card
  kinds = ("mahalanobis", "relative_mahalanobis", "knn", "vim", "react")
  assert {f"noise/{kind}_auroc" for kind in kinds} <= {*card["numbers"]}


@pytest.mark.thorough
def test_another_run_is_compared_and_left_alone(trained):
  before = runs.snapshot(trained / "other")
  _, results = report(trained, report__against=(str(trained / "other"),))
  comparison, card = results["pages"]
  (other,) = (trained / "run" / "report" / "others").glob("other-*")
  assert (other / "report.html").is_file()
  assert comparison == str(trained / "run" / "report" / "against-other" / "report.html")
  assert card == str(trained / "run" / "report" / "report.html")
  assert runs.snapshot(trained / "other") == before
  with pytest.raises(train.RunError, match=r"report\.against: must be another run"):
    report(trained, report__against=(str(trained / "run"),))


@pytest.mark.thorough
def test_runs_that_differ_in_the_seed_are_one_model_with_a_band(trained):
  """The command as it is typed: two models, of which the second has two runs."""
  for name, seed in (("smooth-0", 0), ("smooth-1", 1)):
    fields = {**FIELDS, "method.name": "label_smoothing", "seed": seed}
    train.train(runs.make_config(fields), trained / name)
  command = [sys.executable, runs.ROOT / "run.py", "report", "--workdir", trained / "run", "--against"]
  command += [trained / "smooth-0", trained / "smooth-1", f"--config.report.sections={FEW}"]
  done = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
  folder = trained / "run" / "report" / "against-smooth"
  assert done.stdout.splitlines()[1] == str(folder / "report.html")
  found = json.loads((folder / "report.json").read_text())
  top = trained / "run" / "report"
  cards = {label: found["labels"][label] for label in ("run", "smooth")}
  assert cards == found["labels"]
  assert cards["run"] == [str(top)]
  assert [Path(card).parent for card in cards["smooth"]] == [top / "others"] * 2

  def nll(card):
    sections = json.loads((Path(card) / "report.json").read_text())["sections"]
    return sections["calibration"]["numbers"]["nll"]["value"]

  got = found["differences"]["smooth"]["calibration/nll"]
  assert got["value"] == pytest.approx(sum(map(nll, cards["smooth"])) / 2 - nll(top), rel=1e-5)
  page = (folder / "report.html").read_text()
  assert "What differs beyond chance" in page
  assert "smooth, mean of 2 seeds" in page


@pytest.mark.thorough
def test_ctrl_c_leaves_a_page_and_the_same_command_continues(trained):
  command = [sys.executable, runs.ROOT / "run.py", "report", "--workdir", trained / "other"]
  command += ["--config.report.sections=('errors','calibration','flatness')", "--minutes=0.5"]
  process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True)
  for line in process.stderr:
    if "calibration, section" in line:
      process.send_signal(signal.SIGINT)
  assert process.wait() == 130
  folder = trained / "other" / "report"
  before = json.loads((folder / "report.json").read_text())["sections"]
  assert [*before] == ["errors"]
  page = (folder / "report.html").read_text()
  assert "<h2>Errors</h2>" in page
  assert "Flatness: not computed yet" in page
  again = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
  assert "report: calibration, section 1 of 2" in again.stderr
  after = json.loads((folder / "report.json").read_text())["sections"]
  assert after["errors"] == before["errors"]
  assert {each["status"] for each in after.values()} == {"done"}


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("flags", "against"),
  [
    ("--against x --minutes=2", ("x",)),
    ("--against=x --against y --minutes 2", ("x", "y")),
    ("--minutes 2 --against x y --config.report.sections=errors", ("x", "y")),
  ],
)
def test_flags_of_the_command(trained, flags, against):
  call = cli.parse(["report", "--workdir", str(trained / "run"), *flags.split()], runs.ROOT / "configs")
  assert (call.config.job, call.config.report.against, call.config.report.minutes) == ("report", against, 2.0)
  with pytest.raises(train.RunError, match="--against: needs the folder of a run"):
    cli.parse(["report", "--against", "--minutes=2"], runs.ROOT / "configs")


@pytest.mark.thorough
def test_a_card_of_fewer_sections_follows_one_of_more(trained):
  report(trained, report__sections=(*FEW, "selective"))
  _, results = report(trained, report__sections=("errors",), report__against=(str(trained / "other"),))
  assert results["sections"] == 1
  comparison = json.loads((Path(results["pages"][0]).parent / "report.json").read_text())
  assert [*comparison["differences"]["other"]] == ["errors/error"]
  assert "Calibration" not in (trained / "run" / "report" / "report.html").read_text()


@pytest.mark.thorough
def test_a_section_of_numbers_is_refused_for_classes(trained):
  with pytest.raises(
    train.RunError, match=r"^report\.sections: must be of errors, .* that are classes, got 'residuals'$"
  ):
    report(trained, report__sections=("residuals",))


def test_several_labels_are_refused():
  with pytest.raises(train.RunError, match="job: report needs data in memory with one class or number"):
    check(train.Split(np.zeros((2, 3)), np.zeros((2, 2), int)))
