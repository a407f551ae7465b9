"""Large margin in softmax: the logits of the other classes should be equal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_labels, check_logits, check_option
from jaxreg._where import only_where
from jaxreg.losses._softmax import softmax_cross_entropy
from jaxreg.typing import Array


@only_where()
def large_margin(
  logits: ArrayLike, labels: ArrayLike, *, weight: ArrayLike = 0.3, where: ArrayLike | None = None
) -> Array:
  r"""Computes the cross-entropy plus a penalty that pushes down the largest wrong logit, widening the margin.

  .. math:: \ell = -\log p_t + \frac{\lambda}{2} \sum_{k \ne t} \Bigl(q_k - \frac{1}{K - 1}\Bigr) \log q_k,
    \qquad q_k = \frac{e^{o_k}}{\sum_{j \ne t} e^{o_j}}

  The sum is the symmetric divergence of `q` and the uniform distribution over the wrong classes,
  :math:`\mathrm{KL}(q \| u) + \mathrm{KL}(u \| q)`. It is at least 0, and 0 if the wrong logits are equal, as
  with two classes.

  Args:
    logits: `[..., classes]`, floating.
    labels: `[...]`, integer; soft labels are refused: the penalty leaves out one class.
    weight: `lambda`, a scalar or `[...]`, at least 0; 0 is the cross-entropy.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> logits = jnp.array([[0.0, 0.0, jnp.log(3.0)]])  # q = 1/4, 3/4; penalty (1/2) (1/4) log(3)
    >>> loss = lambda weight: large_margin(logits, jnp.array([0]), weight=weight)
    >>> (loss(1.0) - loss(0.0)).round(4)
    Array([0.1373], dtype=float32)

  References:
    Kobayashi, `Large Margin In Softmax Cross-Entropy Loss`, 2019.
  """
  logits = check_logits(logits, "logits")
  check_option(weight, "weight", logits.shape[:-1], low=0)
  labels = check_labels(labels, logits)
  classes = logits.shape[-1]
  wrong = jax.nn.one_hot(labels, classes, dtype=int) == 0
  excluded = jnp.isneginf(logits)
  # A large finite number instead of -inf, whose gradient could be NaN.
  finite = jnp.where(excluded, jnp.finfo(logits.dtype).min / 2, logits)
  # The label's own entry must not reach the gradient.
  counts = wrong & ~excluded
  largest = jnp.where(counts, finite, -jnp.inf).max(axis=-1, keepdims=True)
  gaps = jnp.where(counts, finite - jax.lax.stop_gradient(jnp.where(jnp.isneginf(largest), 0, largest)), 0)
  # log(q / u): sum of (q - u) log(q / u) is the same sum, and no term of it cancels another.
  ratio = jnp.where(counts, gaps - _log_mean_exp(gaps, counts, classes - 1), 0)
  penalty = (jnp.expm1(ratio) * ratio).sum(axis=-1) / (classes - 1)
  # The uniform distribution is infinitely far from one that excludes a wrong class.
  infinite = (wrong & excluded).any(axis=-1) & (jnp.asarray(weight) > 0)
  penalty = jnp.where(infinite, jnp.inf, penalty)
  return softmax_cross_entropy(logits, labels) + 0.5 * weight * penalty


def _log_mean_exp(x: Array, counts: Array, number: int) -> Array:
  """Computes the logarithm of the sum of `exp(x)` over `number`, `[..., 1]`, with all digits near 0 as well.

  The largest entry that counts is 0.
  """
  less = jnp.where(counts, jnp.expm1(x), 0).sum(axis=-1, keepdims=True) / number
  near = less > -0.5
  total = jnp.where(counts, jnp.exp(x), 0).sum(axis=-1, keepdims=True)
  far = jnp.log(jnp.where(near, 1, total)) - jnp.log(jnp.asarray(number, x.dtype))
  return jnp.where(near, jnp.log1p(jnp.where(near, less, 0)), far)
