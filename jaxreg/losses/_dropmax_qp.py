"""DropMax with the prior as its posterior, q = p: the masks are sampled from the prior."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_labels, check_logits, check_option
from jaxreg._dropmax_masks import dropmax_log_mask
from jaxreg._labels import is_target_of
from jaxreg._where import only_where
from jaxreg.losses._dropmax import bernoulli_neg_entropy, masked_nll
from jaxreg.typing import Array, Key


@only_where()
def dropmax_qp_terms(
  key: Key,
  logits: ArrayLike,
  retain_logits: ArrayLike,
  labels: ArrayLike,
  *,
  temperature: ArrayLike = 0.1,
  num_samples: int = 1,
  entropy_weight: float | Array = 1.0,
  where: ArrayLike | None = None,
) -> dict[str, Array]:
  """Computes the three terms of `dropmax_qp`, which has their formulas; their sum is the loss.

  Args:
    key, logits, retain_logits, labels: as in `dropmax_qp`, and so are the options.

  Returns:
    `nll`, `kl` and `neg_entropy`, weighted, each `[...]` in nats, float32 or wider.

  Example:
    >>> terms = dropmax_qp_terms(jax.random.key(0), jnp.zeros((4, 10)), jnp.zeros((4, 10)), jnp.zeros(4, int))
    >>> {name: round(float(term[0]), 3) for name, term in terms.items() if name != "nll"}
    {'kl': 0.693, 'neg_entropy': -6.931}
  """
  logits = check_logits(logits, "logits")
  prior = check_logits(retain_logits, "retain_logits", shape=logits.shape)
  labels = check_labels(labels, logits)
  check_option(entropy_weight, "entropy_weight", labels.shape, low=0)
  log_mask = dropmax_log_mask(key, prior, labels, temperature=temperature, num_samples=num_samples)
  return {
    "nll": masked_nll(logits, log_mask, labels),
    "kl": jnp.where(is_target_of(labels, logits), jax.nn.softplus(-prior), 0).sum(axis=-1),
    "neg_entropy": entropy_weight * bernoulli_neg_entropy(prior).sum(axis=-1),
  }


def dropmax_qp(
  key: Key,
  logits: ArrayLike,
  retain_logits: ArrayLike,
  labels: ArrayLike,
  *,
  temperature: ArrayLike = 0.1,
  num_samples: int = 1,
  entropy_weight: float | Array = 1.0,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the loss of DropMax with q = p, the sum of three terms.

  .. math::
    \text{nll} &= -\frac1S \sum_s \log p(y_t \mid x, z^{(s)}), \quad z_t = 1, \quad
      z_k \sim \mathrm{Ber}(\rho_k) \text{ relaxed } (k \ne t) \\
    \text{kl} &= -\log \rho_t \\
    \mathrm{neg\_entropy} &= \gamma \sum_k \rho_k \log \rho_k + (1 - \rho_k) \log (1 - \rho_k)

  The likelihood trains the retain probabilities through the relaxed masks; in DropMax it does not. There is
  no residual branch and no auxiliary loss. Prediction is as in DropMax, `dropmax_log_probs`. If only the last
  two terms act, the target's retain logit `a` settles at `a = 1 / (gamma * sigmoid(a))`.

  Args:
    key, logits, retain_logits, labels, temperature, num_samples, where: as in `dropmax`.
    entropy_weight: `gamma`, a scalar or `[...]`, at least 0. The paper's values are not confirmed; the
      default is DropMax's.

  Returns:
    `[...]`, in nats, float32 or wider; negative late in training, as in DropMax.

  Example:
    >>> dropmax_qp(jax.random.key(0), jnp.zeros((4, 10)), jnp.zeros((4, 10)), jnp.zeros(4, int)).shape
    (4,)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `DropMax (q = p)`; its poster.
  """
  terms = dropmax_qp_terms(
    key,
    logits,
    retain_logits,
    labels,
    temperature=temperature,
    num_samples=num_samples,
    entropy_weight=entropy_weight,
    where=where,
  )
  return terms["nll"] + terms["kl"] + terms["neg_entropy"]
