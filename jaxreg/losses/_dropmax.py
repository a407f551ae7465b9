"""DropMax: a softmax over a random subset of the classes, with retain probabilities that depend on the input.

Everything is in logit space. The names and the paper's symbols: `logits` o, `retain_logits` (the prior, rho =
sigmoid), `residual_logits` r, and `posterior_logits`, by default `stop_gradient(retain_logits) +
residual_logits` (g = sigmoid). Heads, masks, predictions and diagnostics have files of their own.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_labels, check_logits, check_option
from jaxreg._dropmax_masks import dropmax_log_mask
from jaxreg._labels import is_target_of
from jaxreg._where import only_where
from jaxreg.losses._softmax import softmax_cross_entropy
from jaxreg.typing import Array, Key


@only_where()
def dropmax_terms(
  key: Key,
  logits: ArrayLike,
  retain_logits: ArrayLike,
  residual_logits: ArrayLike,
  labels: ArrayLike,
  *,
  posterior_logits: ArrayLike | None = None,
  temperature: ArrayLike = 0.1,
  num_samples: int = 1,
  kl_weight: float | Array = 1.0,
  entropy_weight: float | Array = 1.0,
  auxiliary_weight: float | Array = 1.0,
  class_reduction: Literal["sum", "mean"] = "sum",
  where: ArrayLike | None = None,
) -> dict[str, Array]:
  """Computes the four terms of `dropmax`, which has their formulas; their sum is the loss.

  Args:
    key, logits, retain_logits, residual_logits, labels: as in `dropmax`, and so are the options.

  Returns:
    `nll`, `kl`, `neg_entropy` and `auxiliary`, weighted, each `[...]` in nats, float32 or wider.

  Example:
    >>> o = ph = rh = jnp.zeros((4, 10))
    >>> terms = dropmax_terms(jax.random.key(0), o, ph, rh, jnp.zeros(4, int))
    >>> {name: round(float(term[0]), 3) for name, term in terms.items() if name != "nll"}
    {'kl': 0.693, 'neg_entropy': -6.931, 'auxiliary': 6.931}
  """
  logits, prior, residual, posterior, labels = check_arguments(
    logits, retain_logits, residual_logits, posterior_logits, labels
  )
  check_choice(class_reduction, "class_reduction", ("sum", "mean"))
  for name, weight in dict(kl=kl_weight, entropy=entropy_weight, auxiliary=auxiliary_weight).items():
    check_option(weight, f"{name}_weight", labels.shape, low=0)

  log_mask = dropmax_log_mask(key, posterior, labels, temperature=temperature, num_samples=num_samples)
  is_target = is_target_of(labels, logits)
  divergence = jnp.where(is_target, jax.nn.softplus(-prior), _bernoulli_kl(posterior, prior))
  over_classes = jnp.sum if class_reduction == "sum" else jnp.mean
  auxiliary = jnp.asarray(optax.losses.sigmoid_binary_cross_entropy(residual, is_target))
  return {
    "nll": masked_nll(logits, log_mask, labels),
    "kl": kl_weight * divergence.sum(axis=-1),
    "neg_entropy": entropy_weight * over_classes(bernoulli_neg_entropy(prior), axis=-1),
    "auxiliary": auxiliary_weight * over_classes(auxiliary, axis=-1),
  }


def dropmax(
  key: Key,
  logits: ArrayLike,
  retain_logits: ArrayLike,
  residual_logits: ArrayLike,
  labels: ArrayLike,
  *,
  posterior_logits: ArrayLike | None = None,
  temperature: ArrayLike = 0.1,
  num_samples: int = 1,
  kl_weight: float | Array = 1.0,
  entropy_weight: float | Array = 1.0,
  auxiliary_weight: float | Array = 1.0,
  class_reduction: Literal["sum", "mean"] = "sum",
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the DropMax loss, the sum of the terms that `dropmax_terms` returns one by one.

  .. math::
    \text{nll} &= -\frac1S \sum_s \log p(y_t \mid x, z^{(s)}), \quad z_t = 1, \quad z \sim q(z \mid x, y) \\
    \text{kl} &= -\log \rho_t + \sum_{k \ne t} \mathrm{KL}(\mathrm{Ber}(g_k) \,\|\, \mathrm{Ber}(\rho_k)) \\
    \mathrm{neg\_entropy} &= \sum_k \rho_k \log \rho_k + (1 - \rho_k) \log (1 - \rho_k) \\
    \text{auxiliary} &= -\sum_k y_k \log \sigma(r_k) + (1 - y_k) \log (1 - \sigma(r_k))

  Here `t` is the label's class, `y` its one-hot vector and `S` the number of masks `z`. The masks are
  relaxed; the KL is the analytic one between Bernoulli variables. The entropy is maximised; the paper prints
  Eq. 13 without its minus signs, as its author confirmed. The loss is normally negative late in training: the
  entropy term has the floor `-log 2` per class.

  Args:
    key: for the masks.
    logits: `o`, `[..., classes]`, floating.
    retain_logits: logits of the retain probabilities `rho` of `p(z | x)`, same shape.
    residual_logits: `r`, which the posterior adds to `retain_logits`, same shape.
    labels: `[...]`, integer; soft labels are refused: the mask fixes one class.
    posterior_logits: logits of `g`, by default `stop_gradient(retain_logits) + residual_logits`.
    temperature: temperature of the relaxation, positive; a scalar or `[...]`.
    num_samples: `S`, masks per example.
    kl_weight, entropy_weight, auxiliary_weight: weights of the terms, scalars or `[...]`, at least 0; 1 in
      the paper.
    class_reduction: `"mean"` divides the entropy and auxiliary sums by the number of classes (not in the
      paper). With hundreds of classes the sums outweigh the likelihood.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> o = ph = rh = jnp.zeros((4, 10))
    >>> dropmax(jax.random.key(0), o, ph, rh, jnp.zeros(4, int)).shape
    (4,)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018: the model Eq. 5, the auxiliary loss Eq. 11,
    the entropy Eq. 13; the sums and weights as in the released code.
  """
  terms = dropmax_terms(
    key,
    logits,
    retain_logits,
    residual_logits,
    labels,
    posterior_logits=posterior_logits,
    temperature=temperature,
    num_samples=num_samples,
    kl_weight=kl_weight,
    entropy_weight=entropy_weight,
    auxiliary_weight=auxiliary_weight,
    class_reduction=class_reduction,
    where=where,
  )
  return terms["nll"] + terms["kl"] + terms["neg_entropy"] + terms["auxiliary"]


