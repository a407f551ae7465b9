"""The flatness config that no test data exist for, whole, on random images of its shape."""

import json

import numpy as np
import pytest
import runs

SMALLER = {
  "data.name": "npz",
  "batch_size": 64,
  "accumulate": 2,
  "steps": 2,
  "eval_batch_size": 64,
  "flatness.examples": 8,
  "flatness.profile.directions": 2,
  "flatness.profile.points": 3,
  "flatness.variance_flatness.samples": 6,
  "flatness.variance_flatness.directions": 4,
  "flatness.projected_variance.samples": 4,
  "flatness.projected_variance.eigenpairs": 3,
}


@pytest.mark.slow
def test_resnet20_on_a_cifar100_of_noise(tmp_path):
  rng = np.random.default_rng(0)
  arrays = {}
  for split, size in (("train", 128), ("val", 64), ("test", 64)):
    arrays[f"x_{split}"] = rng.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8)
    arrays[f"y_{split}"] = np.arange(size) % 100
  np.savez(tmp_path / "noise.npz", **arrays)
  fields = {**SMALLER, "data.npz.path": tmp_path / "noise.npz"}
  process = runs.start(
    [
      f"--config={runs.ROOT}/configs/flatness_resnet20_cifar100.py",
      "--workdir=run",
      *(f"--config.{field}={value}" for field, value in fields.items()),
    ],
    tmp_path,
  )
  out, err = process.communicate(timeout=3600)  # five minutes on a free core, most of it compiling
  assert process.returncode == 0, err
  rows = json.loads((tmp_path / "run" / "flatness.json").read_text())
  assert list(rows) == ["no dropout", "keep 0.8"]
  for row in rows.values():
    # The first convolution of the first block: 3x3, 16 channels to 16.
    assert (row["step"], row["examples"], row["parameters"]) == (2, 8, 3 * 3 * 16 * 16)
    assert row["profile"]["1"]["mean"] > 0
  assert 1 <= rows["keep 0.8"]["projected_variance"]["eigenvalues"] <= 3
  flat = rows["keep 0.8"]["variance_flatness"]["gradients"]
  assert 1 <= flat["directions"] <= 4
  # A line with intervals needs four points, and the loss of noise need not double along all of them.
  assert np.isfinite(flat["fits"]["2"]["slope"]) == (flat["directions"] - flat["not_crossed"] >= 4)
  assert "rise at ±0.5" in out
  figures = {path.name for path in (tmp_path / "run" / "figures").iterdir()}
  assert figures == {"profile.png", "variance_flatness.png", "spectra.png", "projected_variance.png"}
