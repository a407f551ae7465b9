"""`pmap` and `jit` are wrappings of one step: what no noise couples, they train alike."""

import jax
import numpy as np
import pytest
import runs

from jaxreg import train


def trained(workdir, **fields):
  config = runs.make_config({f.replace("__", "."): value for f, value in fields.items()})
  results = train.train(config, workdir)
  return results, runs.final_state(workdir)


@pytest.mark.usefixtures("no_figures")
def test_pmap_trains_as_jit_does_without_noise(tmp_path):
  plain = {"method__name": "softmax", "model__MLP__dropout_rate": 0.0, "epochs": 2, "optimizer__name": "sgd"}
  jit, jit_state = trained(tmp_path / "jit", **plain)
  pmap, pmap_state = trained(tmp_path / "pmap", parallel="pmap", **plain)
  assert jax.device_count() == 8
  assert jit["step"] == pmap["step"] == 8
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
    jit_state["params"],
    pmap_state["params"],
  )
  assert abs(jit["test/nll"] - pmap["test/nll"]) < 1e-5


@pytest.mark.usefixtures("no_figures")
@pytest.mark.slow
def test_pmap_trains_dropmax_and_augments(tmp_path):
  results, _ = trained(
    tmp_path / "run", parallel="pmap", epochs=30, model__MLP__widths=(64,), augment__names=("translate",),
    augment__translate__max_shift=1, model__MLP__dropout_rate=0.0,
  )  # fmt: skip
  assert results["val/error"] < 0.5
