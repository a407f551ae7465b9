"""Flax Linen models: backbones map `x` to features, heads map features to a loss's arguments.

`Classifier(backbone, head)` joins the two; the call is `(x, *, train)`, and noise comes from the `dropout`
key stream of `apply(..., rngs={"dropout": key})`. `Noise` makes a Linen module of a noise function,
`NNXNoise` an NNX module.
"""

from typing import TYPE_CHECKING, Any

from jaxreg._cpu.convolution import convolution
from jaxreg.models._airbench import Airbench
from jaxreg.models._dense import Dense
from jaxreg.models._from_torch import resnet_from_torch
from jaxreg.models._heads import (
  AffineHead,
  Classifier,
  CosineHead,
  DropMaxHead,
  GroupSoftmaxHead,
  SoftmaxHead,
)
from jaxreg.models._lenet import LeNet, TutorialCNN
from jaxreg.models._mlp import MLP
from jaxreg.models._noise import Noise
from jaxreg.models._residual_parts import StandardizedConv
from jaxreg.models._resnet import CifarResNet, ResNet
from jaxreg.models._rnn import RNN
from jaxreg.models._transformer import Transformer
from jaxreg.models._vgg import VGG, VGG9
from jaxreg.models._vit import ViT

if TYPE_CHECKING:
  from jaxreg.models._nnx_noise import NNXNoise

__all__ = [
  "MLP",
  "RNN",
  "VGG",
  "VGG9",
  "AffineHead",
  "Airbench",
  "CifarResNet",
  "Classifier",
  "CosineHead",
  "Dense",
  "DropMaxHead",
  "GroupSoftmaxHead",
  "LeNet",
  "NNXNoise",
  "Noise",
  "ResNet",
  "SoftmaxHead",
  "StandardizedConv",
  "Transformer",
  "TutorialCNN",
  "ViT",
  "convolution",
  "resnet_from_torch",
]


def __getattr__(name: str) -> Any:
  # Linen does not load NNX, so a Linen user need not load it either.
  if name == "NNXNoise":
    from jaxreg.models._nnx_noise import NNXNoise

    return NNXNoise
  raise AttributeError(f"module 'jaxreg.models' has no attribute {name!r}", name=name)
