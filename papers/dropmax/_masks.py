"""DropMax by enumeration of its hard masks, and the retain probabilities at which training ends.

The names are as in `losses.dropmax`: `logits` o, `retain_logits` for rho, `posterior_logits` for g. A logit
may be infinite: its mask is then certain.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_labels, check_range, check_wide
from jaxreg._dropmax_masks import dropmax_masked_logits
from jaxreg._labels import is_target_of
from jaxreg.losses import softmax_cross_entropy
from jaxreg.typing import Array

MAX_CLASSES = 16
Target = Literal["kept", "sampled"]


def dropmax_masks(num_classes: int) -> Array:
  """Enumerates all hard masks of some classes: row `n` holds the binary digits of `n`, so row 0 drops all.

  Args:
    num_classes: `K`, at most 16.

  Returns:
    `[2^K, K]`, bool.

  Raises:
    TypeError: if `num_classes` is not an integer.
    ValueError: if it is below 1 or above 16.

  Example:
    >>> dropmax_masks(2)
    Array([[False, False],
           [ True, False],
           [False,  True],
           [ True,  True]], dtype=bool)
  """
  check_count(num_classes, "num_classes")
  if num_classes > MAX_CLASSES:
    raise ValueError(
      f"num_classes must be at most {MAX_CLASSES}, got {num_classes}: all 2^K masks are enumerated"
    )
  return (jnp.arange(2**num_classes)[:, None] >> jnp.arange(num_classes)[None]) & 1 == 1


def dropmax_expected_nll(
  logits: ArrayLike, posterior_logits: ArrayLike, labels: ArrayLike, *, target: Target = "kept"
) -> Array:
  r"""Computes the exact mean of the DropMax negative log-likelihood over all hard masks.

  .. math:: \sum_{z \in \{0, 1\}^K} \prod_k g_k^{z_k} (1 - g_k)^{1 - z_k}
    \Bigl[-\log \frac{(z_t + \epsilon) e^{o_t}}{\sum_k (z_k + \epsilon) e^{o_k}}\Bigr]

  The relaxed masks of `losses.dropmax_terms` estimate this mean; here value and gradients are exact. It takes
  `2^K * K` numbers per example: use `jax.lax.map` for many examples with many classes.

  Args:
    logits: `o`, `[..., classes]`, floating, at most 16 classes.
    posterior_logits: logits of the masks' probabilities `g`, same shape.
    labels: `[...]`, integer.
    target: `"kept"` fixes the target's mask at 1, as in training; `"sampled"` draws it too.

  Returns:
    `[...]`, in nats, float32 or wider.

  Raises:
    TypeError: if the logits are not floating or `labels` not integer.
    ValueError: if the shapes do not fit, there are more than 16 classes, or for an unknown `target`.

  Example:
    >>> dropmax_expected_nll(jnp.zeros(2), jnp.zeros(2), jnp.array(0))  # log(2) / 2
    Array(0.3465736, dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, Eq. 5 and appendix, Eq. 5 (`"sampled"`).
  """
  logits, posterior, labels = check_scores(logits, posterior_logits, labels, "posterior_logits")
  weights = jnp.exp(mask_log_probs(fix_target(posterior, labels, target)))
  return (weights * mask_nll(logits, labels)).sum(axis=-1)


def dropmax_equilibrium(
  posterior_logits: ArrayLike, labels: ArrayLike | None = None, *, entropy_weight: ArrayLike = 1.0
) -> Array:
  r"""Computes the retain logits at which KL and entropy balance, for a given posterior.

  .. math:: \frac{\partial}{\partial a} \bigl[\mathrm{KL}(\mathrm{Ber}(g) \,\|\, \mathrm{Ber}(\rho))
    - \gamma \mathrm{H}(\rho)\bigr] = \rho - g + \gamma \rho (1 - \rho) a = 0, \quad \rho = \sigma(a)

  Divided by `rho (1 - rho)`, the derivative increases strictly in `a`. So there is one root, and Newton's
  method finds it from the side where its convergence is monotone. With `g = 1`, and so for the target,
  `a = 1/gamma + W(exp(-1/gamma)/gamma)` with Lambert's W: 1.278 and `rho = 0.782188` at `gamma = 1`. With
  `g = 0` it is mirrored, at 0.217812. So however sure an example is, the expected mask adds at most 1.28 nats
  to its margin.

  Args:
    posterior_logits: logits of `g`, `[..., classes]` (with no `labels`: any shape), floating.
    labels: `[...]`, integer: the target's `g` is then taken as 1, as in the loss.
    entropy_weight: `gamma`, positive.

  Returns:
    `a`, the shape of `posterior_logits`, float32 or wider; differentiable.

  Raises:
    TypeError: if `posterior_logits` are not floating or `labels` not integer.
    ValueError: if the shapes do not fit or `entropy_weight` is not positive.

  Example:
    >>> jax.nn.sigmoid(dropmax_equilibrium(jnp.array([-jnp.inf, 0.0, jnp.inf])))
    Array([0.2178117, 0.5      , 0.7821883], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, section 4: the stationary point of its
    regularisation; the entropy, Eq. 13, with the sign its author confirmed.
  """
  q = finite(check_wide(posterior_logits, "posterior_logits"))
  check_range(entropy_weight, "entropy_weight", low=0, open_low=True)
  if labels is not None:
    q = fix_target(q, check_labels(labels, q, "posterior_logits"), "kept")
  gamma = jnp.broadcast_to(jnp.asarray(entropy_weight, q.dtype), q.shape)

  def balance(a, q):
    up, down = jnp.exp(a + jax.nn.log_sigmoid(-q)), jnp.exp(-a + jax.nn.log_sigmoid(q))
    return jax.nn.sigmoid(-q) + up - jax.nn.sigmoid(q) - down + gamma * a, up + down + gamma

  def newton(a, q):
    value, slope = balance(a, q)
    return a - value / jax.lax.stop_gradient(slope)

  # Mirror to g >= 1/2. The balance is concave up to half its logit, then convex; the root is below 2/gamma.
  size = jax.lax.stop_gradient(jnp.abs(q))
  concave = balance(jnp.minimum(size / 2, 2 / gamma), size)[0] >= 0
  start = jnp.where(concave, 0, size)
  root = jax.lax.fori_loop(0, 40, lambda _, a: newton(a, size), start)
  # One more step at the root: it does not move the root and carries the root's derivative.
  return newton(jax.lax.stop_gradient(jnp.sign(q) * root), q)


def check_scores(
  logits: ArrayLike, keep_logits: ArrayLike, labels: ArrayLike, name: str = "retain_logits"
) -> tuple[Array, Array, Array]:
  logits = check_wide(logits, "logits")
  keep = check_wide(keep_logits, name, shape=logits.shape)
  return logits, finite(keep), check_labels(labels, logits)


def finite(logits: Array) -> Array:
  """Replaces infinite logits by finite ones, so that sums over masks and differences stay finite."""
  bound = jnp.finfo(logits.dtype).max / 64
  return jnp.clip(logits, -bound, bound)


def fix_target(keep_logits: Array, labels: Array, target: Target) -> Array:
  if target not in ("kept", "sampled"):
    raise ValueError(f"target must be 'kept' or 'sampled', got {target!r}")
  if target == "sampled":
    return keep_logits
  certain = finite(jnp.full_like(keep_logits, jnp.inf))
  return jnp.where(is_target_of(labels, keep_logits), certain, keep_logits)


def mask_log_probs(keep_logits: Array) -> Array:
  """`[..., classes] -> [..., 2^classes]`: the log-probability of every hard mask."""
  masks = dropmax_masks(keep_logits.shape[-1])
  signed = jnp.where(_over_masks(masks, keep_logits), keep_logits[..., None, :], -keep_logits[..., None, :])
  return jax.nn.log_sigmoid(signed).sum(axis=-1)


def masked_scores(logits: Array) -> Array:
  """`[..., classes] -> [..., 2^classes, classes]`: the logits under every hard mask."""
  masks = _over_masks(dropmax_masks(logits.shape[-1]), logits)
  return dropmax_masked_logits(logits[..., None, :], masks)


def mask_nll(logits: Array, labels: Array) -> Array:
  """`[..., 2^classes]`: the negative log-likelihood under every hard mask."""
  masked = masked_scores(logits)
  return softmax_cross_entropy(masked, jnp.broadcast_to(labels[..., None], masked.shape[:-1]))


def target_kept(logits: Array, labels: Array) -> Array:
  """`[..., 2^classes]`, bool: which masks keep the target."""
  masks = _over_masks(dropmax_masks(logits.shape[-1]), logits)
  return (masks & is_target_of(labels, logits)[..., None, :]).any(axis=-1)


def _over_masks(masks: Array, scores: Array) -> Array:
  return masks[(None,) * (scores.ndim - 1)]
