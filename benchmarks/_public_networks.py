"""Eight networks that other people trained: their layouts, and the modules that our models do not have.

A layout is data: pairs of a regular expression for a name in a state dict and the name that stands for it.
The residual networks get torchvision's names, which `models.resnet_from_torch` reads. The modules here are
for predictions only: BatchNorm uses its running averages.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxreg import models

Layout = tuple[tuple[str, str], ...]

CONV = partial(nn.Conv, conv_general_dilated=models.convolution)
NORM = partial(nn.BatchNorm, use_running_average=True)
PAD = [(1, 1), (1, 1)]

AKAMASTER: Layout = (("linear", "fc"),)
DISTILLER: Layout = (*AKAMASTER, (r"shortcut\.", "downsample."))
DISTILLER_WIDE: Layout = (*AKAMASTER, (r"\.layer\.", "."), ("convShortcut", "downsample.0"))
# Of networks without blocks: every layer, in order.
CNN_A: Layout = (
  ("0", "backbone/Conv_0"),
  ("2", "backbone/Conv_1"),
  ("5", "backbone/Dense_0"),
  ("7", "head/classifier"),
)
MNISTNET: Layout = (
  ("conv1", "backbone/Conv_0"),
  ("conv2", "backbone/Conv_1"),
  ("fc1", "backbone/Dense_0"),
  ("fc2", "head/classifier"),
)


class PoolingResNet(nn.Module):
  """distiller's CIFAR ResNet: a first layer of 64 channels, and one ReLU after each stage, not each block.

  `[batch, 32, 32, 3] -> [batch, 256]`: the means of four quarters of the image.
  """

  depth: int

  @nn.compact
  def __call__(self, x: Any, *, train: bool) -> Any:
    x = nn.relu(NORM()(CONV(64, (3, 3), use_bias=False)(x)))
    for stage in range(3):
      for index in range((self.depth - 2) // 6):
        stride = 2 if stage and index == 0 else 1
        x = PoolingBlock(16 * 2**stage, stride, name=f"stage{stage}_block{index}")(x)
      x = nn.relu(x)
    return nn.avg_pool(x, (4, 4), (4, 4)).reshape(len(x), -1)


class PoolingBlock(nn.Module):
  """Two 3x3 convolutions with BatchNorm and a projected shortcut, without a ReLU at the end."""

  width: int
  stride: int

  @nn.compact
  def __call__(self, x: Any) -> Any:
    conv = partial(CONV, self.width, use_bias=False)
    y = nn.relu(NORM()(conv((3, 3), strides=self.stride, padding=PAD)(x)))
    y = NORM()(conv((3, 3), padding=PAD)(y))
    if x.shape != y.shape:
      x = NORM()(conv((1, 1), strides=self.stride)(x))
    return x + y


class WideResNet(nn.Module):
  """The wide residual network of depth 28 with factor 1: BatchNorm and ReLU before each convolution.

  `[batch, 32, 32, 3] -> [batch, 64]`.
  """

  @nn.compact
  def __call__(self, x: Any, *, train: bool) -> Any:
    x = CONV(16, (3, 3), use_bias=False)(x)
    for stage in range(3):
      for index in range(4):
        stride = 2 if stage and index == 0 else 1
        x = WideBlock(16 * 2**stage, stride, name=f"stage{stage}_block{index}")(x)
    return nn.relu(NORM()(x)).mean(axis=(1, 2))


class WideBlock(nn.Module):
  """Two 3x3 convolutions after BatchNorm and ReLU; a projected shortcut starts after the first ReLU."""

  width: int
  stride: int

  @nn.compact
  def __call__(self, x: Any) -> Any:
    conv = partial(CONV, self.width, use_bias=False)
    h = nn.relu(NORM()(x))
    y = nn.relu(NORM()(conv((3, 3), strides=self.stride, padding=PAD)(h)))
    y = conv((3, 3), padding=PAD)(y)
    if x.shape != y.shape:
      x = conv((1, 1), strides=self.stride)(h)
    return x + y


class SmallCNN(nn.Module):
  """CNN-A of alpha-beta-CROWN: two 4x4 convolutions of stride 2 and 100 hidden units."""

  @nn.compact
  def __call__(self, x: Any, *, train: bool) -> Any:
    for channels in (16, 32):
      x = nn.relu(CONV(channels, (4, 4), strides=2, padding=PAD)(x))
    return nn.relu(nn.Dense(100)(x.reshape(len(x), -1)))


class Network(NamedTuple):
  """A network, what its publisher says about it, and how its images are standardized."""

  title: str
  error: float  # test error in per cent that was stated for it
  data: str  # cifar10, cifar100 or mnist
  mean: tuple[float, ...]
  std: tuple[float, ...]
  backbone: nn.Module
  layout: Layout
  flattened: tuple[str, int] = (
    "",
    0,
  )  # the first dense layer after `[channels, height, width]`, and channels

  @property
  def module(self) -> nn.Module:
    return models.Classifier(self.backbone, models.SoftmaxHead(100 if self.data == "cifar100" else 10))


IMAGENET = (0.485, 0.456, 0.406)
NETWORKS = {
  "aka_resnet20-12fca82f": Network(
    "akamaster's ResNet-20",
    8.27,
    "cifar10",
    IMAGENET,
    (0.229, 0.224, 0.225),
    models.CifarResNet(depth=20),
    AKAMASTER,
  ),
  "aka_resnet56-4bfd9763": Network(
    "akamaster's ResNet-56",
    6.61,
    "cifar10",
    IMAGENET,
    (0.229, 0.224, 0.225),
    models.CifarResNet(depth=56),
    AKAMASTER,
  ),
  "dis_WRN28_1_cifar10": Network(
    "distiller's WRN-28-1",
    8.2,
    "cifar10",
    (0.4914, 0.4822, 0.4465),
    (0.2023, 0.1994, 0.2010),
    WideResNet(),
    DISTILLER_WIDE,
  ),
  "abc_cifar_cnn_a_adv": Network(
    "CNN-A, robust",
    33.2,
    "cifar10",
    IMAGENET,
    (0.225, 0.225, 0.225),
    SmallCNN(),
    CNN_A,
    ("backbone/Dense_0", 32),
  ),
  "dis_resnet20_cifar100": Network(
    "distiller's ResNet-20",
    31.1,
    "cifar100",
    (0.507, 0.487, 0.441),
    (0.267, 0.256, 0.276),
    PoolingResNet(depth=20),
    DISTILLER,
    ("head/classifier", 64),
  ),
  "dis_resnet32_cifar100": Network(
    "distiller's ResNet-32",
    28.8,
    "cifar100",
    (0.507, 0.487, 0.441),
    (0.267, 0.256, 0.276),
    PoolingResNet(depth=32),
    DISTILLER,
    ("head/classifier", 64),
  ),
  "jjgo_mnistnet": Network(
    "JJGO's MnistNet",
    0.7,
    "mnist",
    (0.1307,),
    (0.3081,),
    models.LeNet(),
    MNISTNET,
    ("backbone/Dense_0", 50),
  ),
  "abc_mnist_cnn_a_adv": Network(
    "CNN-A, robust",
    4.5,
    "mnist",
    (0.0,),
    (1.0,),
    SmallCNN(),
    CNN_A,
    ("backbone/Dense_0", 32),
  ),
}


def variables(tensors: Mapping[str, Any], network: Network) -> dict[str, Any]:
  """Returns the network's `params` and `batch_stats` from its state dict."""
  if any("bn" in name for name in tensors):
    renamed = {}
    for name, x in tensors.items():
      for pattern, ours in network.layout:
        name = re.sub(pattern, ours, name)
      renamed[name] = x
    read = models.resnet_from_torch(renamed)
  else:
    read = {"params": {}, "batch_stats": {}}
    for name, path in network.layout:
      layer = _inside(read["params"], path)
      layer["kernel"] = np.moveaxis(tensors[f"{name}.weight"], (0, 1), (-1, -2))
      layer["bias"] = np.asarray(tensors[f"{name}.bias"])
  path, channels = network.flattened
  if channels:  # PyTorch flattens channels first, and our networks channels last
    layer = _inside(read["params"], path)
    size, units = layer["kernel"].shape
    by_place = layer["kernel"].reshape(channels, size // channels, units).swapaxes(0, 1)
    layer["kernel"] = by_place.reshape(size, units)
  return read


def _inside(tree: dict[str, Any], path: str) -> dict[str, Any]:
  """Returns the part of a tree at a path, made where there is none."""
  for name in path.split("/"):
    tree = tree.setdefault(name, {})
  return tree


def features_of(
  name: str, folder: Path, batch: int = 500
) -> tuple[Callable[[np.ndarray], jax.Array], Mapping[str, jax.Array]]:
  """Reads a network; returns a function from uint8 images to features, and the head's kernel and bias."""
  network = NETWORKS[name]
  with np.load(folder / "networks" / f"{name}.npz") as tensors:
    read = jax.tree.map(jnp.asarray, variables(tensors, network))
  backbone = {each: read[each]["backbone"] for each in ("params", "batch_stats")}

  @jax.jit
  def of_batch(images: Any) -> Any:
    x = (images.astype(jnp.float32) / 255 - jnp.asarray(network.mean)) / jnp.asarray(network.std)
    return network.backbone.apply(backbone, x, train=False)

  def features(images: np.ndarray) -> jax.Array:
    parts = [images[start : start + batch] for start in range(0, len(images), batch)]
    return jnp.concatenate([of_batch(part) for part in parts])

  return features, read["params"]["head"]["classifier"]
