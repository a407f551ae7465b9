"""The training loss of a finished run, as `jaxreg.flatness` takes it: `(params, batch, *, key) -> scalar`."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from jaxreg.train.data.batches import Source
from jaxreg.train.data.dataset import Split, Standard, known
from jaxreg.train.step.program import Program
from jaxreg.typing import Array, Batch, Key, LossFn, ModelState, Params


def make_losses_fn(program: Program, model_state: ModelState) -> Callable[..., Array]:
  """Builds `losses_fn(params, batch, *, key) -> [examples]`: the method's loss, without terms and penalties.

  With `key=None` nothing is dropped, and BatchNorm uses its running averages. An example's loss is the
  weighted sum over its labels; weights of classes have no part in it.
  """

  def losses_fn(params: Params, batch: Batch, *, key: Key | None) -> Array:
    examples = program.examples(batch)
    weights = examples.label_weights
    losses = program.losses(params, model_state, examples, key=key)
    losses = jnp.where(weights > 0, losses * weights, 0)
    return losses.reshape(len(losses), -1).sum(axis=1)

  return losses_fn


def make_loss_fn(program: Program, model_state: ModelState) -> LossFn:
  """Builds `loss_fn(params, batch, *, key) -> scalar`, the mean over the examples of `make_losses_fn`."""
  losses_fn = make_losses_fn(program, model_state)

  def loss_fn(params: Params, batch: Batch, *, key: Key | None) -> Array:
    return losses_fn(params, batch, key=key).mean()

  return loss_fn


def whole_batch(split: Split, standard: Standard | None = None) -> dict[str, np.ndarray]:
  """Returns all examples of a split as one batch, with weights for the mean over its labels.

  The mean over the batch, or over any part of it, weighs each label by the weight of its example, so an
  example with more tokens has more weight. An unknown label has none. `standard` standardises labels that are
  numbers.
  """
  batch = {"inputs": np.asarray(split.inputs), "labels": Source(split, {}, standard).targets()["labels"]}
  counts = known(batch["labels"])
  if split.weights is not None:
    counts = counts * split.weights.reshape(-1, *[1] * (counts.ndim - 1))
  return {**batch, "weights": (counts * (len(counts) / counts.sum())).astype(np.float32)}