def check_arguments(
  logits: ArrayLike,
  retain_logits: ArrayLike,
  residual_logits: ArrayLike,
  posterior_logits: ArrayLike | None,
  labels: ArrayLike,
) -> tuple[Array, Array, Array, Array, Array]:
  """Checks the arrays and returns them, with the default for a missing posterior."""
  logits = check_logits(logits, "logits")
  prior = check_logits(retain_logits, "retain_logits", shape=logits.shape)
  residual = check_logits(residual_logits, "residual_logits", shape=logits.shape)
  if posterior_logits is None:
    posterior = jax.lax.stop_gradient(prior) + residual
  else:
    posterior = check_logits(posterior_logits, "posterior_logits", shape=logits.shape)
  return logits, prior, residual, posterior, check_labels(labels, logits)


def _bernoulli_kl(q_logits: Array, p_logits: Array) -> Array:
  # Uses the log-probabilities of both outcomes. The gradient of log(1 - sigmoid(x)) dies from x = 17 on.
  log = jax.nn.log_sigmoid
  on, off = jax.nn.sigmoid(q_logits), jax.nn.sigmoid(-q_logits)
  return on * (log(q_logits) - log(p_logits)) + off * (log(-q_logits) - log(-p_logits))


def bernoulli_neg_entropy(logits: Array) -> Array:
  log, sigmoid = jax.nn.log_sigmoid, jax.nn.sigmoid
  return sigmoid(logits) * log(logits) + sigmoid(-logits) * log(-logits)


def masked_nll(logits: Array, log_mask: Array, labels: Array) -> Array:
  """Computes the mean cross-entropy under the masks of `dropmax_log_mask`."""
  labels = jnp.broadcast_to(labels, (len(log_mask), *labels.shape))
  return softmax_cross_entropy(logits[None] + log_mask, labels).mean(axis=0)
