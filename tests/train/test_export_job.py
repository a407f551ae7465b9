"""The job `export`: one function that needs JAX only."""

import json
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
import runs

from jaxreg import calibration, train
from jaxreg.train import cli
from jaxreg.train.config.choices import add_options
from jaxreg.train.jobs.export import export
from jaxreg.train.jobs.predict import held_out

CALL = """
import importlib.util, sys
import numpy as np
spec = importlib.util.spec_from_file_location("predict", sys.argv[1] + "/export/predict.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
outputs = module.predict(np.load(sys.argv[1] + "/inputs.npy"))
assert not any(name.partition(".")[0] in ("jaxreg", "flax", "optax") for name in sys.modules)
np.savez(sys.argv[1] + "/outputs.npz", **{name: np.asarray(value) for name, value in outputs.items()})
"""


def exported(workdir, inputs, **fields):
  """Returns what `predict.py` computes in a process that has nothing of jaxreg, and `model.json`."""
  overrides = [f"--config.{name}={value}" for name, value in fields.items()]
  call = cli.parse(["export", str(workdir), *overrides], runs.ROOT / "configs")
  export(call.config, call.workdir)
  np.save(workdir / "inputs.npy", inputs)
  subprocess.run([sys.executable, "-c", CALL, str(workdir)], check=True, cwd=workdir)
  with np.load(workdir / "outputs.npz") as outputs:
    return dict(outputs), table(workdir)


def table(workdir):
  """Returns `model.json`, as a reader that takes nothing but JSON."""
  text = (workdir / "export" / "model.json").read_text()
  return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_classes(tmp_path, light_runs):
  train.train(runs.make_config({"method.name": "softmax", "epochs": 2}), tmp_path)
  predict = train.load(tmp_path)
  inputs = np.asarray(predict.dataset.test.inputs[:7])
  outputs, about = exported(tmp_path, inputs, **{"evaluate.alpha": "0.2"})
  log_probs = np.asarray(predict(inputs), np.float64)
  tempered = np.exp(log_probs / about["temperature"])
  expected = tempered / tempered.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(outputs["probabilities"], expected, rtol=2e-5, atol=1e-7)
  # The oracle of the threshold: a score whose rank among n is the ceiling of 0.8 (n + 1).
  known = held_out([predict], 500)
  scores = -known.predictions[np.arange(len(known.labels)), known.labels].astype(np.float64)
  rank = int(np.ceil((len(scores) + 1) * 0.8))
  threshold = np.sort(scores)[rank - 1]
  assert about["threshold"] == pytest.approx(threshold, rel=1e-5)
  clear = np.abs(-log_probs - threshold) > 1e-5
  np.testing.assert_array_equal(outputs["set"][clear], (-log_probs <= threshold)[clear])
  assert about["class_names"] == list(predict.class_names)
  assert about["platforms"] == ["cpu", "cuda", "tpu"]
  # Pixels are bytes; floats are taken only where they equal one.
  shown = runpy.run_path(str(tmp_path / "export" / "predict.py"))["predict"]
  np.testing.assert_array_equal(shown(np.float64(inputs))["set"], outputs["set"])
  for wrong in (0.0625, np.nan, np.inf, -1, 256):
    with pytest.raises(ValueError, match=rf"^inputs must be finite uint8, as .*, got {wrong}$"):
      shown(np.full(inputs.shape, wrong))
  outputs, about = exported(tmp_path, inputs, **{"evaluate.alpha": "0.001"})  # needs 999 examples
  assert about["threshold"] is None
  assert outputs["set"].all()


def test_a_network_that_needs_the_number_of_its_examples_is_refused(tmp_path, light_runs, monkeypatch):
  (tmp_path / "theirs.py").write_text("""
from flax import nnx


class Net(nnx.Module):
  def __init__(self, input_shape, *, rngs):
    self.layer = nnx.Linear(64, 8, rngs=rngs)

  def __call__(self, x):
    return self.layer(x.reshape(len(x), -1))
""")
  monkeypatch.syspath_prepend(tmp_path)
  workdir = tmp_path / "run"
  config = add_options(
    runs.make_config({"method.name": "softmax", "epochs": 1}), {"model.name": "theirs:Net"}
  )
  config.model.name = "theirs:Net"
  train.train(config, workdir)
  call = cli.parse(["export", str(workdir), "--config.model.name=theirs:Net"], runs.ROOT / "configs")
  with pytest.raises(train.RunError, match=r"must take a batch of unknown size, as x.shape\[0\] does"):
    export(call.config, call.workdir)


@pytest.mark.thorough
def test_numbers_in_the_units_of_the_data(tmp_path, light_runs):
  rng = np.random.default_rng(0)
  x = rng.normal(3, 2, (400, 4))
  y = 1.7e9 + x.sum(axis=1) + rng.normal(0, 0.1, 400)  # times in seconds; float32 keeps minutes only
  np.savez(tmp_path / "data.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
  fields = {"data.npz.path": str(tmp_path / "data.npz"), "data.npz.standardize": True}
  workdir = tmp_path / "run"
  train.train(
    runs.make_config({"data.name": "npz", "method.name": "gaussian_nll", "epochs": 2, **fields}), workdir
  )
  predict = train.load(workdir)
  outputs, _ = exported(workdir, x[:3])
  unit = predict.program.target.standard.stds[0]
  np.testing.assert_allclose(outputs["prediction"], predict(x[:3]), rtol=0, atol=1e-4 * unit)
  known = held_out([predict], 500)
  ends = (np.asarray(end) for end in predict.program.target.interval(known.predictions))
  learned = predict.program.target.standard.learned(known.labels)
  scores = calibration.interval_scores(*ends, learned)
  widening = np.sort(np.asarray(scores))[int(np.ceil((len(scores) + 1) * 0.9)) - 1]
  low, high = predict.interval(x[:3])
  np.testing.assert_allclose(outputs["low"], low - widening * unit, rtol=0, atol=1e-4 * unit)
  np.testing.assert_allclose(outputs["high"], high + widening * unit, rtol=0, atol=1e-4 * unit)
  shown = runpy.run_path(str(workdir / "export" / "predict.py"))["predict"]
  for wrong in (np.nan, np.inf, 1e300):
    with pytest.raises(ValueError, match=rf"^inputs must be finite float32, .*got {re.escape(str(wrong))}"):
      shown(np.where(x[:3] == x[1, 2], wrong, x[:3]))
  outputs, about = exported(workdir, x[:3], **{"evaluate.alpha": "0.001"})
  assert about["widening"] is None
  assert np.isneginf(outputs["low"]).all()


@pytest.mark.thorough
def test_convolutions_and_several_members(tmp_path, light_runs):
  fields = {
    "model.name": "CifarResNet",
    "model.CifarResNet.depth": 8,
    "epochs": 1,
    "replicas": 2,
    "ensemble": 2,
  }
  train.train(runs.make_config(fields), tmp_path)
  inputs = np.asarray(train.load(tmp_path).dataset.test.inputs[:5])
  outputs, about = exported(tmp_path, inputs)
  each = [np.exp(np.asarray(train.load(tmp_path, replica=n)(inputs), np.float64)) for n in range(2)]
  tempered = np.mean(each, axis=0) ** (1 / about["temperature"])
  expected = tempered / tempered.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(outputs["probabilities"], expected, rtol=1e-4, atol=1e-6)
