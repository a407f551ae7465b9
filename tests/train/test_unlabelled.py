"""Examples without labels, and resampled sets: which examples make a batch."""

import numpy as np
import pytest
import runs

from jaxreg.train.assemble.load_data import load_data, make_order
from jaxreg.train.data.batches import batch_indices, bootstrap

FIELDS = {
  "data.subset.limit": 0,
  "data.subset.per_class": 10,
  "data.unlabelled.batch_size": 7,
  "batch_size": 12,
  "replicas": 2,
}


def test_the_unlabelled_are_those_that_the_subset_leaves():
  config = runs.make_config(FIELDS)
  dataset = load_data(config)
  everything = load_data(runs.make_config({"data.subset.limit": 0}))
  assert dataset.unlabelled is not None
  assert len(dataset.train) == 100
  assert len(dataset.train) + len(dataset.unlabelled) == len(everything.train)
  assert (dataset.unlabelled.labels == -1).all()
  rows = lambda x: sorted(map(bytes, x.reshape(len(x), -1)))
  joined = np.concatenate([dataset.train.inputs, dataset.unlabelled.inputs])
  assert rows(joined) == rows(everything.train.inputs)
  np.testing.assert_array_equal(dataset.training().inputs, joined)
  described = dataset.describe()
  assert described.sizes["unlabelled"] == len(dataset.unlabelled)
  assert "unlabelled" not in everything.describe().sizes


def test_every_batch_has_so_many_of_each():
  """An epoch of the one, and an epoch of the other, has every example once; replicas differ."""
  config = runs.make_config(FIELDS)
  dataset = load_data(config)
  number, order = len(dataset.train), make_order(config, dataset)
  batches = np.stack([order(step) for step in range(number // 12)])
  assert batches.shape == (8, 2, 19)
  labelled, others = batches[..., :12], batches[..., 12:]
  assert labelled.max() < number <= others.min()
  assert others.max() < len(dataset.training())
  for replica in range(2):
    assert len(np.unique(labelled[:, replica])) == 96
    assert len(np.unique(others[:, replica])) == 56
  assert (batches[:, 0] != batches[:, 1]).any()
  np.testing.assert_array_equal(batches[3], order(3))


def test_without_them_the_batches_are_as_they_were():
  config = runs.make_config({"data.subset.limit": 0})
  dataset = load_data(config)
  wanted = batch_indices(0, 5, num_examples=len(dataset.train), batch_size=32)
  np.testing.assert_array_equal(make_order(config, dataset)(5), wanted[None])


@pytest.mark.claim(
  "regularization", "bagging", "resampled sets: 1 - 1/e of the examples are in one of them", size="toy"
)
def test_a_resampled_set_has_as_many_examples_some_of_them_twice():
  config = runs.make_config({"data.subset.limit": 0, "data.bootstrap": True, "replicas": 2})
  dataset = load_data(config)
  number, order = len(dataset.train), make_order(config, dataset)
  steps = number // config.batch_size
  epochs = [
    np.concatenate([order(epoch * steps + step) for step in range(steps)], axis=1) for epoch in range(2)
  ]
  for replica in range(2):
    members = set(bootstrap(replica, number))
    # 1 - 1/e of them.
    assert len(members) / number == pytest.approx(0.632, abs=0.03)
    for epoch in epochs:
      assert set(epoch[replica]) <= members
  assert set(epochs[0][0]) != set(epochs[0][1])
