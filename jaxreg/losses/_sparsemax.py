"""Sparsemax: the Euclidean projection of the logits onto the simplex, and its loss."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_hard_or_soft_labels, check_logits, check_option
from jaxreg._labels import is_soft, label_entry
from jaxreg._sharding import partitioned
from jaxreg._where import only_where
from jaxreg.typing import Array


@only_where()
def sparsemax(logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes the sparsemax loss: the counterpart of the logistic loss for sparsemax.

  .. math:: \ell = -o_t + \frac12 \sum_{k \in S} (o_k^2 - \tau^2) + \frac12
    = \frac12 \lVert p - y \rVert^2 + \max(\tau - o_t, 0), \qquad \nabla_o \ell = p - y

  .. math:: p = \operatorname*{argmin}_{p \ge 0, \, \sum_k p_k = 1} \lVert p - o \rVert^2
    = \max(o - \tau, 0), \qquad \tau = \max_j \frac1j \Bigl(\sum_{i \le j} o_{(i)} - 1\Bigr)

  where `o_(i)` are the logits in decreasing order and `S` is the support of `p`. The loss is exactly 0 from a
  margin of 1 on and grows linearly on the other side. The code uses the second form, in which no large terms
  cancel. It equals `optax.losses.multiclass_sparsemax_loss`, which loses its digits near zero and under a
  common shift of the logits, and accepts only one leading axis.

  For soft labels the loss is the mean over the classes, weighted by the probabilities, also with the gradient
  `p - y`. The paper's loss for soft labels is smaller by a constant, `(1 - |y|^2) / 2`.

  This is a baseline of the DropMax paper, which does not confirm that it trains with this loss.

  Args:
    logits, labels, where: as in `softmax_cross_entropy`.

  Returns:
    `[...]`, float32 or wider; it is not a log-likelihood.

  Example:
    >>> sparsemax(jnp.array([[0.5, 0.0], [3.0, 0.0], [0.0, 3.0]]), jnp.array([0, 0, 0]))
    Array([0.0625, 0.    , 3.    ], dtype=float32)

  References:
    Martins and Astudillo, `From Softmax to Sparsemax`, 2016, section 3 and algorithm 1.
  """
  logits = check_logits(logits, "logits")
  labels = check_hard_or_soft_labels(labels, logits)
  excess = partitioned(_excess, logits)
  # Not `maximum`, whose gradient is a half for a class on the threshold.
  below = label_entry(jnp.where(excess > 0, 0, -excess), labels)
  target = labels if is_soft(labels) else jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
  # The mean squared distance to the simplex corners: the distance to their mean, plus their spread about it.
  error = jnp.where(excess > 0, excess, 0) - target
  spread = target * (1 - target)
  return (error**2 + spread).sum(axis=-1) / 2 + below


def sparsemax_probs(logits: ArrayLike) -> Array:
  """Projects the logits onto the simplex, which makes some probabilities exactly 0."""
  excess = partitioned(_excess, check_logits(logits, "logits"))
  return jnp.where(excess <= 0, 0, excess)


def sparsemax_log_probs(logits: ArrayLike, *, eps: float = 1e-20) -> Array:
  r"""Computes the log-probabilities of sparsemax, with a floor where a probability is exactly 0.

  .. math:: \log \frac{p_k + \epsilon}{1 + K \epsilon}

  The floor of -46.05 is our choice, from DropMax's eps. Without it, a single example whose true class has
  probability 0 makes the negative log-likelihood of the whole data set infinite. With it such an example
  counts 46.05 nats, so this likelihood also depends on the floor.

  Args:
    logits: `o`, `[..., classes]`, floating.
    eps: the number added to each probability, in (0, 1]; static.

  Returns:
    `[..., classes]`, in at least float32.

  Example:
    >>> sparsemax_log_probs(jnp.array([1.0, 0.5, -1.0])).round(2)
    Array([ -0.29,  -1.39, -46.05], dtype=float32)
  """
  check_option(eps, "eps", (), low=0, high=1, open_low=True)
  probs = sparsemax_probs(logits)
  # Double where: otherwise the infinite derivative of log at 0 enters through the branch not taken.
  log_probs = jnp.log(jnp.where(probs == 0, 1, probs))
  floored = jnp.where(probs == 0, math.log(eps), jnp.logaddexp(log_probs, math.log(eps)))
  return floored - math.log1p(probs.shape[-1] * eps)


def _excess(logits: Array) -> Array:
  """Computes the logits minus the threshold above which a class has a positive probability."""
  shifted = logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
  ordered = jnp.sort(jax.lax.stop_gradient(shifted), axis=-1, descending=True)
  counts = jnp.cumsum(jnp.ones_like(ordered), axis=-1)
  inside = shifted > ((jnp.cumsum(ordered, axis=-1) - 1) / counts).max(axis=-1, keepdims=True)
  # The threshold again, as the mean over the support, so that its derivative does not go through the sort.
  total = jnp.where(inside, shifted, 0).sum(axis=-1, keepdims=True)
  return shifted - (total - 1) / inside.sum(axis=-1, keepdims=True)
