"""Networks that other people trained compute in our layout what PyTorch computes with their state dicts."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

import jaxreg

FOLDER = Path(__file__).resolve().parent
# Logits of two images, from `forward` of `nets.py` in the folder of the networks, with PyTorch 2.13.
LOGITS = json.loads((FOLDER / "public_networks_torch.json").read_text())


@pytest.fixture
def networks(monkeypatch):
  monkeypatch.syspath_prepend(FOLDER.parent / "benchmarks")
  return importlib.import_module("_public_networks")


def test_each_network_has_logits_of_pytorch(networks):
  assert networks.NETWORKS.keys() == LOGITS.keys()


DEEP = ("aka_resnet56-4bfd9763", "dis_WRN28_1_cifar10", "dis_resnet32_cifar100")


@pytest.mark.parametrize(
  "name", [pytest.param(name, marks=[pytest.mark.thorough] if name in DEEP else []) for name in LOGITS]
)
def test_logits_are_those_of_pytorch(name, networks, data_dir):
  network = networks.NETWORKS[name]
  shape = (28, 28, 1) if network.data == "mnist" else (32, 32, 3)
  x = np.random.default_rng(0).random((2, *shape)).astype(np.float32)
  with np.load(data_dir / "networks" / f"{name}.npz") as tensors:
    read = networks.variables(tensors, network)
  x = (x - np.float32(network.mean)) / np.float32(network.std)  # NumPy, because JAX's ranks must agree here
  logits = network.module.apply(read, x, train=False)["logits"]
  np.testing.assert_allclose(logits, LOGITS[name], rtol=1e-4, atol=1e-4)


def test_the_page_reads_a_state_dict(data_dir, monkeypatch):
  """Up to the report card, which gets PyTorch's logits."""
  page = (FOLDER.parent / "docs/guides/others_networks.md").read_text()
  code = "".join(re.findall(r"^```py(?:thon)?\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
  name, reported = "aka_resnet20-12fca82f", []
  monkeypatch.setattr(jaxreg, "report", lambda *arguments, **options: reported.append((arguments, options)))
  images = 255 * np.random.default_rng(0).random((2, 32, 32, 3)).astype(np.float32)
  exec(code, {"FILE": data_dir / f"networks/{name}.npz", "images": images, "labels": np.zeros(2, int)})
  [((predict_fn, data), options)] = reported
  logits = predict_fn(options["params"], data["inputs"])
  np.testing.assert_allclose(logits, LOGITS[name], rtol=1e-4, atol=1e-4)


def test_another_layout_is_told(networks):
  network = networks.NETWORKS["aka_resnet20-12fca82f"]
  with pytest.raises(ValueError, match="tensors must be named as torchvision's ResNets name them"):
    networks.variables({"bn1.weight": np.ones(16), "layer1.0.se.weight": np.ones(16)}, network)
