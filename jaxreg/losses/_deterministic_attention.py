"""Deterministic attention over the classes: DropMax's expected mask, trained by cross-entropy alone."""

from __future__ import annotations

from jax.typing import ArrayLike

from jaxreg.losses._dropmax import gated_logits
from jaxreg.losses._softmax import softmax_cross_entropy
from jaxreg.typing import Array, check_wide


def deterministic_attention(logits: ArrayLike, retain_logits: ArrayLike, labels: ArrayLike) -> Array:
  r"""Cross-entropy of a softmax whose terms are multiplied by retain probabilities; nothing is sampled.

  .. math:: \ell = -\log \frac{(\rho_t + \epsilon) e^{o_t}}{\sum_k (\rho_k + \epsilon) e^{o_k}}, \qquad
    \rho = \sigma(\text{retain\_logits}), \quad \epsilon = 10^{-20}

  Prediction is the same softmax, `dropmax_log_probs`. The eps is DropMax's, so that the two are one function;
  it shows in no digit unless a `rho` is below 1e-13.

  Args:
    logits: `o`, `[..., classes]`, floating.
    retain_logits: logits of `rho`, same shape; an affine layer on the features that the logits have too.
    labels: `[...]`, integer, or `[..., classes]`, soft, as `softmax_cross_entropy` has them.

  Returns:
    `[...]`, in nats, float32 or wider.

  Raises:
    TypeError: if the logits are not floating or `labels` neither integer nor soft.
    ValueError: if shapes do not fit.

  Example:
    >>> deterministic_attention(jnp.zeros((1, 2)), jnp.array([[99.0, 0.0]]), jnp.array([0]))
    Array([0.4054651], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `Deterministic Attention`.
  """
  logits = check_wide(logits, "logits")
  prior = check_wide(retain_logits, "retain_logits", shape=logits.shape)
  return softmax_cross_entropy(gated_logits(logits, prior), labels)
