"""Flax Linen models: backbones that map `x` to features, heads that map features to a loss's arguments.

`Classifier(backbone, head)` joins the two; every `__call__` is `(x, *, train)`. Noise is drawn from the
`dropout` key stream that `apply(..., rngs={"dropout": key})` is given. `greedy_decode` and `beam_decode` find
sequences under any next-token log-probabilities.
"""

from jaxreg.models._classifier import Classifier
from jaxreg.models._decode import beam_decode, greedy_decode
from jaxreg.models._heads import AttentionHead, DropMaxHead, GroupSoftmaxHead, SoftmaxHead
from jaxreg.models._lenet import LeNet
from jaxreg.models._mlp import MLP
from jaxreg.models._resnet import CifarResNet, ResNet
from jaxreg.models._transformer import Transformer, positional_encoding
from jaxreg.models._tutorial_cnn import TutorialCNN
from jaxreg.models._vgg import VGG9

__all__ = [
  "MLP",
  "VGG9",
  "AttentionHead",
  "CifarResNet",
  "Classifier",
  "DropMaxHead",
  "GroupSoftmaxHead",
  "LeNet",
  "ResNet",
  "SoftmaxHead",
  "Transformer",
  "TutorialCNN",
  "beam_decode",
  "greedy_decode",
  "positional_encoding",
]
