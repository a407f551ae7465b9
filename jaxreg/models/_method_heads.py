"""Heads of the trainer's methods whose layers have other names than their outputs, or depend on the data."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxreg.models._heads import AffineHead, ClassHead, SoftmaxHead
from jaxreg.models._layers import initializers
from jaxreg.typing import Array


def regression_head(label_shape: Sequence[int], initializer: str = "glorot") -> AffineHead:
  """A number for each target: `outputs` `[batch, *label_shape]`."""
  return AffineHead({"outputs": label_shape}, initializer)


def gaussian_head(label_shape: Sequence[int], initializer: str = "glorot") -> AffineHead:
  """The mean and the logarithm of the variance of each target: `outputs` and `log_vars`."""
  return AffineHead({"outputs": label_shape, "log_vars": label_shape}, initializer)


def quantile_head(
  label_shape: Sequence[int], initializer: str = "glorot", levels: Sequence[float] = (0.05, 0.5, 0.95)
) -> AffineHead:
  """A number for each quantile of each target: `outputs` `[batch, *label_shape, levels]`."""
  return AffineHead({"outputs": (*label_shape, len(levels))}, initializer)


class BinaryHead(ClassHead):
  """One affine layer, a logit for each yes-or-no label: `logits` `[batch, *label_shape]`."""

  label_shape: tuple[int, ...] = ()

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    if self.num_classes != 2:
      raise ValueError(f"num_classes must be 2, no and yes, got {self.num_classes}")
    layer = nn.Dense(math.prod(self.label_shape), name="classifier", **initializers(self.initializer))
    return {"logits": layer(features).reshape(features.shape[:1] + self.label_shape)}


class AttentionHead(ClassHead):
  """Two affine layers, logits and gate: `logits` and `retain_logits`, each `[batch, classes]`."""

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    affine = lambda name: nn.Dense(self.num_classes, name=name, **initializers(self.initializer))(features)
    return {"logits": affine("classifier"), "retain_logits": affine("prior")}


class DecodingHead(nn.Module):
  """A classifier and an affine decoder on the same features: `logits` `[batch, classes]`, `reconstruction`.

  The decoder makes an autoencoder of the backbone, which learns from examples without labels, too.

  Attributes:
    num_classes: number of classes.
    input_shape: shape of an example's inputs.
    probe: whether the classifier's gradient stops at the features, so that they learn to reconstruct alone.
    initializer: `glorot` or `tutorial`.
  """

  num_classes: int
  input_shape: Sequence[int] = ()
  probe: bool = False
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    seen = jax.lax.stop_gradient(features) if self.probe else features
    logits = SoftmaxHead(self.num_classes, self.initializer, name="classes")(seen)["logits"]
    decoder = AffineHead({"decoder": self.input_shape}, self.initializer, name="inputs")
    return {"logits": logits, "reconstruction": decoder(features)["decoder"]}


class CoarseTasksHead(nn.Module):
  """A classifier, and classifiers of coarser labels, each a function of the class: arguments of a loss.

  It returns `logits` `[batch, classes]`, `task_logits`, a tuple of `[batch, labels of the task]`,
  `task_labels`, a tuple of `[classes]`, and `log_vars` `[1 + tasks]`, or None.

  Attributes:
    num_classes: number of classes.
    tasks: for each task the label of each class, from 0 on, as `((0, 1, 0, 1, 0, 1, 0, 1, 0, 1),)` for the
      parity of digits.
    learned_weights: whether the head has the logarithms of the tasks' noise variances as parameters, for
      `losses.uncertainty_weighting`.
    initializer: `glorot` or `tutorial`.
  """

  num_classes: int
  tasks: Sequence[Sequence[int]] = ()
  learned_weights: bool = False
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Any]:
    for task in self.tasks:
      if len(task) != self.num_classes or min(task) < 0:
        raise ValueError(f"tasks must each have {self.num_classes} labels of at least 0, got {tuple(task)}")
    logits = lambda size, name: SoftmaxHead(size, self.initializer, name=name)(features)["logits"]
    outputs: dict[str, Any] = {
      "logits": logits(self.num_classes, "classes"),
      "task_logits": tuple(logits(max(task) + 1, f"task{i}") for i, task in enumerate(self.tasks)),
      "task_labels": tuple(jnp.asarray(task, jnp.int32) for task in self.tasks),
      "log_vars": None,
    }
    if self.learned_weights:
      shape = (1 + len(self.tasks),)
      outputs["log_vars"] = self.param("log_vars", nn.initializers.zeros_init(), shape)
    return outputs
