"""The scripts of `papers/` that read a folder: what they draw, and a wrong folder in one line."""

import importlib
import json

import numpy as np
import pytest

from papers._small_networks import draw
from papers.adaptive_sgd import figures, optimizer_curves

STEPS = [50, 100, 150]


@pytest.fixture
def comparison(tmp_path):
  """A comparison of two optimizers from both starts: `compare.json` and the metrics of each row."""
  labels = ["SGD", "SGD unbalanced", "3-norm", "3-norm unbalanced"]
  (tmp_path / "compare.json").write_text(json.dumps({"seeds": 3, "rows": {label: {} for label in labels}}))
  for number, label in enumerate(labels):
    folder = tmp_path / "rows" / f"{label.replace('-', '_').replace(' ', '_')}-{number:08x}"
    folder.mkdir(parents=True)
    lines = [
      {"step": step, "train/loss": 1.0 / (step + number), "train/loss_ci95": 0.5 if step == 150 else 0.001}
      for step in STEPS
    ]
    lines.append({"step": 150, "test/error": 0.1})
    (folder / "metrics.jsonl").write_text(
      "".join(json.dumps({"epoch": 1.0, **line}) + "\n" for line in lines)
    )
  return tmp_path


def test_each_optimizer_has_a_panel_with_both_starts(comparison, monkeypatch):
  drawn, draw = [], optimizer_curves.draw
  monkeypatch.setattr(
    optimizer_curves, "draw", lambda *args, **named: drawn.append(draw(*args, **named)) or drawn[0]
  )
  monkeypatch.setattr("sys.argv", ["optimizer_curves", str(comparison)])
  optimizer_curves.main()
  assert (comparison / "figures/optimizers.png").stat().st_size > 5000
  panels = [axis for axis in drawn[0].axes if axis.axison]
  assert [axis.get_title(loc="left") for axis in panels] == ["SGD", "3-norm"]
  balanced, unbalanced = panels[1].lines[-2:]
  np.testing.assert_allclose(balanced.get_ydata(), [1 / (step + 2) for step in STEPS])
  np.testing.assert_allclose(unbalanced.get_ydata(), [1 / (step + 3) for step in STEPS])
  # The interval at the last step reaches below 0, and its band ends a decade below the line.
  (path,) = panels[1].collections[0].get_paths()
  np.testing.assert_allclose(path.vertices[:, 1].min(), 0.1 / 152)


WRONG = {
  "adaptive_sgd.optimizer_curves": ["{}"],
  "adaptive_sgd.figures": ["autoencoder", "--data", "{}", "--out", "{}"],
  "dropmax.figures": ["{}"],
  "group_softmax.adversarial": ["{}"],
  "group_softmax.trends": ["{}"],
}


@pytest.mark.parametrize("script", WRONG)
def test_a_wrong_folder_is_reported_in_one_line(script, tmp_path, monkeypatch, capsys):
  main = getattr(importlib.import_module(f"papers.{script}"), "main", None)
  main = main or (lambda: draw(figures.__doc__, "adaptive_sgd", figures.FIGURES, figures.ON_MNIST))
  monkeypatch.setattr("sys.argv", [script, *(argument.format(tmp_path) for argument in WRONG[script])])
  with pytest.raises(SystemExit) as ended:
    main()
  (line,) = capsys.readouterr().err.splitlines()
  assert (ended.value.code, str(tmp_path) in line) == (1, True)


def test_a_comparison_of_other_rows_is_refused(comparison, monkeypatch, capsys):
  (comparison / "rows/SGD-00000000").rename(comparison / "rows/Adam-00000000")
  for script, message in (
    ("adaptive_sgd.optimizer_curves", "must have one folder of the row 'SGD', got 0"),
    ("group_softmax.trends", "must compare softmax and group softmax, got SGD, SGD unbalanced"),
  ):
    monkeypatch.setattr("sys.argv", [script, str(comparison)])
    with pytest.raises(SystemExit):
      importlib.import_module(f"papers.{script}").main()
    assert message in capsys.readouterr().err
