"""The prediction of DropMax, under the expected mask or under sampled ones."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_labels, check_logits, key_first
from jaxreg.losses._dropmax_masks import dropmax_mask, dropmax_masked_logits, gated_logits
from jaxreg.losses._labels import is_target_of
from jaxreg.losses._softmax import softmax_log_probs
from jaxreg.typing import Array, Key


def dropmax_log_probs(logits: ArrayLike, retain_logits: ArrayLike) -> Array:
  r"""Predicts with the expected mask, as the released code does: no sampling, no label.

  .. math:: p(y_k = 1 \mid x) \propto (\rho_k + \epsilon)\, e^{o_k}

  Args:
    logits: `o`, `[..., classes]`, floating.
    retain_logits: logits of `rho`, same shape.

  Returns:
    Log-probabilities, `[..., classes]`, in at least float32.

  Example:
    >>> jnp.exp(dropmax_log_probs(jnp.zeros(2), jnp.array([-99.0, 99.0]))).round(3)
    Array([0., 1.], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, released code.
  """
  logits = check_logits(logits, "logits")
  prior = check_logits(retain_logits, "retain_logits", shape=logits.shape)
  return softmax_log_probs(gated_logits(logits, prior))


@key_first
def dropmax_monte_carlo_log_probs(
  key: Key,
  logits: ArrayLike,
  retain_logits: ArrayLike,
  *,
  num_samples: int = 100,
  labels: ArrayLike | None = None,
) -> Array:
  r"""Predicts with sampled masks: the mean probability over `z ~ p(z | x)`.

  .. math:: p(y \mid x) \approx \frac1S \sum_s p(y \mid x, z^{(s)}), \quad z^{(s)}_k \sim \mathrm{Ber}(\rho_k)

  Args:
    key: for the masks of all classes.
    logits: `o`, `[..., classes]`, floating.
    retain_logits: logits of `rho`, same shape.
    num_samples: `S`.
    labels: `[...]`, integer: replaces the mask of the label's class by its probability, which removes the
      variance of dropping that class. For analysis; a prediction has no label.

  Returns:
    Log-probabilities, `[..., classes]`, in at least float32.

  Example:
    >>> log_probs = dropmax_monte_carlo_log_probs(jax.random.key(0), jnp.zeros(3), jnp.full(3, 99.0))
    >>> jnp.exp(log_probs).round(3)
    Array([0.333, 0.333, 0.333], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix, figure 2 (b: with `labels`).
  """
  logits = check_logits(logits, "logits")
  prior = check_logits(retain_logits, "retain_logits", shape=logits.shape)
  mask = dropmax_mask(key, prior, num_samples=num_samples)
  masked = dropmax_masked_logits(logits, mask)
  if labels is not None:
    labels = check_labels(labels, logits)
    expected = gated_logits(logits, prior)
    masked = jnp.where(is_target_of(labels, logits)[None], expected[None], masked)
  return jax.nn.logsumexp(softmax_log_probs(masked), axis=0) - math.log(num_samples)
