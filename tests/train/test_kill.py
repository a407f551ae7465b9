"""Killed at any moment and started again, a run ends as if nothing had been."""

import signal
import subprocess
import time

import numpy as np
import pytest
import runs

from jaxreg.train.run import manifest

pytestmark = pytest.mark.slow

KILLS = 20
EPOCHS = 60
ARGUMENTS = [f"--config.epochs={EPOCHS}", "--config.eval_every=1", "--config.checkpoint.every=1"]
ARGUMENTS += [
  "--config.model.MLP.widths=(16,)",
  "--config.model.MLP.dropout_rate=0.2",
  "--config.log_every=1",
]


def phase(workdir, stderr):
  """Where a killed run was, from what it had said."""
  if "test error" in stderr:
    return "finishing"
  if "step " in stderr.replace("at step", "").replace("steps", ""):
    return "training"
  return "compiling" if "training" in stderr or "resuming" in stderr else "starting"


def test_killed_at_random_moments(tmp_path):
  began = time.monotonic()
  status, _, err = runs.run([*ARGUMENTS, "--workdir", tmp_path / "whole"], tmp_path)
  duration = time.monotonic() - began
  assert status == 0, err
  expected = runs.final_state(tmp_path / "whole")
  results = runs.table(tmp_path / "whole" / "results.json")
  assert results["step"] == expected["step"].item() == EPOCHS * (1078 // 64)

  random = np.random.default_rng(0)
  kills, finished, number = [], 0, 0
  while len(kills) < KILLS:
    workdir = tmp_path / str(number)
    number += 1
    while True:
      process = runs.start([*ARGUMENTS, "--workdir", workdir], tmp_path)
      try:
        # When all kills are made, the last run may end in peace.
        delay = random.uniform(0, 1.1 * duration) if len(kills) < KILLS else None
        _, err = process.communicate(timeout=delay)
      except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL
        there = max(manifest.good_steps(workdir), default=0)
        kills.append((round(delay, 2), phase(workdir, err), there))
      else:
        assert process.returncode == 0, err
        assert "damaged" not in err
        break
    finished += 1
    runs.assert_bitwise(runs.final_state(workdir), expected)
    assert runs.table(workdir / "results.json") == results
    assert runs.records(workdir) == runs.records(tmp_path / "whole")

  print(f"\nuninterrupted {duration:.1f} s; {len(kills)} kills over {finished} runs: {kills}")
  assert len(kills) >= KILLS
  phases = {phase for _, phase, _ in kills}
  assert {"starting", "training"} <= phases, phases
  assert sum(0 < there < results["step"] for _, _, there in kills) >= 3  # went on from a checkpoint


def test_killed_while_saving_and_at_the_very_end(tmp_path):
  """At what the run itself says it does: right after a record, when a checkpoint is being written."""
  _, _, err = runs.run([*ARGUMENTS, "--workdir", tmp_path / "whole"], tmp_path)
  expected = runs.final_state(tmp_path / "whole")
  random = np.random.default_rng(1)
  workdir, kills = tmp_path / "killed", []
  for wanted in ("val error", "val error", "val error", "test error", "test error"):
    process = runs.start([*ARGUMENTS, "--workdir", workdir], tmp_path)
    skip, said = int(random.integers(3, 8)), ""
    for line in process.stderr:
      said += line
      skip -= wanted in line
      if skip <= 0 or (wanted == "test error" and wanted in line):
        break
    time.sleep(random.uniform(0, 0.05))
    process.kill()
    process.communicate()
    kills.append((wanted, process.returncode, max(manifest.good_steps(workdir), default=0)))
    assert wanted in said
    assert process.returncode == -signal.SIGKILL
    assert not (workdir / "results.json").exists()
  status, _, err = runs.run([*ARGUMENTS, "--workdir", workdir], tmp_path)
  print(f"\n{kills}")
  assert status == 0, err
  runs.assert_bitwise(runs.final_state(workdir), expected)
  assert (workdir / "results.json").read_text() == (tmp_path / "whole" / "results.json").read_text()
  assert runs.records(workdir) == runs.records(tmp_path / "whole")
