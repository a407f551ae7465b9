"""Heads, which map the last features to the arguments of a loss by name, and their join with a backbone."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from flax import linen as nn

from jaxreg import losses
from jaxreg._checks import check_range
from jaxreg._initializers import initializers
from jaxreg.typing import Array


class Classifier(nn.Module):
  """Computes `head(backbone(x))`: maps images or vectors to the arguments of a loss.

  Attributes:
    backbone: `(x, *, train) -> features`.
    head: `features -> outputs`, a dict with the arguments of the method's loss, by name.
  """

  backbone: nn.Module
  head: nn.Module

  def __call__(self, x: Array, *, train: bool) -> dict[str, Any]:
    return self.head(self.backbone(x, train=train))


class ClassHead(nn.Module):
  """The fields of a head of classes, as `SoftmaxHead` explains them."""

  num_classes: int
  initializer: str = "glorot"


class SoftmaxHead(ClassHead):
  """One affine layer: `[batch, features] -> {"logits": [batch, classes]}`.

  Attributes:
    num_classes: number of classes.
    initializer: `glorot` or `tutorial`.
  """

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    return {
      "logits": nn.Dense(self.num_classes, name="classifier", **initializers(self.initializer))(features)
    }


class AffineHead(nn.Module):
  """One affine layer for each output, by its name: `[batch, features] -> {name: [batch, *shape]}`.

  `{"outputs": ()}` is one number an example, and `{"outputs": (), "log_vars": ()}` a mean and the logarithm
  of a variance, for `losses.gaussian_nll`. Two classifications are `{"digit": (10,), "parity": (2,)}`, for
  `losses.multitask`. Logits with `{"inputs": (28, 28, 1)}` add a generative term, `losses.reconstruction`,
  which shares the backbone with the classifier and needs no labels.

  Attributes:
    shapes: the shape of each output of an example; a layer has the name of its output.
    initializer: `glorot` or `tutorial`.

  References:
    Caruana, `Multitask Learning`, 1997.
  """

  shapes: Mapping[str, Sequence[int]]
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    outputs = {}
    for name, shape in self.shapes.items():
      layer = nn.Dense(math.prod(shape), name=name, **initializers(self.initializer))
      outputs[name] = layer(features).reshape(*features.shape[:-1], *shape)
    return outputs


class DropMaxHead(ClassHead):
  """Three affine layers side by side: the arguments of `losses.dropmax`, each `[batch, classes]`.

  Attributes:
    num_classes, initializer: as in `SoftmaxHead`.
    stop_gradient: `activations` (the released code) or `parameters` (the poster).
    branch_only: whether to keep the gradients of the two mask branches out of the backbone.
    initial_rate: if given, the initial probability of dropping a class, the same for every class and example:
      the branches' kernels start at zero. Near 0 the head starts as a softmax (ours, for warm starts).

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018.
  """

  stop_gradient: Literal["activations", "parameters"] = "activations"
  branch_only: bool = False
  initial_rate: float | None = None

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    biases: dict[str, float | None] = {"classifier": None, "prior": None, "residual": None}
    if self.initial_rate is not None:
      check_range(self.initial_rate, "initial_rate", low=0, high=1, open_low=True, open_high=True)
      biases["prior"] = math.log((1 - self.initial_rate) / self.initial_rate)
      biases["residual"] = 0.0
    weights = [
      _Affine(self.num_classes, self.initializer, initial_bias=bias, name=name)(features.shape[-1])
      for name, bias in biases.items()
    ]
    return losses.dropmax_heads(
      features, *weights, stop_gradient=self.stop_gradient, branch_only=self.branch_only
    )


class GroupSoftmaxHead(ClassHead):
  """One affine layer that returns its weights: the arguments of `losses.group_softmax`.

  `[batch, features] -> {"features": [batch, features], "kernel": [features, classes], "bias":
  [classes]}`; the prediction, `features @ kernel + bias`, uses the same weights.

  Attributes:
    num_classes, initializer: as in `SoftmaxHead`.

  References:
    Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021.
  """

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    weights = _Affine(self.num_classes, self.initializer, name="classifier")(features.shape[-1])
    return {"features": features, **weights}


class CosineHead(ClassHead):
  """The directions of the classes: `[batch, features] -> {"features": [batch, features], "kernel": ...}`.

  The kernel is `[features, classes]`; only the direction of each column matters. It has no bias.

  Attributes:
    num_classes, initializer: as in `SoftmaxHead`.
  """

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    weights = _Affine(self.num_classes, self.initializer, bias=False, name="classifier")(features.shape[-1])
    return {"features": features, **weights}


class _Affine(nn.Module):
  """The kernel and bias of an affine layer, for a function that needs them instead of the output.

  With `initial_bias` the layer starts as that constant.
  """

  num_classes: int
  initializer: str
  bias: bool = True
  initial_bias: float | None = None

  @nn.compact
  def __call__(self, num_features: int) -> dict[str, Array]:
    init = initializers(self.initializer)
    if self.initial_bias is not None:
      zeros, constant = nn.initializers.zeros_init(), nn.initializers.constant(self.initial_bias)
      init = {"kernel_init": zeros, "bias_init": constant}
    weights = {"kernel": self.param("kernel", init["kernel_init"], (num_features, self.num_classes))}
    if self.bias:
      weights["bias"] = self.param("bias", init["bias_init"], (self.num_classes,))
    return weights
