"""A residual network of NNX from a user's own file: trained by its name, and loaded for predictions."""

import importlib
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs
from flax import nnx

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data import sources
from jaxreg.train.finished.restore import restore_config
from jaxreg.train.run import workdir as workdirs

FIELDS = {
  "method.name": "label_smoothing",
  "model.name": "my_networks:ResidualNet",
  "model.ResidualNet.widths": (4, 8),
  "model.ResidualNet.depth": 1,
  "augment.names": ("mixup",),
  "optimizer.name": "sam",
  "optimizer.sam.inner": "adam",
  "optimizer.learning_rate": 0.02,
  "average.name": "ema",
  "average.ema.decay": 0.9,
  "data.subset.limit": 256,
  "batch_size": 64,
  "epochs": 20,
}


@pytest.mark.thorough
def test_a_residual_network_trains_by_its_name_and_loads_in_evaluation_mode(tmp_path, monkeypatch):
  """With mixup, SAM and averaged parameters, from the command line, in the folder of its file."""
  shutil.copy(runs.ROOT / "tests/train/nnx_resnet.py", tmp_path / "my_networks.py")
  flags = [f"--config.{name}={value}" for name, value in FIELDS.items()]
  status, _, stderr = runs.run([*flags, "--workdir", "run"], tmp_path, optimised=False)
  assert status == 0, stderr
  results = json.loads((tmp_path / "run" / "results.json").read_text())
  assert results["test/error"] < 0.6  # a guess has 0.9

  monkeypatch.syspath_prepend(tmp_path)
  module = importlib.import_module("my_networks")
  predict, test = train.load(tmp_path / "run"), sources.digits().limited(256).test
  log_probs = np.asarray(predict(test.inputs))
  assert np.mean(log_probs.argmax(-1) != test.labels) == results["test/error"]

  backbone = predict.backbone
  assert isinstance(backbone, module.ResidualNet)
  modes = [
    part.deterministic if isinstance(part, nnx.Dropout) else part.use_running_average
    for _, part in nnx.iter_modules(backbone)
    if isinstance(part, nnx.Dropout | nnx.BatchNorm)
  ]
  assert len(modes) == 3 + 5 + 1  # dropout of the blocks and the end; BatchNorm of blocks, shortcut and stem
  assert all(modes)
  head = predict.state.params["head"]["classifier"]
  x = jnp.asarray(test.inputs / 16.0, jnp.float32)
  before = nnx.to_pure_dict(nnx.state(backbone, nnx.BatchStat))
  for number in (len(x), 3):  # no example sees the others
    logits = backbone(x[:number]) @ head["kernel"] + head["bias"][None]
    np.testing.assert_allclose(jax.nn.log_softmax(logits), log_probs[:number], rtol=1e-4, atol=1e-5)
  runs.assert_bitwise(nnx.to_pure_dict(nnx.state(backbone, nnx.BatchStat)), before)

  # The parameters for predictions are the average, and not those of the last step.
  last = runs.final_state(tmp_path / "run")
  ours = jax.tree.leaves(predict.state.params)
  for live, averaged in zip(jax.tree.leaves(last["params"]), ours, strict=True):
    assert np.abs(live[0] - averaged).max() > 0

  config = restore_config(train.base_config(), tmp_path / "run")
  initial = build(config, workdirs.read_data(tmp_path / "run")).init(config.seed)
  for path, start in jax.tree_util.tree_leaves_with_path(initial.model_state):
    end = dict(jax.tree_util.tree_leaves_with_path(last["model_state"]))[path]
    assert np.abs(end[0] - start).max() > 0.01  # all running averages moved
