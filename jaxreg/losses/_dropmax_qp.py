"""DropMax with the prior as its posterior, q = p: the masks are sampled from the prior."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.losses._dropmax import bernoulli_neg_entropy, dropmax_log_mask, masked_nll
from jaxreg.typing import Array, Key, check_labels, check_range, check_wide, key_first


@key_first
def dropmax_qp(
  key: Key,
  logits: ArrayLike,
  retain_logits: ArrayLike,
  labels: ArrayLike,
  *,
  temperature: ArrayLike = 0.1,
  num_samples: int = 1,
  entropy_weight: float | Array = 1.0,
) -> Array:
  """Computes the loss of DropMax with q = p: the sum of `dropmax_qp_terms`, which has the formulas.

  Args:
    key: draws the masks.
    logits: `o`, `[..., classes]`, floating.
    retain_logits: logits of the retain probabilities `rho`, same shape.
    labels: `[...]`, integer class indices in `[0, classes)`. Any other index gives NaN, or is refused if it
      is known. Soft labels are refused: the mask fixes one class.
    temperature: temperature of the relaxation, positive.
    num_samples: masks per example.
    entropy_weight: weight of the entropy term.

  Returns:
    `[...]`, in nats, float32 or wider; negative late in training, as in DropMax.

  Raises:
    TypeError, ValueError: as `dropmax_qp_terms`.

  Example:
    >>> dropmax_qp(jax.random.key(0), jnp.zeros((4, 10)), jnp.zeros((4, 10)), jnp.zeros(4, int)).shape
    (4,)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `DropMax (q = p)`.
  """
  options = {"temperature": temperature, "num_samples": num_samples, "entropy_weight": entropy_weight}
  terms = dropmax_qp_terms(key, logits, retain_logits, labels, **options)
  return terms["nll"] + terms["kl"] + terms["neg_entropy"]


@key_first
def dropmax_qp_terms(
  key: Key,
  logits: ArrayLike,
  retain_logits: ArrayLike,
  labels: ArrayLike,
  *,
  temperature: ArrayLike = 0.1,
  num_samples: int = 1,
  entropy_weight: float | Array = 1.0,
) -> dict[str, Array]:
  r"""Computes the three terms of DropMax with q = p, per example.

  .. math::
    \text{nll} &= -\frac1S \sum_s \log p(y_t \mid x, z^{(s)}), \quad z_t = 1, \quad
      z_k \sim \mathrm{Ber}(\rho_k) \text{ relaxed } (k \ne t) \\
    \text{kl} &= -\log \rho_t \\
    \mathrm{neg\_entropy} &= \gamma \sum_k \rho_k \log \rho_k + (1 - \rho_k) \log (1 - \rho_k)

  The likelihood trains the retain probabilities through the relaxed masks; in DropMax it does not. There is
  no residual branch and no auxiliary loss. Prediction is as in DropMax, `dropmax_log_probs`. If only the last
  two terms act, the target's retain logit `a` settles at `a = 1 / (gamma * sigmoid(a))`.

  Args:
    key: draws the masks.
    logits: `o`, `[..., classes]`, floating.
    retain_logits: logits of the retain probabilities `rho`, same shape.
    labels: `[...]`, integer class indices in `[0, classes)`. Any other index gives NaN, or is refused if it
      is known. Soft labels are refused: the mask fixes one class.
    temperature: temperature of the relaxation, positive.
    num_samples: `S`, masks per example.
    entropy_weight: `gamma`. The paper's values are not confirmed; the default is DropMax's.

  Returns:
    `nll`, `kl` and `neg_entropy`, weighted, each `[...]` in nats, float32 or wider.

  Raises:
    TypeError: if the logits are not floating, `labels` not integer or `key` not a typed key.
    ValueError: if shapes differ or an option is out of range.

  Example:
    >>> o = ph = jnp.zeros((4, 10))
    >>> terms = dropmax_qp_terms(jax.random.key(0), o, ph, jnp.zeros(4, int))
    >>> {name: round(float(term[0]), 3) for name, term in terms.items() if name != "nll"}
    {'kl': 0.693, 'neg_entropy': -6.931}

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `DropMax (q = p)`; its poster.
  """
  logits = check_wide(logits, "logits")
  prior = check_wide(retain_logits, "retain_logits", shape=logits.shape)
  labels = check_labels(labels, logits)
  check_range(entropy_weight, "entropy_weight")
  log_mask = dropmax_log_mask(key, prior, labels, temperature=temperature, num_samples=num_samples)
  is_target = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
  return {
    "nll": masked_nll(logits, log_mask, labels),
    "kl": jnp.where(is_target, jax.nn.softplus(-prior), 0).sum(axis=-1),
    "neg_entropy": entropy_weight * bernoulli_neg_entropy(prior).sum(axis=-1),
  }
