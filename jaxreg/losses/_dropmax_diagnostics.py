"""Diagnostics that tell a healthy DropMax run from a collapsed one."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._dropmax_masks import dropmax_log_mask
from jaxreg._labels import is_target_of
from jaxreg.losses._dropmax import check_arguments
from jaxreg.typing import Array, Key


def dropmax_diagnostics(
  key: Key,
  logits: ArrayLike,
  retain_logits: ArrayLike,
  residual_logits: ArrayLike,
  labels: ArrayLike,
  *,
  posterior_logits: ArrayLike | None = None,
  temperature: ArrayLike = 0.1,
  num_samples: int = 1,
) -> dict[str, Array]:
  """Computes diagnostics that tell a healthy DropMax run from one whose masks drop every wrong class.

  On memorized data the posterior drops every wrong class, so the likelihood's gradient vanishes and the
  classifier stops learning. Then `logit_grad_norm` and `kept_nontarget` go to 0 together.

  Args:
    key, logits, retain_logits, residual_logits, labels, posterior_logits, temperature, num_samples: as in
      `dropmax_terms`; the same key gives the masks of the loss.

  Returns:
    Per example, `[...]`: `retain_target` (rho_t), `retain_nontarget` (mean rho_k), `posterior_nontarget`
    (mean g_k), `kept_nontarget` (share of relaxed masks above 1/2, k != t), `logit_grad_norm` (L2 norm of the
    likelihood's gradient with respect to the logits).

  Example:
    >>> o = ph = rh = jnp.zeros((1, 10))
    >>> float(dropmax_diagnostics(jax.random.key(0), o, ph, rh, jnp.zeros(1, int))["retain_target"][0])
    0.5
  """
  logits, prior, _, posterior, labels = check_arguments(
    logits, retain_logits, residual_logits, posterior_logits, labels
  )
  log_mask = dropmax_log_mask(key, posterior, labels, temperature=temperature, num_samples=num_samples)
  is_target = is_target_of(labels, logits)

  def others(x):
    return jnp.where(is_target, 0, x).sum(axis=-1) / max(logits.shape[-1] - 1, 1)

  # The target's entry p_t - 1 is minus the sum of the others, which keeps its digits when p_t is near 1.
  wrong = jnp.where(is_target, 0, jax.nn.softmax(logits[None] + log_mask).mean(axis=0))
  error = jnp.where(is_target, wrong.sum(axis=-1, keepdims=True), wrong)
  squared = (error**2).sum(axis=-1)
  return {
    "retain_target": jnp.where(is_target, jax.nn.sigmoid(prior), 0).sum(axis=-1),
    "retain_nontarget": others(jax.nn.sigmoid(prior)),
    "posterior_nontarget": others(jax.nn.sigmoid(posterior)),
    "kept_nontarget": others((log_mask > math.log(0.5)).astype(logits.dtype).mean(axis=0)),
    # The square root has no derivative at 0.
    "logit_grad_norm": jnp.where(squared == 0, 0, jnp.sqrt(jnp.where(squared == 0, 1, squared))),
  }
