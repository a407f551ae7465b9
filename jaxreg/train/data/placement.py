"""How examples reach the devices, and the batch inside a compiled step."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg.train.data.dataset import Split


def place(mesh: jax.sharding.Mesh, tree: Any, spec: P) -> Any:
  """Puts host arrays, the same in every process, on the devices of `mesh`: `P()` a copy on each, `P("data")`
  a slice on each. A process hands over only what its own devices hold."""
  sharding = NamedSharding(mesh, spec)
  return jax.tree.map(lambda x: jax.make_array_from_callback(x.shape, sharding, lambda index: x[index]), tree)


@dataclasses.dataclass(frozen=True)
class Source:
  """A split from which batches are made: of examples that lie on every device, or of some of the host's.

  Attributes:
    split: the examples on the host.
    arrays: the same on the devices, or empty.
  """

  split: Split
  arrays: dict[str, jax.Array]

  def __len__(self) -> int:
    return len(self.split)

  def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
    """What has to reach the devices for the batch of these examples: their indices, or themselves."""
    if self.arrays:
      return {"indices": indices}
    return {"inputs": self.split.inputs[indices], "labels": self.split.labels[indices].astype(np.int32)}


def make_source(mesh: jax.sharding.Mesh, split: Split, *, resident: bool) -> Source:
  """Places a whole split on every device if it is to be `resident`."""
  arrays = {"inputs": split.inputs, "labels": split.labels.astype(np.int32)} if resident else {}
  return Source(split, place(mesh, arrays, P()))


def gather(arrays: dict[str, jax.Array], batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
  """The batch that `Source.batch` stands for, inside a compiled step.

  Without weights, they are all 1. Those of a sequence are its own at each label, and 0 where that is padding.
  """
  batch = dict(batch)
  if "indices" in batch:
    indices = batch.pop("indices")
    batch |= {name: array[indices] for name, array in arrays.items()}
  labels = batch["labels"]
  weights = batch.pop("weights", jnp.ones(labels.shape[:1], jnp.float32))
  if labels.ndim > 1:
    weights = jnp.where(labels >= 0, weights[:, None], 0)
  return {**batch, "weights": weights}
