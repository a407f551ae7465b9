"""Flax Linen models: backbones map `x` to features, heads map features to a loss's arguments.

`Classifier(backbone, head)` joins the two; the call is `(x, *, train)`, and noise comes from the `dropout`
key stream of `apply(..., rngs={"dropout": key})`. `greedy_decode` and `beam_decode` find sequences under any
next-token log-probabilities. `Noise` makes a Linen module of a noise function, `NNXNoise` an NNX module.
These files import JAX, Flax, NumPy and the core only.
"""

from typing import TYPE_CHECKING, Any

from jaxreg.models._airbench import Airbench
from jaxreg.models._autoencoder import Autoencoder
from jaxreg.models._classifier import Classifier
from jaxreg.models._convolution import convolution
from jaxreg.models._decode import beam_decode, greedy_decode
from jaxreg.models._dense_layers import (
  ConcreteDropoutDense,
  DropConnectDense,
  SpectralNormDense,
  VariationalDropoutDense,
  WeightNormDense,
)
from jaxreg.models._heads import (
  AttentionHead,
  CosineHead,
  DecoderHead,
  DropMaxHead,
  GroupSoftmaxHead,
  SoftmaxHead,
  TaskHeads,
)
from jaxreg.models._lenet import LeNet
from jaxreg.models._mlp import MLP
from jaxreg.models._noise import Noise
from jaxreg.models._residual_parts import LayerScale, StandardizedConv
from jaxreg.models._resnet import CifarResNet, ResNet
from jaxreg.models._rnn import RNN
from jaxreg.models._shared_heads import CoarseTasksHead, DecodingHead
from jaxreg.models._transformer import Transformer
from jaxreg.models._tutorial_cnn import TutorialCNN
from jaxreg.models._vgg import VGG, VGG9

if TYPE_CHECKING:
  from jaxreg.models._nnx_noise import NNXNoise

__all__ = [
  "MLP",
  "RNN",
  "VGG",
  "VGG9",
  "Airbench",
  "AttentionHead",
  "Autoencoder",
  "CifarResNet",
  "Classifier",
  "CoarseTasksHead",
  "ConcreteDropoutDense",
  "CosineHead",
  "DecoderHead",
  "DecodingHead",
  "DropConnectDense",
  "DropMaxHead",
  "GroupSoftmaxHead",
  "LayerScale",
  "LeNet",
  "NNXNoise",
  "Noise",
  "ResNet",
  "SoftmaxHead",
  "SpectralNormDense",
  "StandardizedConv",
  "TaskHeads",
  "Transformer",
  "TutorialCNN",
  "VariationalDropoutDense",
  "WeightNormDense",
  "beam_decode",
  "convolution",
  "greedy_decode",
]


def __dir__() -> list[str]:
  return __all__


def __getattr__(name: str) -> Any:
  # Linen does not load NNX, so a Linen user need not load it either.
  if name == "NNXNoise":
    from jaxreg.models._nnx_noise import NNXNoise

    return NNXNoise
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
