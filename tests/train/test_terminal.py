"""What a job leaves on a terminal of 80 columns is at most a screen of 24 lines."""

import sys
from pathlib import Path

import pytest
import runs
import terminal

from jaxreg import train
from jaxreg.train.summary import summary

SHORT = {"method.name": "softmax", "epochs": 12, "eval_every": 1}
ROWS = tuple(f"row {width}: model.MLP.widths=({width},)" for width in (4, 6, 8))
JOBS = {
  "replicas": (train.train, {"replicas": 2}),
  "compare": (
    train.compare,
    {"job": "compare", "compare.rows": ROWS, "compare.seeds": 2, "compare.grid": ("row 4: seed=1,2,3",)},
  ),
}


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=pytest.mark.thorough if name == "replicas" else pytest.mark.slow)
    for name in JOBS
  ],
)
def test_a_job_leaves_less_than_a_screen(name, tmp_path, light_runs, monkeypatch):
  monkeypatch.chdir(tmp_path)
  job, fields = JOBS[name]
  config, workdir = runs.make_config({**SHORT, **fields}), Path("run")
  with terminal.Terminal() as shown, monkeypatch.context() as patch:
    patch.setattr("sys.stderr", shown.file)
    print(summary(job(config, workdir), config, workdir), file=shown.file)
  assert 5 < len(shown.lines) < 24
  named = {line for line in shown.lines if line.endswith(".png")}
  assert named == {str(file.relative_to(tmp_path)) for file in (tmp_path / "run").glob("figures/*.png")}


@pytest.mark.slow
def test_the_main_job_leaves_less_than_a_screen(tmp_path):
  status, lines = terminal.run([sys.executable, runs.ROOT / "run.py"], cwd=tmp_path)
  assert (status, len(lines) < 24) == (0, True), lines
  assert lines[:2] == [
    "starting: train, in runs/dropmax_digits",
    "training 1600 steps, in runs/dropmax_digits; the first one compiles",
  ]
  assert lines[-1] == "runs/dropmax_digits/figures/terms.png"
