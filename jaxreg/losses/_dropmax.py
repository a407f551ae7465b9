"""DropMax: a softmax over a random subset of the classes, with retain probabilities that depend on the input.

Everything is in logit space. The names and the paper's symbols: `logits` o, `retain_logits` (the prior, rho =
sigmoid), `residual_logits` r, and `posterior_logits`, by default `stop_gradient(retain_logits) +
residual_logits` (g = sigmoid).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg.losses._softmax import softmax_cross_entropy, softmax_log_probs
from jaxreg.typing import (
  Array,
  Key,
  check_count,
  check_floating,
  check_key,
  check_labels,
  check_range,
  check_wide,
  key_first,
)

# The paper's eps = 1e-20 keeps the softmax defined when all classes are dropped. Every dtype can represent
# its logarithm; 1e-20 itself is 0 in float16.
LOG_EPS = math.log(1e-20)


def dropmax_heads(
  features: ArrayLike,
  classifier: Mapping[str, ArrayLike],
  prior: Mapping[str, ArrayLike],
  residual: Mapping[str, ArrayLike],
  *,
  stop_gradient: Literal["activations", "parameters"] = "activations",
  branch_only: bool = False,
) -> dict[str, Array]:
  r"""Computes DropMax's three affine heads on the last features: the arguments of `dropmax`.

  .. math:: o = W^\top h + b, \quad \rho = \sigma(W_\theta^\top h + b_\theta), \quad
    g = \sigma(\overline{W_\theta}^\top h + \overline{b_\theta} + W_\phi^\top h + b_\phi)

  A bar marks a value without gradient. The released code stops the whole prior pre-activation
  (`"activations"`). The poster bars only its parameters (`"parameters"`), so that the likelihood still
  reaches `h` through them.

  Args:
    features: `h`, `[..., features]`, floating.
    classifier: `kernel` `[features, classes]` and `bias` `[classes]` of the logits.
    prior: the same for the retain probabilities, `W_theta`, `b_theta`.
    residual: the same for the residual of the posterior, `W_phi`, `b_phi`.
    stop_gradient: which variant, as above.
    branch_only: the prior and the residual train only their own weights, not the features (an ablation, not
      in the paper).

  Returns:
    `logits`, `retain_logits`, `residual_logits`, and for `"parameters"` also `posterior_logits`; each
    `[..., classes]`.

  Raises:
    TypeError: if an array is not floating.
    ValueError: for another `stop_gradient`, or shapes that do not fit.

  Example:
    >>> head = {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}
    >>> outputs = dropmax_heads(jnp.ones((5, 2)), head, head, head)
    >>> dropmax(jax.random.key(0), labels=jnp.zeros(5, int), **outputs).shape
    (5,)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, section 4 and the released code.
  """
  features = check_floating(features, "features")
  if stop_gradient not in ("activations", "parameters"):
    raise ValueError(f"stop_gradient must be 'activations' or 'parameters', got {stop_gradient!r}")
  branch = jax.lax.stop_gradient(features) if branch_only else features
  outputs = {
    "logits": _affine(features, classifier, "classifier"),
    "retain_logits": _affine(branch, prior, "prior"),
    "residual_logits": _affine(branch, residual, "residual"),
  }
  if stop_gradient == "parameters":
    barred = _affine(branch, jax.lax.stop_gradient(prior), "prior")
    outputs["posterior_logits"] = barred + outputs["residual_logits"]
  return outputs


@key_first
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
) -> Array:
  r"""Computes the DropMax loss: the sum of `dropmax_terms`, which has the formula of each term.

  .. math:: -\frac1S \sum_s \log p(y_t \mid x, z^{(s)}) + \mathrm{KL}(q \,\|\, p) - H(\rho)
    + \text{auxiliary}, \qquad z \sim q(z \mid x, y)

  The loss is normally negative late in training: the entropy term has the floor `-log 2` per class.

  Args:
    key: draws the masks.
    logits: `o`, `[..., classes]`, floating.
    retain_logits: logits of the retain probabilities `rho` of `p(z | x)`, same shape.
    residual_logits: `r`, which the posterior adds to `retain_logits`, same shape.
    labels: `[...]`, integer class indices in `[0, classes)`. Any other index gives NaN, or is refused if it
      is known. Soft labels are refused: the mask fixes one class.
    posterior_logits: logits of `g`, by default `stop_gradient(retain_logits) + residual_logits`.
    temperature: temperature of the relaxation, positive.
    num_samples: masks per example.
    kl_weight, entropy_weight, auxiliary_weight: weights of the terms; 1 in the paper.
    class_reduction: `"mean"` divides the entropy and auxiliary sums by the number of classes.

  Returns:
    `[...]`, in nats, float32 or wider.

  Raises:
    TypeError, ValueError: as `dropmax_terms`.

  Example:
    >>> o = ph = rh = jnp.zeros((4, 10))
    >>> dropmax(jax.random.key(0), o, ph, rh, jnp.zeros(4, int)).shape
    (4,)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, Eq. 5, 11 and 13.
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
  )
  return terms["nll"] + terms["kl"] + terms["neg_entropy"] + terms["auxiliary"]


