"""Every random stream of a run has a name here; the seed and the step determine each draw.

A run has one root key, which never changes. Only this file folds numbers into it, and `named` a name.
"""

from typing import NamedTuple

import jax
import numpy as np

from jaxreg._keys import named as named
from jaxreg.typing import Array, Key

# Numbers that are folded into the root key like the number of a step; no run makes as many steps.
_PREDICTION, _OPTIMIZER, _UNBALANCE = (np.uint32(2**32 - 1 - number) for number in range(3))
# This number is added to a seed; no run has the resulting seed.
_UNLABELLED = 2**32


class Streams(NamedTuple):
  """The keys of one training step."""

  network: Key
  loss: Key
  prediction: Key
  augmentation: Key


def root(seed: Array | int) -> tuple[Key, Key]:
  """Returns the root key of a run, and the key of its initialisation."""
  run, init = jax.random.split(jax.random.key(seed))
  return run, init


def unbalance(root: Key) -> Key:
  """Returns the key for `model.unbalance`, which rescales hidden units at the start."""
  return jax.random.fold_in(root, _UNBALANCE)


def step(root: Key, number: Array | int) -> Key:
  """Returns the key of the training step with this number."""
  return jax.random.fold_in(root, number)


def streams(step: Key) -> Streams:
  """Returns the keys of a training step's draws."""
  return Streams(*jax.random.split(step, len(Streams._fields)))


def again(key: Key) -> Key:
  """Copies a key for an intended second use, which `jax_debug_key_reuse` would otherwise report."""
  return jax.random.clone(key)


def device(step: Key, axis_name: str) -> Key:
  """Returns the key of one device under `pmap`, which draws noise of its own."""
  return jax.random.fold_in(step, jax.lax.axis_index(axis_name))


def numbered(key: Key, number: Array | int) -> Key:
  """Returns the key of one of several draws in a row, such as augmentations, or of one part of a batch."""
  return jax.random.fold_in(key, number)


def optimizer(root: Key, number: Array) -> Key:
  """Returns the key of an optimizer that draws noise, the same on all devices."""
  return jax.random.fold_in(jax.random.fold_in(root, _OPTIMIZER), number)


def prediction(root: Key, step: Array, number: Array | int) -> Key:
  """Returns the key for the predictions of batch `number` after `step` updates."""
  return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(root, _PREDICTION), step), number)


def bootstrap(seed: int) -> Key:
  """Returns the key for the resampled training set of a run."""
  return named(jax.random.key(seed), "bootstrap")


def prediction_sets(split: str) -> Key:
  """Returns the key for random scores of prediction sets; calibration and test have different keys."""
  return named(jax.random.key(0), split)


def statistics(seed: int) -> Key:
  """Returns the key of the noise under which a merge of runs estimates its BatchNorm statistics."""
  return named(jax.random.key(seed), "statistics")


def permutation(seed: int, epoch: int) -> np.random.Generator:
  """Returns the generator of the order of the training examples in an epoch."""
  return np.random.Generator(np.random.Philox(key=[seed, epoch]))


def unlabelled(seed: int) -> int:
  """Returns the seed for the order of the examples without labels."""
  return seed + _UNLABELLED


def crop(seed: int, step: int, position: int) -> np.random.Generator:
  """Returns the generator of the random crop of the image at a position of a step's global batch."""
  return np.random.default_rng((seed, step, position))
