"""DropMax as softmax plus a regulariser, and the size of its gradients: appendix B.

Eq. 6, 7, 9 and 10 hold, Eq. 8 does not: see `dropmax_target_gradients`. The appendix concludes from it that
gradients are smaller than softmax's. With the target's mask kept, as in training, this was true for all of
2000 random examples under Condition 1. With the mask sampled, as in the appendix, the expected gradient was
smaller on 85 % of the examples with a margin below 1/2. The gradient of a single mask was smaller on 39 % of
them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_labels, check_wide
from jaxreg._dropmax_masks import LOG_EPS, gated_logits
from jaxreg._labels import is_target_of
from jaxreg.losses import softmax_cross_entropy
from jaxreg.typing import Array
from papers.dropmax._masks import Target, check_scores, fix_target, mask_log_probs, mask_nll, masked_scores


def dropmax_condition_1(retain_logits: ArrayLike, labels: ArrayLike) -> Array:
  r"""Tests whether the retain probabilities fulfil the appendix's Condition 1.

  .. math:: \rho_t > \max_{k \ne t} \rho_k, \qquad \rho_k = \rho_j \quad (k, j \ne t)

  Args:
    retain_logits: logits of `rho`, `[..., classes]`, floating.
    labels: `[...]`, integer.

  Returns:
    `[...]`, bool.

  Raises:
    TypeError: if `retain_logits` are not floating or `labels` not integer.
    ValueError: if the shapes do not fit.

  Example:
    >>> dropmax_condition_1(jnp.array([[1.0, 0.0, 0.0], [1.0, 0.5, 0.0]]), jnp.array([0, 0]))
    Array([ True, False], dtype=bool)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix, Condition 1.
  """
  prior = check_wide(retain_logits, "retain_logits")
  labels = check_labels(labels, prior, "retain_logits")
  is_target = is_target_of(labels, prior)
  target = jnp.where(is_target, prior, -jnp.inf).max(axis=-1)
  highest = jnp.where(is_target, -jnp.inf, prior).max(axis=-1)
  lowest = jnp.where(is_target, jnp.inf, prior).min(axis=-1)
  return (target > highest) & (highest == lowest)


def dropmax_regularizer(
  logits: ArrayLike, retain_logits: ArrayLike, labels: ArrayLike, *, target: Target = "sampled"
) -> dict[str, Array]:
  r"""Computes the exact regulariser that DropMax adds to the expected cross-entropy, and Jensen's bound.

  .. math:: \mathcal{M} = \mathbb{E}_z\Bigl[\log \frac{\sum_k (z_k + \epsilon) e^{o_k}}
    {(z_t + \epsilon) \sum_k e^{o_k}}\Bigr]
    \le \underbrace{\log \sum_k (\rho_k + \epsilon) e^{o_k} - \log \sum_k e^{o_k}}_{\text{bound}}
    + \underbrace{\mathbb{E}[-\log(z_t + \epsilon)]}_{\text{constant}}

  Eq. 7 prints the bound without the constant, which does not depend on `o`. With the target's mask sampled,
  the constant is 46 nats times `1 - rho_t`, so only the sum is a bound.

  Args:
    logits: `o`, `[..., classes]`, floating, at most 16 classes.
    retain_logits: logits of `rho`, same shape.
    labels: `[...]`, integer.
    target: `"sampled"` as in the appendix; `"kept"` fixes the target's mask, and `rho_t` in the bound, at 1.

  Returns:
    `regularizer` (the exact M), `bound` and `constant`, each `[...]` in nats, float32 or wider.

  Raises:
    TypeError: if the logits are not floating or `labels` not integer.
    ValueError: if the shapes do not fit, there are more than 16 classes, or for an unknown `target`.

  Example:
    >>> o, rho, label = jnp.array([3.0, 0, 0, 0, 0, 0]), jnp.zeros(6), jnp.array(0)
    >>> for name, value in dropmax_regularizer(o, rho, label, target="kept").items():
    ...   print(name, round(float(value), 4))
    regularizer -0.1062
    bound -0.105
    constant 0.0

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix, Eq. 5 to 7.
  """
  logits, prior, labels = check_scores(logits, retain_logits, labels)
  prior = fix_target(prior, labels, target)
  expected = (jnp.exp(mask_log_probs(prior)) * mask_nll(logits, labels)).sum(axis=-1)
  dropping = jnp.where(is_target_of(labels, logits), jax.nn.sigmoid(-prior), 0).sum(axis=-1)
  return {
    "regularizer": expected - softmax_cross_entropy(logits, labels),
    "bound": jax.nn.logsumexp(gated_logits(logits, prior), axis=-1) - jax.nn.logsumexp(logits, axis=-1),
    "constant": -LOG_EPS * dropping,
  }


def dropmax_target_gradients(
  logits: ArrayLike, retain_logits: ArrayLike, labels: ArrayLike, *, target: Target = "sampled"
) -> dict[str, Array]:
  r"""Computes both sides of the appendix's equations on the derivatives in the target's logit.

  .. math::
    \partial \mathcal{M} / \partial o_t &= \mathbb{E}_z\Bigl[\frac{(z_t + \epsilon) e^{o_t}}
      {\sum_k (z_k + \epsilon) e^{o_k}}\Bigr] - \operatorname{softmax}_t(o) \quad \text{(exact)} \\
    \partial \mathcal{M} / \partial o_t &\mathrel{\overset{?}{\le}} \frac{(\rho_t + \epsilon) e^{o_t}}
      {\sum_k (\rho_k + \epsilon) e^{o_k}} - \operatorname{softmax}_t(o) \quad \text{(Eq. 8)} \\
    \partial \hat l / \partial o_t &= \operatorname{softmax}_t(o) - 1 \quad \text{(Eq. 9)}

  Under Condition 1 the right side of Eq. 8 is positive (Eq. 10). The appendix concludes that the regulariser
  opposes the loss. **Erratum: Eq. 8 does not hold.** It differentiates both sides of Eq. 7, but a bound on
  `M` does not bound the derivative of `M`. With the target's mask sampled, Eq. 8 fails on some 16 % of
  correctly classified examples under Condition 1. On some 31 % the exact derivative is negative, so the
  regulariser pulls with the loss. (Both shares depend strongly on how examples are drawn.) At `rho` = .78 and
  .22 and `o = (3, 0, 0, 0, 0, 0)` the exact derivative is -0.009, the printed one +0.134. With the mask kept,
  as in training, Eq. 8 never holds: the exact side is larger, again by Jensen and `rho_t < 1`. The conclusion
  is then right for another reason: keeping the target and dropping others raises the target's probability, so
  the derivative is positive.

  Args:
    logits: `o`, `[..., classes]`, floating, at most 16 classes.
    retain_logits: logits of `rho`, same shape.
    labels: `[...]`, integer.
    target: whether the exact side samples the target's mask or keeps it; the printed side is as printed.

  Returns:
    `regularizer` and `regularizer_printed`, the sides of Eq. 8 (Eq. 10 compares the latter with 0);
    `softmax`, by differentiation, and `softmax_printed`, the sides of Eq. 9; each `[...]`.

  Raises:
    TypeError, ValueError: as `dropmax_regularizer`.

  Example:
    >>> rho = jnp.array([0.78, 0.22, 0.22, 0.22, 0.22, 0.22])
    >>> o, logit = jnp.array([3.0, 0, 0, 0, 0, 0]), jnp.log(rho / (1 - rho))
    >>> sides = dropmax_target_gradients(o, logit, jnp.array(0))
    >>> sides["regularizer"].round(3), sides["regularizer_printed"].round(3)
    (Array(-0.009, dtype=float32), Array(0.134, dtype=float32))

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix, Eq. 8 to 10.
  """
  logits, prior, labels = check_scores(logits, retain_logits, labels)
  is_target = is_target_of(labels, logits)
  # 1 - p_t as the sum of the others, which keeps its digits when p_t is near 1.
  missing = lambda scores, to: jnp.where(to, 0, jax.nn.softmax(scores)).sum(axis=-1)
  weights = jnp.exp(mask_log_probs(fix_target(prior, labels, target)))
  expected = (weights * missing(masked_scores(logits), is_target[..., None, :])).sum(axis=-1)
  plain = missing(logits, is_target)
  differentiated = jax.grad(lambda o: softmax_cross_entropy(o, labels).sum())(logits)
  return {
    "regularizer": plain - expected,
    "regularizer_printed": plain - missing(gated_logits(logits, prior), is_target),
    "softmax": jnp.where(is_target, differentiated, 0).sum(axis=-1),
    "softmax_printed": -plain,
  }


def dropmax_gradient_norms(
  logits: ArrayLike, keep_logits: ArrayLike, labels: ArrayLike, *, target: Target = "kept"
) -> dict[str, Array]:
  r"""Computes the size of each example's gradient in the logits under softmax and DropMax, and its margin.

  .. math:: \|p - y\|, \qquad \|\mathbb{E}_z[p(z)] - y\|, \qquad \sqrt{\mathbb{E}_z \|p(z) - y\|^2};
    \qquad o_t - \max_{k \ne t} o_k

  To test "smaller on examples classified with a small margin", select examples by `margin`. With the target
  kept, the target's own entry is smaller than softmax's on every example. With the target sampled, a mask
  that drops it and keeps another class gives a gradient with a norm above 1.

  Args:
    logits: `o`, `[..., classes]`, floating, at most 16 classes; for more classes sample with
      `losses.dropmax_diagnostics`.
    keep_logits: logits of the masks' probabilities, same shape: the posterior's `g` for the gradients of
      training, `rho` for the appendix.
    labels: `[...]`, integer.
    target: `"kept"` as in training, `"sampled"` as in the appendix.

  Returns:
    `margin`, `softmax`, `dropmax` (norm of the expected gradient) and `dropmax_rms` (root mean square norm
    under one hard mask), each `[...]`, float32 or wider.

  Raises:
    TypeError, ValueError: as `dropmax_regularizer`.

  Example:
    >>> norms = dropmax_gradient_norms(jnp.array([0.5, 0.0, 0.0]), jnp.zeros(3), jnp.array(0))
    >>> {name: round(float(value), 3) for name, value in norms.items()}
    {'margin': 0.5, 'softmax': 0.671, 'dropmax': 0.399, 'dropmax_rms': 0.505}

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix B.
  """
  logits, keep, labels = check_scores(logits, keep_logits, labels, "keep_logits")
  is_target = is_target_of(labels, logits)

  def error(scores, to):
    wrong = jnp.where(to, 0, jax.nn.softmax(scores))
    return jnp.where(to, -wrong.sum(axis=-1, keepdims=True), wrong)

  weights = jnp.exp(mask_log_probs(fix_target(keep, labels, target)))[..., None]
  errors = error(masked_scores(logits), is_target[..., None, :])
  others = jnp.where(is_target, jnp.finfo(logits.dtype).min / 2, logits).max(axis=-1)
  return {
    "margin": jnp.where(is_target, logits, 0).sum(axis=-1) - others,
    "softmax": _norm((error(logits, is_target) ** 2).sum(axis=-1)),
    "dropmax": _norm(((weights * errors).sum(axis=-2) ** 2).sum(axis=-1)),
    "dropmax_rms": _norm((weights * errors**2).sum(axis=(-2, -1))),
  }


def _norm(squared: Array) -> Array:
  # The square root has no derivative at 0.
  return jnp.where(squared == 0, 0, jnp.sqrt(jnp.where(squared == 0, 1, squared)))
