"""Jensen-Shannon consistency: predictions for several views of an example should agree."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_logits
from jaxreg._where import only_where
from jaxreg.typing import Array


@only_where(end=-2)
def jensen_shannon(logits: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes the Jensen-Shannon divergence of the predictions for several views.

  .. math:: \frac1n \sum_{i=1}^n \mathrm{KL}(p_i \| m), \qquad m = \frac1n \sum_{i=1}^n p_i

  AugMix adds 12 times this term, for an image and two views of it by `augment.augmix`, to the cross-entropy
  of the image. Gradient goes to all predictions.

  Args:
    logits: logits or log-probabilities of each view, `[..., views, classes]`, floating; -inf excludes a
      class.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in [0, log(views)], float32 or wider.

  Example:
    >>> jensen_shannon(jnp.log(jnp.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]))).round(4)  # log(2) / 2
    Array(0.3466, dtype=float32)

  References:
    Hendrycks et al., `AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty`, 2020,
    section 3.
  """
  if jnp.ndim(logits) < 2:
    raise ValueError(f"logits must be [..., views, classes], got {jnp.shape(logits)}")
  log_p = jax.nn.log_softmax(check_logits(logits, "logits"))
  # A class that a view excludes adds nothing to its divergence, and has no gradient there.
  excluded = log_p == -jnp.inf
  finite = jnp.where(excluded.all(axis=-2, keepdims=True), 0, log_p)
  log_mean = jax.nn.logsumexp(finite, axis=-2, keepdims=True) - jnp.log(log_p.shape[-2])
  log_p = jnp.where(excluded, 0, log_p)
  terms = jnp.where(excluded, 0, jnp.exp(log_p) * (log_p - log_mean))
  return terms.sum(axis=-1).mean(axis=-1)
