"""Terms that compare predictions: of a teacher, of other noise, of other views of an example."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_logits, check_option, per_class
from jaxreg._where import only_where
from jaxreg.typing import Array


@only_where()
def consistency(logits: ArrayLike, other_logits: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes the mean squared difference of two predictions: the Pi-model's and mean teacher's extra term.

  .. math:: \ell = \frac1K \sum_k (p_k - q_k)^2

  The term is unsupervised: it needs no labels. In the Pi-model both predictions come from the same parameters
  under different noise and augmentation, and gradient goes to both. A teacher gets no gradient: its
  parameters are not trained, as with `averaging.ema_update`; otherwise pass
  `jax.lax.stop_gradient(other_logits)`. Both papers raise the term's weight slowly from 0 while the
  predictions are still poor.

  Args:
    logits: logits of `p`, `[..., classes]`, floating.
    other_logits: logits of `q`, same shape.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in [0, 2 / classes], float32 or wider.

  Example:
    >>> consistency(jnp.array([[1e3, 0.0]]), jnp.array([[0.0, 0.0]]))  # a certain and a uniform prediction
    Array([0.25], dtype=float32)

  References:
    Laine and Aila, `Temporal Ensembling for Semi-Supervised Learning`, 2017.
    Tarvainen and Valpola, `Mean teachers are better role models`, 2017.
  """
  logits = check_logits(logits, "logits")
  other_logits = check_logits(other_logits, "other_logits", shape=logits.shape)
  return jnp.square(jax.nn.softmax(logits) - jax.nn.softmax(other_logits)).mean(axis=-1)


@only_where()
def r_drop(logits: ArrayLike, other_logits: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes the symmetric divergence of two predictions.

  .. math:: \tfrac12 \mathrm{KL}(p \| q) + \tfrac12 \mathrm{KL}(q \| p)
    = \tfrac12 \sum_k (p_k - q_k) (\log p_k - \log q_k)

  Add this term, with a weight, to the loss of both passes. Gradient goes to both predictions; for a teacher,
  stop the gradient of one.

  Args:
    logits, other_logits, where: as in `consistency`; -inf excludes a class.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> r_drop(jnp.array([[jnp.log(3.0), 0.0]]), jnp.array([[0.0, jnp.log(3.0)]]))  # log(3) / 2
    Array([0.54930615], dtype=float32)

  References:
    Liang et al., `R-Drop: Regularized Dropout for Neural Networks`, 2021.
  """
  logits = check_logits(logits, "logits")
  p = jax.nn.log_softmax(logits)
  q = jax.nn.log_softmax(check_logits(other_logits, "other_logits", shape=logits.shape))
  # Two predictions agree on a class that both exclude.
  gap = jnp.where(jnp.maximum(p, q) == -jnp.inf, 0, p - q)
  return 0.5 * ((jnp.exp(p) - jnp.exp(q)) * gap).sum(axis=-1)


@only_where(end=-2)
def jensen_shannon(logits: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes the Jensen-Shannon divergence of the predictions for several views.

  .. math:: \frac1n \sum_{i=1}^n \mathrm{KL}(p_i \| m), \qquad m = \frac1n \sum_{i=1}^n p_i

  AugMix adds 12 times this term, for an image and two views of it by `augment.augmix`, to the cross-entropy
  of the image. Gradient goes to all predictions.

  Args:
    logits: logits or log-probabilities of each view, `[..., views, classes]`, floating; -inf excludes a
      class.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in [0, log(views)], float32 or wider.

  Example:
    >>> jensen_shannon(jnp.log(jnp.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]))).round(4)  # log(2) / 2
    Array(0.3466, dtype=float32)

  References:
    Hendrycks et al., `AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty`, 2020,
    section 3.
  """
  if jnp.ndim(logits) < 2:
    raise ValueError(f"logits must be [..., views, classes], got {jnp.shape(logits)}")
  log_p = jax.nn.log_softmax(check_logits(logits, "logits"))
  # A class that a view excludes adds nothing to its divergence, and has no gradient there.
  excluded = log_p == -jnp.inf
  finite = jnp.where(excluded.all(axis=-2, keepdims=True), 0, log_p)
  log_mean = jax.nn.logsumexp(finite, axis=-2, keepdims=True) - jnp.log(log_p.shape[-2])
  log_p = jnp.where(excluded, 0, log_p)
  terms = jnp.where(excluded, 0, jnp.exp(log_p) * (log_p - log_mean))
  return terms.sum(axis=-1).mean(axis=-1)


@only_where()
def distillation(
  logits: ArrayLike,
  teacher_logits: ArrayLike,
  *,
  temperature: ArrayLike = 4.0,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the divergence of a student from its teacher at a temperature, times the temperature squared.

  .. math:: \ell = T^2 \, \mathrm{KL}(p \| q), \qquad
    p = \operatorname{softmax}(v / T), \quad q = \operatorname{softmax}(z / T)

  The gradient in `z` is `T (q - p)`. Without the factor it would fall as `1 / T**2`, and the balance with a
  loss of the labels would depend on the temperature. At high temperatures the term is half the variance over
  the classes of `z - v`. The paper's objective mixes the term with the labels' loss:
  `(1 - a) * softmax_cross_entropy(logits, labels) + a * distillation(logits, teacher_logits)`. At
  temperature 1 the term is `softmax_cross_entropy` for the soft labels `p`, less their entropy.

  Args:
    logits: the student's logits `z`, `[..., classes]`, floating; log-probabilities work too.
    teacher_logits: the teacher's logits `v`, same shape; the teacher gets no gradient.
    temperature: `T` > 0, a scalar or `[...]`; the paper uses 1 to 20, and lower ones for small students.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> distillation(jnp.array([[0.0, 0.0]]), jnp.array([[2 * jnp.log(3.0), 0.0]]), temperature=2.0)
    Array([0.5232483], dtype=float32)

  References:
    Hinton, Vinyals and Dean, `Distilling the Knowledge in a Neural Network`, 2015, section 2.
  """
  logits = check_logits(logits, "logits")
  teacher = jax.lax.stop_gradient(check_logits(teacher_logits, "teacher_logits", shape=logits.shape))
  check_option(temperature, "temperature", logits.shape[:-1], low=0, open_low=True)
  t = per_class(temperature, logits.dtype)
  log_p, log_q = jax.nn.log_softmax(teacher / t), jax.nn.log_softmax(logits / t)
  # A class that the teacher excludes does not count, even if the student excludes it.
  gap = jnp.where(jnp.isneginf(log_p), 0, log_p - log_q)
  return jnp.asarray(temperature, logits.dtype) ** 2 * (jnp.exp(log_p) * gap).sum(axis=-1)
