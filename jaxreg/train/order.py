"""Which examples make the batch of a step, for every replica."""

import dataclasses

import numpy as np

from jaxreg.train.data import batch_indices


@dataclasses.dataclass(frozen=True)
class Order:
  """`order(step)`: the indices `[replicas, batch]` into `Dataset.training()`, the same in every process.

  Attributes:
    seeds: those of the replicas.
    num_examples: of the training examples.
    batch_size: of them.
    drawn: for each replica, its resampled set `[num_examples]`; empty for the set itself.
    num_unlabelled: of the examples without labels, which follow the others.
    unlabelled_batch_size: so many of them join each batch.
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
        # No run's seed is as large, so none has this order.
        other = {"num_examples": self.num_unlabelled, "batch_size": self.unlabelled_batch_size}
        row = np.concatenate([row, self.num_examples + batch_indices(seed + 2**32, step, **other)])
      rows.append(row)
    return np.stack(rows)
