"""Says which examples make each batch, of a training step for every replica and of an evaluation."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from jaxreg import ensembles
from jaxreg.train import keys


@dataclasses.dataclass(frozen=True)
class Order:
  """`order(step)`: the indices `[replicas, batch]` into `Dataset.training()`, the same in every process.

  Attributes:
    seeds: the seeds of the replicas.
    num_examples: the number of training examples with labels.
    batch_size: the number of labelled examples in a batch.
    drawn: for each replica, its resampled set `[num_examples]`; empty for the set itself.
    num_unlabelled: the number of examples without labels, which follow the others.
    unlabelled_batch_size: the number of unlabelled examples that join each batch.
  """

  seeds: range
  num_examples: int
  batch_size: int
  drawn: tuple[np.ndarray, ...] = ()
  num_unlabelled: int = 0
  unlabelled_batch_size: int = 0

  def __call__(self, step: int) -> np.ndarray:
    rows = []
    for replica, seed in enumerate(self.seeds):
      row = batch_indices(seed, step, num_examples=self.num_examples, batch_size=self.batch_size)
      if self.drawn:
        row = self.drawn[replica][row]
      if self.unlabelled_batch_size:
        other = {"num_examples": self.num_unlabelled, "batch_size": self.unlabelled_batch_size}
        row = np.concatenate([row, self.num_examples + batch_indices(keys.unlabelled(seed), step, **other)])
      rows.append(row)
    return np.stack(rows)


def batch_indices(seed: int, step: int, *, num_examples: int, batch_size: int) -> np.ndarray:
  """The indices of a step's examples: `[batch_size]`, int32, the same in every process.

  Each epoch is a new permutation; its last, incomplete batch is left out.
  """
  steps_per_epoch = num_examples // batch_size
  epoch, position = divmod(step, steps_per_epoch)
  start = position * batch_size
  return _permutation(seed, epoch, num_examples)[start : start + batch_size]


@functools.lru_cache(maxsize=128)  # each replica has one
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
  return keys.permutation(seed, epoch).permutation(num_examples).astype(np.int32)


@functools.lru_cache(maxsize=128)
def bootstrap(seed: int, num_examples: int) -> np.ndarray:
  """The indices of the resampled training set of the run with this seed, `[num_examples]`."""
  return np.asarray(
    ensembles.bootstrap_indices(keys.bootstrap(seed), num_examples=num_examples, num_members=1)[0]
  )


def padded_indices(num_examples: int, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Every example once, in order, as `(indices, weights)` of one size; the padding has weight 0."""
  for start in range(0, num_examples, batch_size):
    index = np.arange(start, start + batch_size, dtype=np.int32)
    yield np.minimum(index, num_examples - 1), (index < num_examples).astype(np.float32)
