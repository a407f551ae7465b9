"""Training on a mesh with explicit axes: the same draws and the same numbers as with automatic axes."""

import jax
import numpy as np
import pytest
import runs
import toy_text
from jax.sharding import AxisType
from sklearn.datasets import load_digits

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.run_parts import replicas_of
from jaxreg.train.data import sources
from jaxreg.train.devices.sharding import make_mesh

EXPLICIT = {"mesh.axes": "explicit"}
MLP = {"method.name": "softmax", "model.MLP.dropout_rate": 0.5}
LENET = {
  "method.name": "softmax",
  "model.name": "LeNet",
  "augment.names": ("rotate", "translate", "mixup"),
  "data.name": "npz",
  "data.npz.scale": 16.0,
}
SHORT = {"epochs": 2}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
  """Digits of 16 x 16 pixels, as LeNet needs them."""
  x, y = load_digits(return_X_y=True)
  x = np.kron(x.reshape(-1, 8, 8, 1), np.ones((1, 2, 2, 1))).astype(np.uint8)
  path = tmp_path_factory.mktemp("images") / "digits.npz"
  np.savez(path, x_train=x[:150], y_train=y[:150], x_test=x[150:250], y_test=y[150:250])
  return str(path)


def trained(config, workdir):
  results = train.train(config, workdir)
  return {name: value for name, value in results.items() if name.endswith(("nll", "error"))}


def assert_same(make, tmp_path):
  """Both kinds of axes train to the same state and results; `make` builds a configuration."""
  found = {}
  for axes in ("auto", "explicit"):
    results = trained(make({"mesh.axes": axes}), tmp_path / axes)
    found[axes] = results, runs.final_state(tmp_path / axes)
  for auto, explicit in zip(*map(jax.tree.leaves, found.values()), strict=True):
    np.testing.assert_allclose(explicit, auto, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
  "devices", [pytest.param(n, marks=() if n == 2 else pytest.mark.thorough) for n in (1, 2, 8)]
)
@pytest.mark.parametrize("name", ["mlp", "lenet", "dropmax"])
def test_a_run_is_that_on_automatic_axes(name, devices, images, tmp_path, no_figures, monkeypatch):
  runs.on_devices(monkeypatch, devices)
  fields = {"mlp": MLP, "lenet": {**LENET, "data.npz.path": images}, "dropmax": {}}[name]
  assert_same(lambda axes: runs.make_config({**SHORT, **fields, **axes}), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(
  "fields",
  [
    {"mesh.shard": ("fsdp",), "mesh.min_size": 16},
    {"mesh.shard": ("head", "fsdp"), "mesh.model": 2, "mesh.min_size": 16},
    {"data.resident_gib": 0.0, "replicas": 2},
    {"steps_per_dispatch": 2, "average.name": "ema"},
    {**MLP, "data.balanced": True, "method.class_weights": "sqrt"},
    {"data.digits.attributes": True, "method.name": "binary"},
    {"regularizers.names": ("r_drop", "virtual_adversarial", "l2"), "optimizer.name": "sam"},
    {"method.name": "group_softmax", "augment.names": ("manifold_mixup",)},
  ],
  ids=lambda fields: ",".join(fields),
)
def test_other_fields_on_explicit_axes(fields, tmp_path, no_figures):
  assert_same(lambda axes: runs.make_config({**SHORT, **fields, **axes}), tmp_path)


@pytest.mark.thorough
def test_sequences_on_explicit_axes(tmp_path, no_figures):
  folder = tmp_path / "text"
  folder.mkdir()
  toy_text.write(folder)
  assert_same(lambda axes: toy_text.make_config(folder, axes), tmp_path)


def test_the_mesh_is_as_the_field_says():
  assert make_mesh().axis_types == (AxisType.Auto,) * 2
  config = runs.make_config({**MLP, **EXPLICIT})
  mesh = replicas_of(config, build(config, sources.digits().describe())).mesh
  assert mesh.axis_types == (AxisType.Explicit,) * 2
  assert mesh.shape == make_mesh().shape


@pytest.mark.thorough
def test_a_run_is_resumed_and_evaluated_on_other_axes(tmp_path, no_figures, monkeypatch):
  runs.on_devices(monkeypatch, 2)
  whole = trained(runs.make_config({**MLP, **SHORT}), tmp_path / "whole")
  trained(runs.make_config({**MLP, "epochs": 1}), tmp_path / "parts")
  parts = trained(runs.make_config({**MLP, **SHORT, **EXPLICIT}), tmp_path / "parts")
  assert parts == pytest.approx(whole, rel=1e-5)
  measured = {"job": "evaluate", "evaluate.mc_samples": 3, "evaluate.measures": ("temperature", "laplace")}
  found = [
    train.evaluate(runs.make_config({**MLP, **SHORT, **measured, **axes}), tmp_path / "whole")
    for axes in ({}, EXPLICIT)
  ]
  assert found[1] == pytest.approx(found[0], rel=1e-4)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"parallel": "pmap"}, "mesh.axes: explicit needs parallel=jit and accumulate=1, got pmap and 1"),
    ({"accumulate": 2}, "mesh.axes: explicit needs parallel=jit and accumulate=1, got jit and 2"),
  ],
)
def test_what_explicit_axes_do_not_serve_is_refused(fields, message):
  with pytest.raises(train.RunError, match=message):
    runs.make_config({**fields, **EXPLICIT})