@key_first
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
) -> dict[str, Array]:
  r"""Computes the four terms of the DropMax objective, per example.

  .. math::
    \text{nll} &= -\frac1S \sum_s \log p(y_t \mid x, z^{(s)}), \quad z_t = 1 \\
    \text{kl} &= -\log \rho_t + \sum_{k \ne t} \mathrm{KL}(\mathrm{Ber}(g_k) \,\|\, \mathrm{Ber}(\rho_k)) \\
    \mathrm{neg\_entropy} &= \sum_k \rho_k \log \rho_k + (1 - \rho_k) \log (1 - \rho_k) \\
    \text{auxiliary} &= -\sum_k y_k \log \sigma(r_k) + (1 - y_k) \log (1 - \sigma(r_k))

  The entropy is maximised; the paper prints Eq. 13 without its minus signs, as its author confirmed. The
  masks are relaxed; the KL is the analytic one between Bernoulli variables.

  Args:
    key: draws the masks.
    logits: `o`, `[..., classes]`, floating.
    retain_logits: logits of the retain probabilities `rho` of `p(z | x)`, same shape.
    residual_logits: `r`, which the posterior adds to `retain_logits`, same shape.
    labels: `[...]`, integer class indices in `[0, classes)`. Any other index gives NaN, or is refused if it
      is known. Soft labels are refused: the mask fixes one class.
    posterior_logits: logits of `g`, by default `stop_gradient(retain_logits) + residual_logits`.
    temperature: temperature of the relaxation, positive.
    num_samples: `S`, masks per example.
    kl_weight, entropy_weight, auxiliary_weight: 1 in the paper.
    class_reduction: `"mean"` divides the entropy and auxiliary sums by the number of classes (not in the
      paper). These sums grow with that number and drown the likelihood when there are hundreds of classes.

  Returns:
    `nll`, `kl`, `neg_entropy` and `auxiliary`, weighted, each `[...]` in nats, float32 or wider.

  Raises:
    TypeError: if the logits are not floating, `labels` not integer or `key` not a typed key.
    ValueError: if shapes differ or an option is out of range.

  Example:
    >>> o = ph = rh = jnp.zeros((4, 10))
    >>> terms = dropmax_terms(jax.random.key(0), o, ph, rh, jnp.zeros(4, int))
    >>> {name: round(float(term[0]), 3) for name, term in terms.items() if name != "nll"}
    {'kl': 0.693, 'neg_entropy': -6.931, 'auxiliary': 6.931}

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018: the model Eq. 5, the auxiliary loss Eq. 11,
    the entropy Eq. 13; the sums and weights as in the released code.
  """
  logits, prior, residual, posterior, labels = _check(
    logits, retain_logits, residual_logits, posterior_logits, labels
  )
  if class_reduction not in ("sum", "mean"):
    raise ValueError(f"class_reduction must be 'sum' or 'mean', got {class_reduction!r}")
  for name, weight in dict(kl=kl_weight, entropy=entropy_weight, auxiliary=auxiliary_weight).items():
    check_range(weight, f"{name}_weight")

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


@key_first
def dropmax_log_mask(
  key: Key,
  posterior_logits: ArrayLike,
  labels: ArrayLike,
  *,
  temperature: ArrayLike = 0.1,
  num_samples: int = 1,
) -> Array:
  r"""Samples the relaxed masks of training as `log(z + eps)`, with the target's mask fixed at 1.

  .. math:: z_k = \sigma\Bigl(\frac{\operatorname{logit} g_k + \operatorname{logit} u_k}{\tau}\Bigr), \quad
    u_k \sim U(0, 1); \qquad z_t = 1

  Args:
    key: one draw of `[num_samples, ..., classes]`.
    posterior_logits: `logit g`, `[..., classes]`, floating.
    labels: `[...]`, integer class indices in `[0, classes)`. Any other index gives NaN, or is refused if it
      is known. Soft labels are refused: the mask fixes one class.
    temperature: `tau`, positive.
    num_samples: masks per example.

  Returns:
    `[num_samples, ..., classes]`, from `log 1e-20` to 0; the target's entry is exactly 0 and carries no
    gradient.

  Raises:
    TypeError: if `posterior_logits` are not floating, `labels` not integer or `key` not a typed key.
    ValueError: if shapes do not fit, `temperature` is not positive or `num_samples` below 1.

  Example:
    >>> dropmax_log_mask(jax.random.key(0), jnp.array([[9.0, -99.0, 0.0]]), jnp.array([2]))[0].round()
    Array([[  0., -46.,   0.]], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, section 4.2.
    Maddison, Mnih and Teh, `The Concrete Distribution`, 2017, Eq. 17.
  """
  posterior = check_wide(posterior_logits, "posterior_logits")
  labels = check_labels(labels, posterior, "posterior_logits")
  check_range(temperature, "temperature", low=0, open_low=True)
  check_count(num_samples, "num_samples")
  noise = jax.random.logistic(check_key(key), (num_samples, *posterior.shape), posterior.dtype)
  log_mask = jnp.logaddexp(jax.nn.log_sigmoid((posterior[None] + noise) / temperature), LOG_EPS)
  return jnp.where(is_target_of(labels, posterior)[None], 0.0, log_mask)


