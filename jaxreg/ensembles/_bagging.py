"""Bagging: members trained on resampled sets."""

from __future__ import annotations

import jax

from jaxreg._checks import check_count, check_key
from jaxreg.typing import Array, Key


def bootstrap_indices(key: Key, *, num_examples: int, num_members: int) -> Array:
  r"""Draws the examples that each member trains on: `num_examples` of them, with replacement.

  .. math:: i_{mj} \sim \mathrm{Uniform}\{0, \dots, n - 1\}

  A member sees each example with probability :math:`1 - (1 - 1/n)^n \to 1 - 1/e`; the unseen examples can
  measure it. Train a member on each row by `jax.vmap`; `arithmetic` is the mean prediction.

  Args:
    key: one draw for all members.
    num_examples: `n`.
    num_members: number of resampled sets.

  Returns:
    `[num_members, num_examples]`, int32.

  Example:
    >>> bootstrap_indices(jax.random.key(0), num_examples=4, num_members=2).shape
    (2, 4)

  References:
    Breiman, `Bagging Predictors`, 1996.
  """
  check_count(num_examples, "num_examples")
  check_count(num_members, "num_members")
  return jax.random.randint(check_key(key), (num_members, num_examples), 0, num_examples, "int32")
