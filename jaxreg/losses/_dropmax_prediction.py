"""The prediction of DropMax, under the expected mask or under sampled ones."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_labels, check_logits
from jaxreg._dropmax_masks import dropmax_mask, dropmax_masked_logits, gated_logits
from jaxreg._labels import is_target_of
from jaxreg.losses._softmax import softmax_log_probs
from jaxreg.typing import Array, Key


def dropmax_log_probs(
  logits: ArrayLike,
  retain_logits: ArrayLike,
  *,
  num_samples: int | None = None,
  key: Key | None = None,
  labels: ArrayLike | None = None,
) -> Array:
  r"""Predicts with the expected mask, as the released code does, or with sampled masks.

  .. math:: p(y_k = 1 \mid x) \propto (\rho_k + \epsilon)\, e^{o_k} \qquad \text{or} \qquad
    \frac1S \sum_s p(y_k = 1 \mid x, z^{(s)}), \quad z^{(s)}_k \sim \mathrm{Ber}(\rho_k)

  Args:
    logits: `o`, `[..., classes]`, floating.
    retain_logits: logits of `rho`, same shape.
    num_samples: `S`, the number of masks; None for the expected mask.
    key: for the masks of all classes; with `num_samples`.
    labels: `[...]`, integer, with `num_samples`: replaces the mask of the label's class by its probability,
      which removes the variance of dropping that class. For analysis; a prediction has no label.

  Returns:
    Log-probabilities, `[..., classes]`, in at least float32.

  Example:
    >>> jnp.exp(dropmax_log_probs(jnp.zeros(2), jnp.array([-99.0, 99.0]))).round(3)
    Array([0., 1.], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, released code; for samples the appendix,
    figure 2 (b: with `labels`).
  """
  logits = check_logits(logits, "logits")
  prior = check_logits(retain_logits, "retain_logits", shape=logits.shape)
  expected = gated_logits(logits, prior)
  if num_samples is None:
    if key is not None or labels is not None:
      raise TypeError("num_samples must be given with key or labels, got None")
    return softmax_log_probs(expected)
  if key is None:
    raise TypeError("key must be given with num_samples, got None")
  masked = dropmax_masked_logits(logits, dropmax_mask(key, prior, num_samples=num_samples))
  if labels is not None:
    is_target = is_target_of(check_labels(labels, logits), logits)
    masked = jnp.where(is_target[None], expected[None], masked)
  return jax.nn.logsumexp(softmax_log_probs(masked), axis=0) - math.log(num_samples)