@key_first
def dropmax_mask(key: Key, retain_logits: ArrayLike, *, num_samples: int = 1) -> Array:
  """Samples hard masks `z ~ Ber(rho)` for all classes, as the generative model does.

  Args:
    key: one draw of `[num_samples, ..., classes]`.
    retain_logits: `[..., classes]`, floating.
    num_samples: masks per example.

  Returns:
    `[num_samples, ..., classes]`, bool.

  Raises:
    TypeError: if `retain_logits` are not floating or `key` not a typed key.
    ValueError: if `num_samples` is below 1.

  Example:
    >>> dropmax_mask(jax.random.key(0), jnp.array([99.0, -99.0]))
    Array([[ True, False]], dtype=bool)
  """
  prior = check_wide(retain_logits, "retain_logits")
  check_count(num_samples, "num_samples")
  keep_prob = jnp.broadcast_to(jax.nn.sigmoid(prior), (num_samples, *prior.shape))
  return jax.random.bernoulli(check_key(key), keep_prob)


def dropmax_masked_logits(logits: ArrayLike, mask: ArrayLike) -> Array:
  r"""Computes the logits whose softmax is the likelihood under a mask.

  .. math:: p(y_t = 1 \mid x, z) = \frac{(z_t + \epsilon) e^{o_t}}{\sum_k (z_k + \epsilon) e^{o_k}}

  If all masks are 0, or all are equal, this is the ordinary softmax.

  Args:
    logits: `o`, `[..., classes]`, floating.
    mask: `z`, bool or floating in [0, 1]; `mask` and `logits` broadcast with each other.

  Returns:
    `o + log(z + eps)`, in at least float32.

  Raises:
    TypeError: if `logits` are not floating, or `mask` neither bool nor floating.
    ValueError: if they do not broadcast.

  Example:
    >>> jax.nn.softmax(dropmax_masked_logits(jnp.zeros(4), jnp.array([1, 1, 0, 0], bool))).round(3)
    Array([0.5, 0.5, 0. , 0. ], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, Eq. 5.
  """
  logits = check_wide(logits, "logits")
  mask = jnp.asarray(mask)
  if not (mask.dtype == bool or jnp.issubdtype(mask.dtype, jnp.floating)):
    raise TypeError(f"mask must be bool or floating, got {mask.dtype}")
  try:
    logits, mask = jnp.broadcast_arrays(logits, mask.astype(logits.dtype))
  except ValueError:
    raise ValueError(f"mask must broadcast with logits {logits.shape}, got {mask.shape}") from None
  # Double where: otherwise the infinite derivative of log at 0 enters through the branch not taken.
  dropped = mask <= 0
  return logits + jnp.where(dropped, LOG_EPS, jnp.logaddexp(jnp.log(jnp.where(dropped, 1, mask)), LOG_EPS))


