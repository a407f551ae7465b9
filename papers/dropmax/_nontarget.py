"""The gradients of DropMax in the logits of wrong classes: the footnote of appendix B."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._dropmax_masks import gated_logits
from jaxreg._labels import is_target_of
from jaxreg.losses import softmax_cross_entropy
from jaxreg.typing import Array
from papers.dropmax._masks import Target, check_scores, fix_target, mask_log_probs, masked_scores


def dropmax_nontarget_gradients(
  logits: ArrayLike, retain_logits: ArrayLike, labels: ArrayLike, *, target: Target = "sampled"
) -> dict[str, Array]:
  r"""Computes the analogues of the appendix's Eq. 8 and 9 for the logits of wrong classes.

  .. math::
    \partial \mathcal{M} / \partial o_k &= \mathbb{E}_z\Bigl[\frac{(z_k + \epsilon) e^{o_k}}
      {\sum_j (z_j + \epsilon) e^{o_j}}\Bigr] - \operatorname{softmax}_k(o) \quad \text{(exact)} \\
    \partial \mathcal{M} / \partial o_k &\mathrel{\overset{?}{\le}} \frac{(\rho_k + \epsilon) e^{o_k}}
      {\sum_j (\rho_j + \epsilon) e^{o_j}} - \operatorname{softmax}_k(o) \quad \text{(as Eq. 8)} \\
    \partial \hat l / \partial o_k &= \operatorname{softmax}_k(o) \quad \text{(as Eq. 9)}

  The appendix's footnote only says that similar arguments hold. Under Condition 1 the second line is negative
  for every wrong class, so the regulariser opposes the loss, as Eq. 10 says for the target. **The argument
  has the error of Eq. 8**: the derivative of a bound does not bound the derivative. The conclusion is a
  smaller gradient than softmax's. With the target's mask kept, as in training, it held for all wrong classes
  of 2000 random, correctly classified examples. With the mask sampled, as in the appendix, it held for about
  60 % of them.

  Args:
    logits: `o`, `[..., classes]`, floating, at most 16 classes.
    retain_logits: logits of `rho`, same shape.
    labels: `[...]`, integer.
    target: whether the exact side samples the target's mask or keeps it; the printed side samples it.

  Returns:
    `regularizer` (exact), `regularizer_printed`, `softmax`, by differentiation, and `softmax_printed`, each
    `[..., classes]`, float32 or wider, with 0 for the target.

  Raises:
    TypeError: if the logits are not floating or `labels` not integer.
    ValueError: if the shapes do not fit, there are more than 16 classes, or for an unknown `target`.

  Example:
    >>> rho = jnp.array([0.78, 0.22, 0.22, 0.22, 0.22, 0.22])
    >>> o, logit = jnp.array([3.0, 0, 0, 0, 0, 0]), jnp.log(rho / (1 - rho))
    >>> sides = dropmax_nontarget_gradients(o, logit, jnp.array(0), target="kept")
    >>> sides["regularizer"][1].round(4), sides["regularizer_printed"][1].round(4)
    (Array(-0.0298, dtype=float32), Array(-0.0267, dtype=float32))

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix B, footnote 1.
  """
  logits, prior, labels = check_scores(logits, retain_logits, labels)
  is_target = is_target_of(labels, logits)
  wrong = lambda values: jnp.where(is_target, 0, values)
  weights = jnp.exp(mask_log_probs(fix_target(prior, labels, target)))
  expected = (weights[..., None] * jax.nn.softmax(masked_scores(logits))).sum(axis=-2)
  plain = jax.nn.softmax(logits)
  differentiated = jax.grad(lambda o: softmax_cross_entropy(o, labels).sum())(logits)
  return {
    "regularizer": wrong(expected - plain),
    "regularizer_printed": wrong(jax.nn.softmax(gated_logits(logits, prior)) - plain),
    "softmax": wrong(differentiated),
    "softmax_printed": wrong(plain),
  }
