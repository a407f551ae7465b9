"""Flax Linen models: backbones map `x` to features, heads map features to a loss's arguments.

`Classifier(backbone, head)` joins the two; the call is `(x, *, train)`, and noise comes from the `dropout`
key stream of `apply(..., rngs={"dropout": key})`. `Noise` makes a Linen module of a noise function,
`NNXNoise` an NNX module.
"""

from typing import TYPE_CHECKING

from jaxreg._names import suggest_names
from jaxreg.models._airbench import Airbench as Airbench
from jaxreg.models._convolution import convolution as convolution
from jaxreg.models._dense import Dense as Dense
from jaxreg.models._from_torch import resnet_from_torch as resnet_from_torch
from jaxreg.models._heads import AffineHead as AffineHead
from jaxreg.models._heads import Classifier as Classifier
from jaxreg.models._heads import CosineHead as CosineHead
from jaxreg.models._heads import DropMaxHead as DropMaxHead
from jaxreg.models._heads import GroupSoftmaxHead as GroupSoftmaxHead
from jaxreg.models._heads import SoftmaxHead as SoftmaxHead
from jaxreg.models._lenet import LeNet as LeNet
from jaxreg.models._lenet import TutorialCNN as TutorialCNN
from jaxreg.models._mlp import MLP as MLP
from jaxreg.models._noise import Noise as Noise
from jaxreg.models._residual_parts import StandardizedConv as StandardizedConv
from jaxreg.models._resnet import CifarResNet as CifarResNet
from jaxreg.models._resnet import ResNet as ResNet
from jaxreg.models._rnn import RNN as RNN
from jaxreg.models._transformer import Transformer as Transformer
from jaxreg.models._vgg import VGG as VGG
from jaxreg.models._vgg import VGG9 as VGG9

if TYPE_CHECKING:
  from jaxreg.models._nnx_noise import NNXNoise as NNXNoise

# Linen does not load NNX, so a Linen user need not load it either.
suggest_names(globals(), {"NNXNoise": "jaxreg.models._nnx_noise"})
