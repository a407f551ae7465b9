"""Classes, and coarser labels that are functions of the class, on the same features."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from jaxreg import losses, models
from jaxreg._errors import ArgumentError
from jaxreg.train.methods.method import Method
from jaxreg.train.methods.softmax import predict_softmax
from jaxreg.typing import Array


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
    sizes = {"classes": self.num_classes}
    for number, task in enumerate(self.tasks):
      if len(task) != self.num_classes or min(task) < 0:
        raise ArgumentError(
          "tasks", f"must each have {self.num_classes} labels of at least 0, got {tuple(task)}"
        )
      sizes[f"task{number}"] = max(task) + 1
    logits, *task_logits = [
      models.SoftmaxHead(size, self.initializer, name=name)(features)["logits"]
      for name, size in sizes.items()
    ]
    log_vars = None
    if self.learned_weights:
      log_vars = self.param("log_vars", nn.initializers.zeros_init(), (len(sizes),))
    task_labels = tuple(jnp.asarray(task, jnp.int32) for task in self.tasks)
    return {
      "logits": logits,
      "task_logits": tuple(task_logits),
      "task_labels": task_labels,
      "log_vars": log_vars,
    }


def multitask(
  *,
  logits: Array,
  task_logits: tuple[Array, ...],
  task_labels: tuple[Array, ...],
  log_vars: Array | None,
  labels: Array,
  weight: float = 1.0,
) -> dict[str, Array]:
  """Computes `losses.multitask` of the classes and the coarser tasks; learned weights replace `weight`."""
  if not jnp.issubdtype(labels.dtype, jnp.integer):
    raise TypeError(f"labels must be integers, got {labels.dtype}")
  each = {"nll": losses.softmax_cross_entropy(logits, labels)}
  for number, (task, coarse) in enumerate(zip(task_logits, task_labels, strict=True)):
    each[f"task{number}"] = losses.softmax_cross_entropy(task, coarse[labels])
  if log_vars is None:
    terms = losses.multitask_terms(each, weights={name: 1.0 if name == "nll" else weight for name in each})
  else:
    terms = losses.uncertainty_weighting_terms(each, dict(zip(each, log_vars, strict=True)))
  nll = terms.pop("nll")
  return {"nll": nll, "tasks": sum(terms.values(), start=jnp.zeros_like(nll))}


METHODS = {"multitask": Method(CoarseTasksHead, multitask, predict_softmax, terms=("nll", "tasks"))}
