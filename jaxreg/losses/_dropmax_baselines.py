"""The baselines of the DropMax paper; sparsemax, one more, is in `_sparsemax`."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg._checks import (
  check_hard_or_soft_labels,
  check_key,
  check_labels,
  check_logits,
  check_option,
  key_first,
  per_class,
)
from jaxreg._sharding import partitioned, sharding_like
from jaxreg._where import only_where
from jaxreg.losses._dropmax import bernoulli_neg_entropy
from jaxreg.losses._dropmax_masks import dropmax_log_mask, dropmax_masked_logits, gated_logits, masked_nll
from jaxreg.losses._labels import is_soft, is_target_of
from jaxreg.losses._softmax import softmax_cross_entropy
from jaxreg.losses._terms import sum_of
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
  """The three terms of `dropmax_qp` by name."""
  logits = check_logits(logits, "logits")
  prior = check_logits(retain_logits, "retain_logits", shape=logits.shape)
  labels = check_labels(labels, logits)
  check_option(entropy_weight, "entropy_weight", labels.shape)
  log_mask = dropmax_log_mask(key, prior, labels, temperature=temperature, num_samples=num_samples)
  return {
    "nll": masked_nll(logits, log_mask, labels),
    "kl": jnp.where(is_target_of(labels, logits), jax.nn.softplus(-prior), 0).sum(axis=-1),
    "neg_entropy": entropy_weight * bernoulli_neg_entropy(prior).sum(axis=-1),
  }


@key_first
@sum_of(dropmax_qp_terms)
def dropmax_qp() -> None:
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
    entropy_weight: `gamma`, a scalar or `[...]`. The paper's values are not confirmed; the default is
      DropMax's.

  Returns:
    `[...]`, in nats, float32 or wider; negative late in training, as in DropMax.

  Example:
    >>> dropmax_qp(jax.random.key(0), jnp.zeros((4, 10)), jnp.zeros((4, 10)), jnp.zeros(4, int)).shape
    (4,)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `DropMax (q = p)`; its poster.
  """


@only_where()
def deterministic_attention(
  logits: ArrayLike, retain_logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None
) -> Array:
  r"""Computes the cross-entropy of a softmax whose terms are multiplied by retain probabilities.

  .. math:: \ell = -\log \frac{(\rho_t + \epsilon) e^{o_t}}{\sum_k (\rho_k + \epsilon) e^{o_k}}, \qquad
    \rho = \sigma(\mathrm{retain\_logits}), \quad \epsilon = 10^{-20}

  Nothing is sampled. Prediction uses the same softmax, `dropmax_log_probs`. The eps is DropMax's, so that
  both are one function; it changes no digit unless a `rho` is below 1e-13.

  Args:
    logits, labels, where: as in `softmax_cross_entropy`.
    retain_logits: logits of `rho`, `[..., classes]`: the output of an affine layer on the features of the
      logits.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> deterministic_attention(jnp.zeros((1, 2)), jnp.array([[99.0, 0.0]]), jnp.array([0]))
    Array([0.4054651], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `Deterministic Attention`.
  """
  logits = check_logits(logits, "logits")
  prior = check_logits(retain_logits, "retain_logits", shape=logits.shape)
  return softmax_cross_entropy(gated_logits(logits, prior), labels)


@only_where()
def deterministic_dropmax_terms(
  logits: ArrayLike,
  retain_logits: ArrayLike,
  labels: ArrayLike,
  *,
  auxiliary_weight: float | Array = 1.0,
  where: ArrayLike | None = None,
) -> dict[str, Array]:
  """The two terms of `deterministic_dropmax` by name."""
  logits = check_logits(logits, "logits")
  prior = check_logits(retain_logits, "retain_logits", shape=logits.shape)
  labels = check_hard_or_soft_labels(labels, logits)
  check_option(auxiliary_weight, "auxiliary_weight", logits.shape[:-1])
  target = labels if is_soft(labels) else is_target_of(labels, logits)
  auxiliary = jnp.asarray(optax.losses.sigmoid_binary_cross_entropy(prior, target))
  return {
    "nll": deterministic_attention(logits, prior, labels),
    "auxiliary": auxiliary_weight * auxiliary.sum(axis=-1),
  }


@sum_of(deterministic_dropmax_terms)
def deterministic_dropmax() -> None:
  r"""Computes the deterministic DropMax loss, the sum of two terms.

  .. math::
    \text{nll} &= -\log \frac{(\rho_t + \epsilon) e^{o_t}}{\sum_k (\rho_k + \epsilon) e^{o_k}} \\
    \text{auxiliary} &= -\sum_k y_k \log \rho_k + (1 - y_k) \log (1 - \rho_k)

  Prediction uses the softmax of the first term, `dropmax_log_probs`. This is a baseline of the DropMax paper.
  Its definition is not confirmed, and neither is the weight, which is DropMax's here.

  Args:
    logits, retain_logits, labels, where: as in `deterministic_attention`.
    auxiliary_weight: weight of the second term, a scalar or `[...]`.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> deterministic_dropmax(jnp.zeros((4, 10)), jnp.zeros((4, 10)), jnp.zeros(4, int)).round(3)
    Array([9.234, 9.234, 9.234, 9.234], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `Deterministic DropMax`.
  """


