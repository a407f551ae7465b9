"""Bagging: members trained on resampled sets, and their mean prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.typing import ArrayLike

from jaxreg.ensembles._means import arithmetic
from jaxreg.typing import Array, Batch, Key, Params, check_count, check_key, check_wide


def bootstrap_indices(key: Key, *, num_examples: int, num_members: int) -> Array:
  r"""Draws the examples that each member trains on: `num_examples` of them, with replacement.

  .. math:: i_{mj} \sim \mathrm{Uniform}\{0, \dots, n - 1\}

  A member sees each example with probability :math:`1 - (1 - 1/n)^n \to 1 - 1/e`; the unseen examples can
  measure it.

  Args:
    key: one draw for all members.
    num_examples: `n`.
    num_members: number of resampled sets.

  Returns:
    `[num_members, num_examples]`, int32.

  Raises:
    TypeError: if `key` is not a typed key or a number not an integer.
    ValueError: if a number is below 1.

  Example:
    >>> bootstrap_indices(jax.random.key(0), num_examples=4, num_members=2).shape
    (2, 4)

  References:
    Breiman, `Bagging Predictors`, 1996.
  """
  check_count(num_examples, "num_examples")
  check_count(num_members, "num_members")
  return jax.random.randint(check_key(key), (num_members, num_examples), 0, num_examples, "int32")


def bag_predict(
  apply_fn: Callable[[Params, Batch], Any], params: Params, x: Batch, *, weights: ArrayLike | None = None
) -> Array:
  r"""Predicts with the mean of the members' probabilities, not of their accuracies or logits.

  .. math:: \log \frac1k \sum_{i=1}^k p(y \mid x, \theta_i)

  Args:
    apply_fn: `(params, x) -> [..., classes]`, logits or log-probabilities of one member.
    params: the members' parameters, stacked: every leaf `[members, ...]`, as `jax.vmap` of an initialiser or
      of a training function returns them.
    x: the inputs of every member.
    weights: `[members]`, as in `arithmetic`.

  Returns:
    `[..., classes]`, log-probabilities, float32 or wider.

  Raises:
    TypeError: if the outputs are not floating.
    ValueError: if `weights` are not `[members]`.

  Example:
    >>> logits = jnp.log(jnp.array([[0.5, 0.5], [1.0, 0.0]]))  # members: their logits
    >>> jnp.exp(bag_predict(lambda params, x: params + 0 * x, logits, jnp.zeros(2)))
    Array([0.75, 0.25], dtype=float32)

  References:
    Breiman, `Bagging Predictors`, 1996.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, dropout: prediction.
  """
  outputs = check_wide(jax.vmap(apply_fn, in_axes=(0, None))(params, x), "the outputs of apply_fn")
  return arithmetic(jax.nn.log_softmax(outputs, axis=-1), weights)
