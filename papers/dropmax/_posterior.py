"""DropMax's exact posterior over masks, and the loss by factorising it: appendix A, Observation 2.

The statements of the appendix, checked by enumeration:

- `p(z_t = 1 | x, y, z != 0) = 1`: true up to `eps`, 1e-20 times a ratio of likelihoods.
- `z = 0` may be ignored as one of many masks: its posterior probability is `softmax_t(o) prod_k (1 - rho_k) /
  p(y | x)`, which depends on `rho` and not on the number of masks. At `rho` = .782 and .218, on a confident
  example, it is 3 % with ten classes and 15 % with three.
- Whenever `z_t` is 0, `q` deviates by as much as its other factors deviate from `Ber(0)`: true, some 46 nats
  times the probability that any other class is kept (`deviation_dropped` of `dropmax_mean_field`).

`_dropmax_target` has the rest of the argument.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_wide
from jaxreg._labels import is_target_of
from jaxreg.typing import Array
from papers.dropmax._masks import (
  check_scores,
  dropmax_masks,
  finite,
  fix_target,
  mask_log_probs,
  mask_nll,
  target_kept,
)


def dropmax_mask_posterior(
  logits: ArrayLike, retain_logits: ArrayLike, labels: ArrayLike, *, exclude_all_dropped: bool = False
) -> Array:
  r"""Computes the exact posterior over all hard masks, in log space.

  .. math:: p(z \mid x, y) = \frac{p(y \mid x, z) \prod_k \rho_k^{z_k} (1 - \rho_k)^{1 - z_k}}{p(y \mid x)}

  Args:
    logits: `o`, `[..., classes]`, floating, at most 16 classes.
    retain_logits: logits of the prior `rho`, same shape.
    labels: `[...]`, integer.
    exclude_all_dropped: whether to condition on `z != 0` too, as Observation 2 does.

  Returns:
    `log p(z | x, y)`, `[..., 2^classes]`, in the order of `dropmax_masks`: entry 0 drops every class.

  Raises:
    TypeError: if the logits are not floating or `labels` not integer.
    ValueError: if the shapes do not fit or there are more than 16 classes.

  Example:
    >>> log_posterior = dropmax_mask_posterior(jnp.zeros(2), jnp.zeros(2), jnp.array(0))
    >>> jnp.exp(log_posterior).round(3)  # keeping none, the target, the other, both
    Array([0.25, 0.5 , 0.  , 0.25], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix, Eq. 1 to 4.
  """
  joint = _joint(*check_scores(logits, retain_logits, labels), exclude_all_dropped)
  return joint - jax.nn.logsumexp(joint, axis=-1, keepdims=True)


def dropmax_marginal_logits(
  logits: ArrayLike, retain_logits: ArrayLike, labels: ArrayLike, *, exclude_all_dropped: bool = False
) -> Array:
  r"""Computes the marginals of the exact posterior as logits: the ideal `posterior_logits`.

  .. math:: \operatorname{logit} p(z_k = 1 \mid x, y) = \log \sum_{z: z_k = 1} p(z \mid x, y)
    - \log \sum_{z: z_k = 0} p(z \mid x, y)

  Observation 2: with `exclude_all_dropped` the target's logit is some 46, a probability of 1 up to `eps`.

  Args:
    logits, retain_logits, labels, exclude_all_dropped: as in `dropmax_mask_posterior`.

  Returns:
    `[..., classes]`, float32 or wider.

  Raises:
    TypeError, ValueError: as `dropmax_mask_posterior`.

  Example:
    >>> o, rho, label = jnp.zeros(3), jnp.zeros(3), jnp.array(0)
    >>> for exclude in (False, True):
    ...   marginals = dropmax_marginal_logits(o, rho, label, exclude_all_dropped=exclude)
    ...   print([f"{p:.3f}" for p in jax.nn.sigmoid(marginals)])
    ['0.875', '0.312', '0.312']
    ['1.000', '0.357', '0.357']

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix, Observation 2.
  """
  posterior = dropmax_mask_posterior(logits, retain_logits, labels, exclude_all_dropped=exclude_all_dropped)
  masks = dropmax_masks(jnp.shape(logits)[-1])[(None,) * (posterior.ndim - 1)]
  shut = finite(jnp.full_like(posterior, -jnp.inf))[..., None]
  over = lambda keep: jax.nn.logsumexp(jnp.where(keep, posterior[..., None], shut), axis=-2)
  return over(masks) - over(~masks)


def dropmax_mean_field(
  logits: ArrayLike, retain_logits: ArrayLike, posterior_logits: ArrayLike, labels: ArrayLike
) -> dict[str, Array]:
  r"""Computes the exact cost of a factorised posterior, including the target's own factor.

  .. math:: q(z) = \prod_k \mathrm{Ber}(z_k; g_k), \qquad
    \underbrace{\mathbb{E}_q[-\log p(y \mid x, z)]}_{\text{nll}}
    + \underbrace{\mathrm{KL}(q \,\|\, p(z \mid x))}_{\text{kl}}
    = \underbrace{\mathrm{KL}(q \,\|\, p(z \mid x, y))}_{\text{gap}}
    - \underbrace{\log p(y \mid x)}_{\mathrm{log\_evidence}}

  By the chain rule `gap` is `KL(q_t || p(z_t | x, y))` plus `g_t deviation_kept + (1 - g_t)
  deviation_dropped`. The appendix argues about the last part: some 46 nats times the probability that another
  class is kept.

  Args:
    logits: `o`, `[..., classes]`, floating, at most 16 classes.
    retain_logits: logits of the prior `rho`, same shape.
    posterior_logits: logits of `g`, same shape, used for the target too; `inf` there is DropMax's own choice.
    labels: `[...]`, integer.

  Returns:
    Each `[...]`, in nats: `nll`, `kl`, `log_evidence`, `gap`; `deviation_kept` and `deviation_dropped`, the
    KL of the other masks' factors from `p(z_others | x, y, z_t)` for `z_t` of 1 and 0; `nll_std`, the
    standard deviation of the likelihood term under one hard mask.

  Raises:
    TypeError: if the logits are not floating or `labels` not integer.
    ValueError: if shapes differ or there are more than 16 classes.

  Example:
    >>> o = rho = jnp.zeros(2)
    >>> for target in (jnp.inf, 4.6):  # g_t = 1 and 0.99
    ...   terms = dropmax_mean_field(o, rho, jnp.array([target, 0.0]), jnp.array(0))
    ...   print({name: round(float(terms[name]), 2) for name in ("gap", "deviation_dropped", "nll_std")})
    {'gap': 0.35, 'deviation_dropped': 21.99, 'nll_std': 0.35}
    {'gap': 0.52, 'deviation_dropped': 21.99, 'nll_std': 3.23}

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, Eq. 9 and appendix A.
  """
  logits, prior, labels = check_scores(logits, retain_logits, labels)
  q_logits = finite(check_wide(posterior_logits, "posterior_logits", shape=logits.shape))
  nll, log_prior, log_q = mask_nll(logits, labels), mask_log_probs(prior), mask_log_probs(q_logits)
  joint = log_prior - nll
  evidence = jax.nn.logsumexp(joint, axis=-1)
  mean = lambda log_weights, x: (jnp.exp(log_weights) * x).sum(axis=-1)
  expected = mean(log_q, nll)
  variance = mean(log_q, (nll - expected[..., None]) ** 2)

  # The other masks' factors for either value of the target's mask; half of the masks is excluded.
  kept = target_kept(logits, labels)
  on = fix_target(q_logits, labels, "kept")
  off = jnp.where(is_target_of(labels, logits), -on, q_logits)
  shut = finite(jnp.full_like(joint, -jnp.inf))

  def deviation(half, log_others):
    posterior = jax.nn.log_softmax(jnp.where(half, joint, shut))
    return mean(log_others, jnp.where(half, log_others - posterior, 0))

  return {
    "nll": expected,
    "kl": mean(log_q, log_q - log_prior),
    "log_evidence": evidence,
    "gap": mean(log_q, log_q - joint + evidence[..., None]),
    "deviation_kept": deviation(kept, mask_log_probs(on)),
    "deviation_dropped": deviation(~kept, mask_log_probs(off)),
    # The square root has no derivative at 0.
    "nll_std": jnp.where(variance <= 0, 0, jnp.sqrt(jnp.where(variance <= 0, 1, variance))),
  }


def _joint(logits: Array, prior: Array, labels: Array, exclude_all_dropped: bool) -> Array:
  """`log p(y, z | x)` for every hard mask."""
  joint = mask_log_probs(prior) - mask_nll(logits, labels)
  if exclude_all_dropped:
    joint = joint.at[..., 0].set(finite(jnp.full_like(joint[..., 0], -jnp.inf)))
  return joint
