"""Cross-entropy with smoothed labels."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_hard_or_soft_labels, check_logits, check_option
from jaxreg._labels import counted, is_soft, label_entry
from jaxreg._where import only_where
from jaxreg.losses._softmax import cross_entropies, softmax_cross_entropy
from jaxreg.typing import Array


@only_where()
def label_smoothing(
  logits: ArrayLike,
  labels: ArrayLike,
  *,
  smoothing: ArrayLike = 0.1,
  over: Literal["all", "others"] = "all",
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the softmax cross-entropy with targets that spread part of their mass over the classes.

  .. math:: \ell = -(1 - \epsilon) \log p_t - \frac{\epsilon}{K} \sum_k \log p_k
    = -\log p_t + \epsilon \Bigl(o_t - \frac1K \sum_k o_k\Bigr)

  With `over="others"` the mass goes only to the wrong classes, with targets `1 - eps` and `eps / (K - 1)`:
  the same loss at `eps * K / (K - 1)`. For soft labels the loss is the mean over the classes, weighted by
  the probabilities. Equals `optax.softmax_cross_entropy` on `optax.smooth_labels`, without the one-hot array.

  Args:
    logits, labels, where: as in `softmax_cross_entropy`.
    smoothing: `eps`, a scalar or `[...]`, in [0, 1].
    over: whether the mass is spread over all classes or over the wrong ones.

  Returns:
    `[...]`, in nats.

  Example:
    >>> label_smoothing(jnp.array([[2.0, 0.0]]), jnp.array([0]), smoothing=0.1).round(4)
    Array([0.2269], dtype=float32)

  References:
    Szegedy et al., `Rethinking the Inception Architecture for Computer Vision`, 2016, section 7.
    Goodfellow, Bengio and Courville, `Deep Learning`, 2016, section 7.5.1 (`over="others"`).
  """
  logits = check_logits(logits, "logits")
  labels = check_hard_or_soft_labels(labels, logits)
  check_option(smoothing, "smoothing", logits.shape[:-1], low=0, high=1)
  classes = logits.shape[-1]
  check_choice(over, "over", ("all", "others"))
  every = cross_entropies(logits)
  if over == "all":
    rest = every.mean(axis=-1)
  else:
    target = labels if is_soft(labels) else jax.nn.one_hot(labels, classes, dtype=logits.dtype)
    rest = label_entry(every, 1 - target) / (classes - 1)
  loss = softmax_cross_entropy(logits, labels)
  # An excluded class counts only if it has a share of the target.
  share = jnp.asarray(smoothing, logits.dtype)
  return (1 - share) * counted(loss, 1 - share) + share * counted(rest, share)
