"""Sparsemax: the Euclidean projection of the logits onto the simplex, and its loss."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.losses._labels import is_soft, of_label
from jaxreg.typing import Array, check_hard_or_soft_labels, check_range, check_wide


def sparsemax(logits: ArrayLike, labels: ArrayLike) -> Array:
  r"""The sparsemax loss: what the logistic loss is to softmax.

  .. math:: \ell = -o_t + \frac12 \sum_{k \in S} (o_k^2 - \tau^2) + \frac12
    = \frac12 \lVert p - y \rVert^2 + \max(\tau - o_t, 0), \qquad \nabla_o \ell = p - y

  with `p` of `sparsemax_probs`, its threshold `tau` and its support `S`. It is exactly 0 from a margin of 1
  on and grows linearly on the other side. The second form is computed: no large terms of it cancel.
  Equals `optax.losses.multiclass_sparsemax_loss`, which loses its digits near zero and under a common shift
  of the logits, and takes one leading axis.

  Of soft labels it is the mean over the classes by their shares, with the gradient `p - y` too. The paper's
  loss of soft labels is less by a constant, `(1 - |y|^2) / 2`.

  A baseline of the DropMax paper; that it trains with this loss is not confirmed.

  Args:
    logits: `o`, `[..., classes]`, floating.
    labels: `[...]`, integer, or `[..., classes]`, soft, as `softmax_cross_entropy` has them.

  Returns:
    `[...]`, float32 or wider; no log-likelihood.

  Raises:
    TypeError: if `logits` are not floating or `labels` neither integer nor soft.
    ValueError: if the shapes do not fit or a known label is out of range.

  Example:
    >>> sparsemax(jnp.array([[0.5, 0.0], [3.0, 0.0], [0.0, 3.0]]), jnp.array([0, 0, 0]))
    Array([0.0625, 0.    , 3.    ], dtype=float32)

  References:
    Martins and Astudillo, `From Softmax to Sparsemax`, 2016, section 3.
  """
  logits = check_wide(logits, "logits")
  labels = check_hard_or_soft_labels(labels, logits)
  excess = _excess(logits)
  # Not `maximum`, whose gradient is a half where a class stands on the threshold.
  below = of_label(jnp.where(excess > 0, 0, -excess), labels)
  target = labels if is_soft(labels) else jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
  # The mean squared distance to the corners of the simplex: that to their mean, and their spread about it.
  error = jnp.where(excess > 0, excess, 0) - target
  spread = target * (1 - target)
  return (error**2 + spread).sum(axis=-1) / 2 + below


def sparsemax_probs(logits: ArrayLike) -> Array:
  r"""Projects the logits onto the simplex: probabilities of which some are exactly 0.

  .. math:: p = \operatorname*{argmin}_{p \ge 0, \, \sum_k p_k = 1} \lVert p - o \rVert^2
    = \max(o - \tau, 0), \qquad \tau = \max_j \frac1j \Bigl(\sum_{i \le j} o_{(i)} - 1\Bigr)

  where the logits are sorted, the largest first.

  Args:
    logits: `o`, `[..., classes]`, floating.

  Returns:
    `[..., classes]`, in at least float32.

  Raises:
    TypeError: if `logits` are not floating.

  Example:
    >>> sparsemax_probs(jnp.array([1.0, 0.5, -1.0]))
    Array([0.75, 0.25, 0.  ], dtype=float32)

  References:
    Martins and Astudillo, `From Softmax to Sparsemax`, 2016, algorithm 1.
  """
  excess = _excess(check_wide(logits, "logits"))
  return jnp.where(excess <= 0, 0, excess)


def sparsemax_log_probs(logits: ArrayLike, *, eps: float = 1e-20) -> Array:
  r"""Log-probabilities of sparsemax, with a floor where a probability is exactly 0.

  .. math:: \log \frac{p_k + \epsilon}{1 + K \epsilon}

  The floor, -46.05, is ours; its eps is DropMax's. Without it a single example whose true class has
  probability 0 makes the negative log-likelihood of a whole data set infinite; with it such an example counts
  46.05 nats, so that figures of this likelihood are figures of the floor too and must be read as such.

  Args:
    logits: `o`, `[..., classes]`, floating.
    eps: what each probability is raised by, in (0, 1]; static.

  Returns:
    `[..., classes]`, in at least float32.

  Raises:
    TypeError: if `logits` are not floating.
    ValueError: if `eps` is out of range.

  Example:
    >>> sparsemax_log_probs(jnp.array([1.0, 0.5, -1.0])).round(2)
    Array([ -0.29,  -1.39, -46.05], dtype=float32)
  """
  check_range(eps, "eps", low=0, high=1, open_low=True)
  probs = sparsemax_probs(logits)
  # Double where: the derivative of log at 0 must not meet the branch that is not taken.
  log_probs = jnp.log(jnp.where(probs == 0, 1, probs))
  floored = jnp.where(probs == 0, math.log(eps), jnp.logaddexp(log_probs, math.log(eps)))
  return floored - math.log1p(probs.shape[-1] * eps)


def _excess(logits: Array) -> Array:
  """The logits minus the threshold above which a class has a probability."""
  shifted = logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
  ordered = jnp.sort(jax.lax.stop_gradient(shifted), axis=-1, descending=True)
  counts = jnp.cumsum(jnp.ones_like(ordered), axis=-1)
  inside = shifted > ((jnp.cumsum(ordered, axis=-1) - 1) / counts).max(axis=-1, keepdims=True)
  # Once more, as the mean over the support: its derivative does not go through the sorting.
  total = jnp.where(inside, shifted, 0).sum(axis=-1, keepdims=True)
  return shifted - (total - 1) / inside.sum(axis=-1, keepdims=True)