@key_first
@only_where()
def random_dropmax(
  key: Key, logits: ArrayLike, labels: ArrayLike, *, rate: ArrayLike = 0.6, where: ArrayLike | None = None
) -> Array:
  r"""Computes the cross-entropy of a softmax that drops wrong classes at random.

  .. math:: \ell = -\log \frac{(1 + \epsilon) e^{o_t}}{\sum_k (z_k + \epsilon) e^{o_k}}, \quad z_t = 1, \quad
    z_k \sim \mathrm{Ber}(1 - \mathrm{rate}) \ (k \ne t), \quad \epsilon = 10^{-20}

  Prediction is the plain softmax, `softmax_log_probs`.

  A baseline of the DropMax paper, whose poster calls it `Class Dropout`. That the target is kept and that
  prediction is the plain softmax is not confirmed for the paper; a 2018 reproduction report implements it so.
  Its retain probabilities are not confirmed either: the default is ours.

  Args:
    key: one draw for the whole batch.
    logits: `o`, `[..., classes]`, floating.
    labels: `[...]`, integer; soft labels are refused: one class is always kept.
    rate: probability of dropping a wrong class, a scalar or `[...]`, in [0, 1]; may be traced.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in nats, float32 or wider; the cross-entropy at a `rate` of 0, nothing but the eps at 1.

  Example:
    >>> random_dropmax(jax.random.key(0), jnp.zeros((1, 4)), jnp.array([1]), rate=0.0)
    Array([1.3862944], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `Random DropMax`.
  """
  logits = check_logits(logits, "logits")
  labels = check_labels(labels, logits)
  check_option(rate, "rate", labels.shape, low=0, high=1)
  keep = 1.0 - per_class(rate, jnp.float32)
  kept = jax.random.bernoulli(check_key(key), keep, logits.shape, out_sharding=sharding_like(logits))
  # A label that is no class has no target; its loss is NaN.
  return softmax_cross_entropy(dropmax_masked_logits(logits, kept | is_target_of(labels, logits)), labels)


@key_first
@only_where()
def sampled_softmax(
  key: Key,
  logits: ArrayLike,
  labels: ArrayLike,
  *,
  rate: ArrayLike = 0.6,
  correct_proposal: bool = False,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the cross-entropy of a softmax over the target and a uniform random subset of the others.

  .. math:: \ell = -\log \frac{e^{o_t}}{e^{o_t} + \sum_{k \in C} e^{o_k} / \pi}

  The subset `C` is drawn afresh for each example, without replacement: `(1 - rate) * classes` of the other
  classes, rounded, at least 1 and at most all. `pi` is 1 by default. With `correct_proposal` it is the
  probability that a class is among those drawn, their number over `classes - 1`. The denominator is then an
  unbiased estimate of the whole softmax's. Prediction is the plain softmax, `softmax_log_probs`.

  This is a baseline of the DropMax paper. It is not confirmed that its subsets are uniform, that they keep
  the target, or how large they are. The default rate is ours. Jean et al. correct all classes of their
  subset, target included, which changes nothing with a uniform proposal; here only sampled classes are
  corrected.

  Args:
    key, logits, labels, where: as in `random_dropmax`.
    rate: share of the classes to leave out, in [0, 1].
    correct_proposal: whether the logits of the drawn classes are corrected.

  Returns:
    `[...]`, in nats, float32 or wider; exactly `softmax_cross_entropy` at a rate of 0.

  Example:
    >>> sampled_softmax(jax.random.key(0), jnp.zeros((1, 10)), jnp.array([3]), rate=0.6)
    Array([1.609438], dtype=float32)

  References:
    Jean et al., `On Using Very Large Target Vocabulary for Neural Machine Translation`, 2015, section 3.
    Bengio and Senecal, `Quick Training of Probabilistic Neural Nets by Importance Sampling`, 2003.
  """
  logits = check_logits(logits, "logits")
  labels = check_labels(labels, logits)
  check_option(rate, "rate", (), low=0, high=1)
  others = logits.shape[-1] - 1
  traced = isinstance(rate, Tracer)
  wanted: Any = (1 - rate) * logits.shape[-1]
  number = jnp.clip(jnp.round(wanted), 1, others) if traced else min(max(round(float(wanted)), 1), others)
  noise = jax.random.uniform(check_key(key), logits.shape, jnp.float32, out_sharding=sharding_like(logits))
  is_target = is_target_of(labels, logits)
  # The target comes first. Ranks break ties, which a threshold would let pass together.
  ranks = lambda x: jnp.argsort(jnp.argsort(x, axis=-1), axis=-1)
  rank = partitioned(ranks, jnp.where(is_target, -1, noise))
  if correct_proposal:
    logits = jnp.where(is_target, logits, logits - (jnp.log if traced else math.log)(number / others))
  return softmax_cross_entropy(jnp.where(rank <= number, logits, jnp.finfo(logits.dtype).min / 2), labels)
