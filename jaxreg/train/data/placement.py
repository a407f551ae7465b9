"""Puts examples on the devices, and makes the batch inside a compiled step."""

import dataclasses

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg._sharding import rows
from jaxreg.train.data.dataset import Split
from jaxreg.typing import PyTree


def place(mesh: jax.sharding.Mesh, tree: PyTree, spec: P) -> PyTree:
  """Puts host arrays, the same in every process, on the devices of `mesh`.

  `P()` puts a copy on each device, `P("data")` a slice. A process passes only the parts of its own devices.
  """
  sharding = NamedSharding(mesh, spec)
  return jax.tree.map(lambda x: jax.make_array_from_callback(x.shape, sharding, lambda index: x[index]), tree)


@dataclasses.dataclass(frozen=True)
class Source:
  """A split that makes batches: from examples that lie on every device, or from examples on the host.

  Attributes:
    split: the examples on the host.
    arrays: the same examples on the devices, or empty.
  """

  split: Split
  arrays: dict[str, jax.Array]

  def __len__(self) -> int:
    return len(self.split)

  def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays that have to reach the devices for a batch of these examples: indices, or the examples."""
    if self.arrays:
      return {"indices": indices}
    return {"inputs": self.split.inputs[indices], **self.targets(indices)}

  def targets(self, indices: np.ndarray | slice = slice(None)) -> dict[str, np.ndarray]:
    """The labels of these examples, and their weights if they have any, as the devices take them."""
    labels = self.split.labels[indices]
    found = {"labels": labels.astype(np.float32 if labels.dtype.kind == "f" else np.int32)}
    if self.split.weights is not None:
      found["weights"] = self.split.weights[indices].astype(np.float32)
    return found


def make_source(mesh: jax.sharding.Mesh, split: Split, *, resident: bool) -> Source:
  """The source of a split; if `resident`, the whole split is placed on every device."""
  source = Source(split, {})
  arrays = {"inputs": split.inputs, **source.targets()} if resident else {}
  return dataclasses.replace(source, arrays=place(mesh, arrays, P()))


def gather(arrays: dict[str, jax.Array], batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
  """The batch that the arrays of `Source.batch` stand for, inside a compiled step."""
  batch = dict(batch)
  if "indices" in batch:
    indices = batch.pop("indices")
    # Weights of a batch, as for padding in evaluation, come before those of training examples.
    batch = {name: rows(array, indices) for name, array in arrays.items()} | batch
  return batch