def dropmax_log_probs(logits: ArrayLike, retain_logits: ArrayLike) -> Array:
  r"""Predicts with the expected mask, as the released code does: no sampling, no label.

  .. math:: p(y_k = 1 \mid x) \propto (\rho_k + \epsilon)\, e^{o_k}

  Args:
    logits: `o`, `[..., classes]`, floating.
    retain_logits: logits of `rho`, same shape.

  Returns:
    Log-probabilities, `[..., classes]`, in at least float32.

  Raises:
    TypeError: if an argument is not floating.
    ValueError: if shapes differ.

  Example:
    >>> jnp.exp(dropmax_log_probs(jnp.zeros(2), jnp.array([-99.0, 99.0]))).round(3)
    Array([0., 1.], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, released code.
  """
  logits = check_wide(logits, "logits")
  prior = check_wide(retain_logits, "retain_logits", shape=logits.shape)
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

  Raises:
    TypeError: if an array is of the wrong type.
    ValueError: if shapes differ or `num_samples` is below 1.

  Example:
    >>> log_probs = dropmax_monte_carlo_log_probs(jax.random.key(0), jnp.zeros(3), jnp.full(3, 99.0))
    >>> jnp.exp(log_probs).round(3)
    Array([0.333, 0.333, 0.333], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix, figure 2 (b: with `labels`).
  """
  logits = check_wide(logits, "logits")
  prior = check_wide(retain_logits, "retain_logits", shape=logits.shape)
  mask = dropmax_mask(key, prior, num_samples=num_samples)
  masked = dropmax_masked_logits(logits, mask)
  if labels is not None:
    labels = check_labels(labels, logits)
    expected = gated_logits(logits, prior)
    masked = jnp.where(is_target_of(labels, logits)[None], expected[None], masked)
  return jax.nn.logsumexp(softmax_log_probs(masked), axis=0) - math.log(num_samples)


@key_first
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
  """Computes figures that tell a healthy DropMax run from one whose masks drop every wrong class.

  On memorised data the posterior drops every wrong class, the gradient of the likelihood vanishes and the
  classifier stops learning. Then `logit_grad_norm` and `kept_nontarget` go to 0 together.

  Args:
    key, logits, retain_logits, residual_logits, labels, posterior_logits, temperature, num_samples: as in
      `dropmax_terms`; the same key gives the masks of the loss.

  Returns:
    Per example, `[...]`: `retain_target` (rho_t), `retain_nontarget` (mean rho_k), `posterior_nontarget`
    (mean g_k), `kept_nontarget` (share of relaxed masks above 1/2, k != t), `logit_grad_norm` (L2 norm of the
    likelihood's gradient with respect to the logits).

  Raises:
    TypeError, ValueError: as `dropmax_terms`.

  Example:
    >>> o = ph = rh = jnp.zeros((1, 10))
    >>> float(dropmax_diagnostics(jax.random.key(0), o, ph, rh, jnp.zeros(1, int))["retain_target"][0])
    0.5
  """
  logits, prior, _, posterior, labels = _check(
    logits, retain_logits, residual_logits, posterior_logits, labels
  )
  log_mask = dropmax_log_mask(key, posterior, labels, temperature=temperature, num_samples=num_samples)
  is_target = is_target_of(labels, logits)
  others = lambda x: jnp.where(is_target, 0, x).sum(axis=-1) / max(logits.shape[-1] - 1, 1)
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


def _check(logits, retain_logits, residual_logits, posterior_logits, labels):
  logits = check_wide(logits, "logits")
  prior = check_wide(retain_logits, "retain_logits", shape=logits.shape)
  residual = check_wide(residual_logits, "residual_logits", shape=logits.shape)
  if posterior_logits is None:
    posterior = jax.lax.stop_gradient(prior) + residual
  else:
    posterior = check_wide(posterior_logits, "posterior_logits", shape=logits.shape)
  return logits, prior, residual, posterior, check_labels(labels, logits)


def is_target_of(labels: Array, logits: Array) -> Array:
  return jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)


def _affine(x: Array, head: Mapping[str, ArrayLike], name: str) -> Array:
  kernel = check_floating(head["kernel"], f"{name}['kernel']")
  if kernel.ndim != 2 or kernel.shape[0] != x.shape[-1]:
    raise ValueError(f"{name}['kernel'] must have shape ({x.shape[-1]}, classes), got {kernel.shape}")
  bias = check_floating(head["bias"], f"{name}['bias']", shape=kernel.shape[1:])
  y = x @ kernel
  return y + jnp.broadcast_to(bias, y.shape)


def gated_logits(logits: Array, prior: Array) -> Array:
  """`o + log(rho + eps)`: the logits under the expected mask."""
  return logits + jnp.logaddexp(jax.nn.log_sigmoid(prior), LOG_EPS)


def masked_nll(logits: Array, log_mask: Array, labels: Array) -> Array:
  samples = log_mask.shape[0]
  return softmax_cross_entropy(
    logits[None] + log_mask, jnp.broadcast_to(labels, (samples, *labels.shape))
  ).mean(axis=0)


def _bernoulli_kl(q_logits: Array, p_logits: Array) -> Array:
  # Uses the log-probabilities of both outcomes. The gradient of log(1 - sigmoid(x)) dies from x = 17 on.
  log = jax.nn.log_sigmoid
  on, off = jax.nn.sigmoid(q_logits), jax.nn.sigmoid(-q_logits)
  return on * (log(q_logits) - log(p_logits)) + off * (log(-q_logits) - log(-p_logits))


def bernoulli_neg_entropy(logits: Array) -> Array:
  log, sigmoid = jax.nn.log_sigmoid, jax.nn.sigmoid
  return sigmoid(logits) * log(logits) + sigmoid(-logits) * log(-logits)
