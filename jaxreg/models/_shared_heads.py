"""Heads for several purposes on one backbone: a classifier with a decoder, and one with further tasks."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxreg.models._heads import DecoderHead, SoftmaxHead, TaskHeads
from jaxreg.typing import Array


class DecodingHead(nn.Module):
  """A classifier and a decoder on the same features: `logits` `[batch, classes]` and `reconstruction`.

  The decoder is affine. It makes an autoencoder of the backbone, which learns from examples without labels,
  too.

  Attributes:
    num_classes: number of classes.
    input_shape: shape of an example's inputs.
    probe: whether the classifier's gradient stops at the features, so that they learn to reconstruct alone.
    initializer: `glorot` or `tutorial`.

  References:
    Vincent et al., `Extracting and Composing Robust Features with Denoising Autoencoders`, 2008.
  """

  num_classes: int
  input_shape: Sequence[int] = ()
  probe: bool = False
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    seen = jax.lax.stop_gradient(features) if self.probe else features
    logits = SoftmaxHead(self.num_classes, self.initializer, name="classes")(seen)["logits"]
    decoded = DecoderHead(self.input_shape, self.initializer, name="inputs")(features)["outputs"]
    return {"logits": logits, "reconstruction": decoded}


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

  References:
    Caruana, `Multitask Learning`, 1997.
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
    sizes = [self.num_classes, *(max(task) + 1 for task in self.tasks)]
    names = ["classes", *(f"task{number}" for number in range(len(self.tasks)))]
    heads = {name: SoftmaxHead(size, self.initializer, name=name) for name, size in zip(names, sizes)}
    outputs = TaskHeads(heads)(features)
    log_vars = None
    if self.learned_weights:
      log_vars = self.param("log_vars", nn.initializers.zeros_init(), (len(sizes),))
    return {
      "logits": outputs["classes"]["logits"],
      "task_logits": tuple(outputs[name]["logits"] for name in names[1:]),
      "task_labels": tuple(jnp.asarray(task, jnp.int32) for task in self.tasks),
      "log_vars": log_vars,
    }
