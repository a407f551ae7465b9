"""Deterministic attention over the classes: DropMax's expected mask, trained by cross-entropy alone."""

from __future__ import annotations

from jax.typing import ArrayLike

from jaxreg._checks import check_logits
from jaxreg._dropmax_masks import gated_logits
from jaxreg._where import only_where
from jaxreg.losses._softmax import softmax_cross_entropy
from jaxreg.typing import Array


@only_where()
def deterministic_attention(
  logits: ArrayLike, retain_logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None
) -> Array:
  r"""Computes the cross-entropy of a softmax whose terms are multiplied by retain probabilities.

  .. math:: \ell = -\log \frac{(\rho_t + \epsilon) e^{o_t}}{\sum_k (\rho_k + \epsilon) e^{o_k}}, \qquad
    \rho = \sigma(\mathrm{retain\_logits}), \quad \epsilon = 10^{-20}

  Nothing is sampled. Prediction uses the same softmax, `dropmax_log_probs`. The eps is DropMax's, so that
  both use the same function. It has no effect unless a `rho` is below 1e-13.

  Args:
    logits, labels, where: as in `softmax_cross_entropy`.
    retain_logits: logits of `rho`, `[..., classes]`: the output of an affine layer on the same features as
      the logits.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> deterministic_attention(jnp.zeros((1, 2)), jnp.array([[99.0, 0.0]]), jnp.array([0]))
    Array([0.4054651], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `Deterministic Attention`.
  """
  logits = check_logits(logits, "logits")
  prior = check_logits(retain_logits, "retain_logits", shape=logits.shape)
  return softmax_cross_entropy(gated_logits(logits, prior), labels)
