"""Consistency: two noisy predictions for the same example should be the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.typing import Array, check_wide


def consistency(logits: ArrayLike, other_logits: ArrayLike) -> Array:
  r"""The mean squared difference of two predictions: the unsupervised term of the Pi-model and mean teacher.

  .. math:: \ell = \frac1K \sum_k (p_k - q_k)^2

  It needs no labels. In the Pi-model both are of the same parameters, under other noise and augmentation, and
  gradient goes to both. A teacher gets none: its parameters are not those that are trained, as with
  `averaging.mean_teacher_update`; else give `jax.lax.stop_gradient(other_logits)`. Both papers raise the
  term's weight slowly from 0, while the predictions are still poor.

  Args:
    logits: of `p`, `[..., classes]`, floating.
    other_logits: of `q`, of the same shape.

  Returns:
    `[...]`, in [0, 2 / classes], float32 or wider.

  Raises:
    TypeError: if logits are not floating.
    ValueError: if the shapes differ.

  Example:
    >>> consistency(jnp.array([[1e3, 0.0]]), jnp.array([[0.0, 0.0]]))  # certain, and not at all
    Array([0.25], dtype=float32)

  References:
    Laine and Aila, `Temporal Ensembling for Semi-Supervised Learning`, 2017.
    Tarvainen and Valpola, `Mean teachers are better role models`, 2017.
  """
  logits = check_wide(logits, "logits")
  other_logits = check_wide(other_logits, "other_logits", shape=logits.shape)
  return jnp.square(jax.nn.softmax(logits) - jax.nn.softmax(other_logits)).mean(axis=-1)
