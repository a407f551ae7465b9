"""Jensen-Shannon consistency: predictions for several views of an example should agree."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_logits
from jaxreg._divergence import kl_terms, log_ratio
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
  logits = check_logits(logits, "logits")
  log_p = jax.nn.log_softmax(logits)
  # A class that all views exclude adds nothing, and has no gradient.
  excluded = log_p == -jnp.inf
  finite = jnp.where(excluded.all(axis=-2, keepdims=True), 0, log_p)
  log_mean = jax.nn.logsumexp(finite, axis=-2, keepdims=True) - jnp.log(log_p.shape[-2])
  far = jnp.where(excluded, 0, log_p) - log_mean
  # Views that nearly agree are compared with the first one, whose logits lose no digits by it.
  first = log_ratio(logits, logits[..., :1, :])
  near = (jnp.abs(first) < 0.5).all(axis=(-2, -1), keepdims=True)
  first = jnp.where(near, first, 0)
  ratio = jnp.where(near, first - jnp.log1p(jnp.expm1(first).mean(axis=-2, keepdims=True)), far)
  # A class that this view excludes still has its share of the mean.
  share = jnp.where(excluded.all(axis=-2, keepdims=True), 0, jnp.exp(log_mean))
  terms = kl_terms(jnp.where(excluded, 0, log_p), log_mean, jnp.where(excluded, 0, ratio))
  return jnp.where(excluded, share, terms).sum(axis=-1).mean(axis=-1)
