"""Label noise: random labels with a given probability."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_array, check_count, check_key, check_option, known_values
from jaxreg._sharding import drawn_like
from jaxreg.typing import Array, Key


def label_noise(key: Key | None, labels: ArrayLike, *, num_classes: int, rate: ArrayLike) -> Array:
  r"""Replaces each label, with probability `rate`, by a class drawn uniformly from all classes.

  .. math:: \tilde y = \begin{cases} y & \text{with probability } 1 - \epsilon \\
    \mathrm{Uniform}\{0, \dots, K - 1\} & \text{with probability } \epsilon \end{cases}

  The drawn class may be the label itself, which stays with probability `1 - eps + eps / K`. For the
  cross-entropy, the expectation over these draws is the loss with smoothed labels, `losses.label_smoothing`
  at `smoothing=rate`, which has no noise. A loss that is not linear in the targets has no such form.

  Args:
    key: two draws of the labels' shape: whether to replace, and the class; None for no noise.
    labels: `[...]`, integer. Negative labels, which mark unlabelled examples, stay. A label of `num_classes`
      or more is refused if it is known; else it stays, so that the loss sees it.
    num_classes: `K`; static.
    rate: `eps` in [0, 1], a scalar or `[...]`; may be traced.

  Returns:
    Labels of the same shape and dtype.

  Example:
    >>> label_noise(jax.random.key(0), jnp.array([3, 1, -1]), num_classes=4, rate=0.0)
    Array([ 3,  1, -1], dtype=int32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, label smoothing.
  """
  raw_labels, labels = labels, check_array(labels, "labels")
  if not jnp.issubdtype(labels.dtype, jnp.integer):
    raise TypeError(f"labels must be integers, got {labels.dtype}")
  check_count(num_classes, "num_classes")
  check_option(rate, "rate", labels.shape, low=0, high=1)
  if num_classes - 1 > jnp.iinfo(labels.dtype).max:
    raise ValueError(f"num_classes must fit the dtype of labels, {labels.dtype}, got {num_classes}")
  known = known_values(raw_labels)
  if known is not None and known.size and known.max() >= num_classes:
    raise ValueError(f"labels must be below num_classes, {num_classes}, got {known.max()}")
  if key is None:
    return labels
  whether, which = jax.random.split(check_key(key))
  valid = (labels >= 0) & (labels <= num_classes - 1)
  replaced = (drawn_like(labels, jax.random.uniform, whether, labels.shape) < rate) & valid
  classes = drawn_like(
    labels, jax.random.randint, which, labels.shape, minval=0, maxval=num_classes, dtype=labels.dtype
  )
  return jnp.where(replaced, classes, labels)
