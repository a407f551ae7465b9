"""Heads: they map the last features to the arguments of a loss, by name."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from flax import linen as nn

from jaxreg import losses
from jaxreg._checks import check_range
from jaxreg.models._layers import initializers
from jaxreg.typing import Array


class _ClassHead(nn.Module):
  """The fields of a head of classes, as `SoftmaxHead` explains them."""

  num_classes: int
  initializer: str = "glorot"


class SoftmaxHead(_ClassHead):
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


class BinaryHead(_ClassHead):
  """One affine layer, a logit for each yes-or-no label: `[batch, features] -> {"logits": [batch, ...]}`.

  Attributes:
    num_classes, initializer: as in `SoftmaxHead`.
    label_shape: () for one label an example, `logits` `[batch]`; `[labels]` for several, `[batch, labels]`.

  Raises:
    ValueError: if there are not two classes.
  """

  label_shape: tuple[int, ...] = ()

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    if self.num_classes != 2:
      raise ValueError(f"num_classes must be 2, no and yes, got {self.num_classes}")
    layer = nn.Dense(math.prod(self.label_shape), name="classifier", **initializers(self.initializer))
    return {"logits": layer(features).reshape(features.shape[:1] + self.label_shape)}


class _NumberHead(nn.Module):
  """The fields of a head of targets that are numbers, as `RegressionHead` explains them."""

  label_shape: tuple[int, ...]
  initializer: str = "glorot"

  def affine(self, name: str, features: Array, *last: int) -> Array:
    """One affine layer from the features to `[batch, *label_shape, *last]`."""
    shape = (*self.label_shape, *last)
    layer = nn.Dense(math.prod(shape), name=name, **initializers(self.initializer))
    return layer(features).reshape(*features.shape[:1], *shape)


class RegressionHead(_NumberHead):
  """One affine layer, a number for each target: `[batch, features] -> {"outputs": [batch, *label_shape]}`.

  Attributes:
    label_shape: () for one target an example, `[targets]` for several.
    initializer: as in `SoftmaxHead`.
  """

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    return {"outputs": self.affine("outputs", features)}


class GaussianHead(_NumberHead):
  """Two affine layers, the mean and the logarithm of the variance: `outputs` and `log_vars`.

  Attributes:
    label_shape: as in `RegressionHead`, for both.
    initializer: `glorot` or `tutorial`.
  """

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    return {name: self.affine(name, features) for name in ("outputs", "log_vars")}


class QuantileHead(_NumberHead):
  """One affine layer, a number for each quantile: `outputs` `[batch, *label_shape, levels]`.

  Attributes:
    label_shape: as in `RegressionHead`.
    initializer: `glorot` or `tutorial`.
    levels: the levels of the quantiles; only their number counts here.
  """

  levels: tuple[float, ...] = (0.05, 0.5, 0.95)

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    return {"outputs": self.affine("outputs", features, len(self.levels))}


class AttentionHead(_ClassHead):
  """Two affine layers side by side, logits and gate: `logits` and `retain_logits`, each `[batch, classes]`.

  Attributes:
    num_classes, initializer: as in `SoftmaxHead`.
  """

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    affine = lambda name: nn.Dense(self.num_classes, name=name, **initializers(self.initializer))(features)
    return {"logits": affine("classifier"), "retain_logits": affine("prior")}


class DropMaxHead(_ClassHead):
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


class GroupSoftmaxHead(_ClassHead):
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


class CosineHead(_ClassHead):
  """The directions of the classes: `[batch, features] -> {"features": [batch, features], "kernel": ...}`.

  The kernel is `[features, classes]`; only the direction of each column matters. There is no bias.

  Attributes:
    num_classes, initializer: as in `SoftmaxHead`.
  """

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    weights = _Affine(self.num_classes, self.initializer, bias=False, name="classifier")(features.shape[-1])
    return {"features": features, **weights}


class DecoderHead(nn.Module):
  """One affine layer back to inputs: `[batch, features] -> {"outputs": [batch, *shape]}`.

  Beside a classifier's head in `TaskHeads` it gives a generative term, `losses.reconstruction`, which shares
  the backbone's parameters with the classifier and needs no labels.

  Attributes:
    shape: shape of an example's inputs.
    initializer: `glorot` or `tutorial`.
  """

  shape: Sequence[int]
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    outputs = nn.Dense(math.prod(self.shape), name="decoder", **initializers(self.initializer))(features)
    return {"outputs": outputs.reshape(*features.shape[:-1], *self.shape)}


class TaskHeads(nn.Module):
  """Several heads on the same features, by task: `features -> {task: outputs of its head}`.

  In `Classifier(backbone, TaskHeads({...}))` all tasks share the backbone, and each has its own head.
  `losses.multitask` or `losses.uncertainty_weighting` combine their losses.

  Attributes:
    heads: modules `features -> outputs`, by task.

  References:
    Caruana, `Multitask Learning`, 1997.
  """

  heads: Mapping[str, nn.Module]

  def __call__(self, features: Array) -> dict[str, Any]:
    return {task: head(features) for task, head in self.heads.items()}


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
