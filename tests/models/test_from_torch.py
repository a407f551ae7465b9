"""ResNets of PyTorch: our network with their parameters computes what theirs does."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from torch_resnets import BLOCKS, random_tensors, shapes

from jaxreg import models


def patches(x, size, stride, pad, fill=0.0):
  x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=fill)
  return sliding_window_view(x, (size, size), axis=(2, 3))[:, :, ::stride, ::stride]


def torch_resnet(tensors, x, depth):
  """PyTorch's network in float64, from its definition; images are `[batch, channels, height, width]`."""
  t = {name: value.astype(np.float64) for name, value in tensors.items()}

  def conv(x, conv, norm, stride=1):
    kernel = t[f"{conv}.weight"]
    x = np.einsum("nchwij,ocij->nohw", patches(x, kernel.shape[-1], stride, kernel.shape[-1] // 2), kernel)
    scale, bias, mean, var = (
      t[f"{norm}.{leaf}"][:, None, None] for leaf in ("weight", "bias", "running_mean", "running_var")
    )
    return (x - mean) / np.sqrt(var + 1e-5) * scale + bias

  x = patches(np.maximum(conv(x, "conv1", "bn1", 2), 0), 3, 2, 1, -np.inf).max((-1, -2))
  for stage, number in enumerate(BLOCKS[depth]):
    for index in range(number):
      name, stride, y = f"layer{stage + 1}.{index}", 2 if stage and not index else 1, x
      count = 3 if depth >= 50 else 2
      for i in range(1, count + 1):
        y = conv(y, f"{name}.conv{i}", f"{name}.bn{i}", stride if i == count - 1 else 1)
        y = np.maximum(y, 0) if i < count else y
      if f"{name}.downsample.0.weight" in t:
        x = conv(x, f"{name}.downsample.0", f"{name}.downsample.1", stride)
      x = np.maximum(x + y, 0)
  return x.mean((2, 3)) @ t["fc.weight"].T + t["fc.bias"]


def ours(tensors, x, depth, width, classes):
  network = models.Classifier(
    models.ResNet(depth=depth, width=width, stem="imagenet"), models.SoftmaxHead(classes)
  )
  variables = models.resnet_from_torch(tensors)
  return network.apply(variables, jnp.asarray(np.moveaxis(x, 1, -1)), train=False)["logits"]


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [18, *(pytest.param(d, marks=pytest.mark.thorough) for d in (34, 50))])
def test_outputs_equal_those_of_the_definition(depth):
  tensors = random_tensors(shapes(depth, 2, 5))
  # Images of an even size: there XLA's `SAME` would pad strided layers on one side only.
  x = np.random.default_rng(1).normal(size=(2, 3, 64, 64)).astype(np.float32)
  want = torch_resnet(tensors, x.astype(np.float64), depth)
  np.testing.assert_allclose(ours(tensors, x, depth, 2, 5), want, rtol=1e-4, atol=1e-4)
  assert want.std() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("depth", [18, 34, 50])
@pytest.mark.parametrize(("library", "make"), [("torchvision.models", "get_model"), ("timm", "create_model")])
def test_outputs_equal_those_of_pytorch(library, make, depth, tmp_path):
  torch, numpy = pytest.importorskip("torch"), pytest.importorskip("safetensors.numpy")
  network = getattr(pytest.importorskip(library), make)(f"resnet{depth}")
  state = network.state_dict()
  tensors = random_tensors({name: tuple(x.shape) for name, x in state.items()})
  assert {k: v.shape for k, v in tensors.items()} == shapes(depth, 64, 1000)
  numpy.save_file(tensors, tmp_path / "model.safetensors")
  network.load_state_dict({name: torch.from_numpy(x) for name, x in tensors.items()})
  x = np.random.default_rng(1).normal(size=(2, 3, 224, 224)).astype(np.float32)
  with torch.no_grad():
    want = network.eval()(torch.from_numpy(x)).numpy()
  got = ours(numpy.load_file(tmp_path / "model.safetensors"), x, depth, 64, 1000)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
  assert want.std() > 0.1


@pytest.mark.parametrize("name", ["layer1.0.se.fc1.weight", "conv1.0.weight", "fc.running_mean", "layer1"])
def test_another_layout_is_told(name):
  with pytest.raises(ValueError, match=rf"^tensors must be named as .*, got '{name}'$"):
    models.resnet_from_torch({name: np.ones(3)})
