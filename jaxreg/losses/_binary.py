"""Losses of yes-or-no labels, with one logit per label: binary and multi-label classification.

Every loss is `y f(z) + (1 - y) g(z)`, so the loss of a soft label is the mean over both answers. A loss of
the same name for classes has the same value for the two logits 0 and z.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_array, check_option, check_wide, known_values
from jaxreg._where import only_where
from jaxreg.typing import Array


@only_where(end=None)
def binary_cross_entropy(
  logits: ArrayLike, labels: ArrayLike, *, smoothing: ArrayLike = 0.0, where: ArrayLike | None = None
) -> Array:
  r"""Computes the cross-entropy of each label with the sigmoid of its logit.

  .. math:: \ell = -y' \log \sigma(z) - (1 - y') \log \sigma(-z), \qquad y' = (1 - \epsilon) y + \epsilon / 2

  Args:
    logits: `z`, `[...]`, floating, one per label, such as `[batch, labels]`. An infinite logit counts as
      1e30.
    labels: `y`, `[...]`, 0 or 1, as integers, bools or floats, or a probability; a label outside [0, 1] gives
      NaN, or an error where its value is known.
    smoothing: `eps`, a scalar or `[...]`, in [0, 1].
    where: `[...]`, bool: which labels count.

  Returns:
    `[...]`, in nats, float32 or wider: a value for each label.

  Example:
    >>> binary_cross_entropy(jnp.zeros((1, 2)), jnp.array([[1, 0]]))
    Array([[0.6931472, 0.6931472]], dtype=float32)

  References:
    Goodfellow, Bengio and Courville, `Deep Learning`, 2016, section 6.2.2.2.
  """
  logits, labels = _checked(logits, labels)
  check_option(smoothing, "smoothing", logits.shape, low=0, high=1)
  share = jnp.asarray(smoothing, logits.dtype)
  return _mean((1 - share) * labels + share / 2, _surprise(logits), _surprise(-logits))


@only_where(end=None)
def binary_focal(
  logits: ArrayLike,
  labels: ArrayLike,
  *,
  gamma: ArrayLike = 2.0,
  alpha: ArrayLike | None = 0.25,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the focal loss of each label: the cross-entropy, scaled down as the model becomes confident.

  .. math:: \ell = -\alpha\, y\, \sigma(-z)^\gamma \log \sigma(z)
    - (1 - \alpha) (1 - y)\, \sigma(z)^\gamma \log \sigma(-z)

  `optax.losses.sigmoid_focal_loss` is the same for labels of 0 and 1.

  Args:
    logits, labels, where: as in `binary_cross_entropy`.
    gamma: a scalar or `[...]`, at least 0.
    alpha: the weight of the answer yes, a scalar or `[...]`, in [0, 1]; None for weights of 1.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> binary_focal(jnp.array([0.0]), jnp.array([1]), gamma=1.0, alpha=None)  # log(2) / 2
    Array([0.3465736], dtype=float32)

  References:
    Lin et al., `Focal Loss for Dense Object Detection`, 2017, Eq. 5.
  """
  logits, labels = _checked(logits, labels)
  check_option(gamma, "gamma", logits.shape, low=0)
  check_option(0.5 if alpha is None else alpha, "alpha", logits.shape, low=0, high=1)
  yes, no = _surprise(logits), _surprise(-logits)
  share = jnp.asarray(0.5 if alpha is None else alpha, logits.dtype)
  loss = _mean(labels, share * _focus(no, gamma) * yes, (1 - share) * _focus(yes, gamma) * no)
  return 2 * loss if alpha is None else loss


@only_where(end=None)
def asymmetric(
  logits: ArrayLike,
  labels: ArrayLike,
  *,
  gamma_yes: ArrayLike = 0.0,
  gamma_no: ArrayLike = 4.0,
  margin: ArrayLike = 0.05,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the asymmetric loss of each label: the many absent labels count less, or not at all.

  .. math:: \ell = -y\, (1 - p)^{\gamma_+} \log p - (1 - y)\, p_m^{\gamma_-} \log(1 - p_m), \qquad
    p = \sigma(z), \quad p_m = \max(p - m, 0)

  Args:
    logits, labels, where: as in `binary_cross_entropy`.
    gamma_yes, gamma_no: the focusing of present and absent labels, scalars or `[...]`, at least 0.
    margin: `m`, a scalar or `[...]`, in [0, 1): an absent label with a smaller probability has no loss.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> asymmetric(jnp.array([[0.0, 0.0, -9.0]]), jnp.array([[1, 0, 0]])).round(4)
    Array([[0.6931, 0.0245, 0.    ]], dtype=float32)

  References:
    Ridnik et al., `Asymmetric Loss For Multi-Label Classification`, 2021, Eq. 7.
  """
  logits, labels = _checked(logits, labels)
  check_option(gamma_yes, "gamma_yes", logits.shape, low=0)
  check_option(gamma_no, "gamma_no", logits.shape, low=0)
  check_option(margin, "margin", logits.shape, low=0, high=1, open_high=True)
  yes, no = _surprise(logits), _surprise(-logits)
  margin = jnp.asarray(margin, logits.dtype)
  shifted = jnp.exp(-yes) - margin  # the derivative of the sigmoid has no digits for large logits
  counts = shifted > 0
  # The double where keeps out the infinite slopes of the logarithm and of small powers at 0.
  focus = jnp.exp(jnp.asarray(gamma_no, logits.dtype) * jnp.log(jnp.where(counts, shifted, 0.5)))
  log_margin = jnp.where(margin > 0, jnp.log(jnp.where(margin > 0, margin, 1)), -jnp.inf)
  absent = jnp.where(counts, -focus * jnp.logaddexp(-no, log_margin), 0)
  return _mean(labels, _focus(no, gamma_yes) * yes, absent)


@only_where(end=None)
def binary_poly_loss(
  logits: ArrayLike, labels: ArrayLike, *, epsilon: ArrayLike = 2.0, where: ArrayLike | None = None
) -> Array:
  r"""Computes Poly-1 of each label: the cross-entropy plus a multiple of the probability of being wrong.

  .. math:: \ell = y\, (-\log \sigma(z) + \epsilon\, \sigma(-z))
    + (1 - y) (-\log \sigma(-z) + \epsilon\, \sigma(z))

  Args:
    logits, labels, where: as in `binary_cross_entropy`.
    epsilon: a scalar or `[...]`, at least -1; 0 is the cross-entropy.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> binary_poly_loss(jnp.array([0.0]), jnp.array([1]), epsilon=1.0)  # log(2) + 1/2
    Array([1.1931472], dtype=float32)

  References:
    Leng et al., `PolyLoss: A Polynomial Expansion Perspective of Classification Loss Functions`, 2022.
  """
  logits, labels = _checked(logits, labels)
  check_option(epsilon, "epsilon", logits.shape, low=-1)

  def penalised(z: Array) -> Array:
    return _surprise(z) + epsilon * jax.nn.sigmoid(-z)

  return _mean(labels, penalised(logits), penalised(-logits))


@only_where(end=None)
def binary_confidence_penalty(
  logits: ArrayLike, labels: ArrayLike, *, weight: ArrayLike = 0.1, where: ArrayLike | None = None
) -> Array:
  r"""Computes the cross-entropy of each label minus the weighted entropy of its prediction.

  .. math:: \ell = -y \log p - (1 - y) \log(1 - p) - \beta H(p), \qquad p = \sigma(z)

  Args:
    logits, labels, where: as in `binary_cross_entropy`.
    weight: `beta`, a scalar or `[...]`, at least 0.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> binary_confidence_penalty(jnp.array([0.0]), jnp.array([1]), weight=1.0)
    Array([0.], dtype=float32)

  References:
    Pereyra et al., `Regularizing Neural Networks by Penalizing Confident Output Distributions`, 2017,
    section 3.
  """
  logits, labels = _checked(logits, labels)
  check_option(weight, "weight", logits.shape, low=0)
  yes, no = _surprise(logits), _surprise(-logits)
  # The exponentials keep the derivative of the sigmoid for large logits.
  return _mean(labels, yes, no) - weight * (jnp.exp(-yes) * yes + jnp.exp(-no) * no)


def _logits(x: ArrayLike, name: str, **shape: tuple[int, ...]) -> Array:
  """Returns floating logits, made finite because infinity times the probability 0 is NaN."""
  x = check_wide(x, name, **shape)
  return jnp.where(jnp.isinf(x), jnp.sign(x) * 1e30, x)


def _checked(logits: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
  """Returns logits and labels, both floating; a traced label outside [0, 1] is NaN."""
  logits = _logits(logits, "logits")
  raw_labels, labels = labels, check_array(labels, "labels")
  if labels.shape != logits.shape:
    raise ValueError(f"labels must have shape {logits.shape}, one for each logit, got {labels.shape}")
  known = known_values(raw_labels)
  if known is not None and known.size and (known.min() < 0 or known.max() > 1):
    got = known.min() if known.min() < 0 else known.max()
    raise ValueError(f"labels must lie in [0, 1], got {got}; where=labels >= 0 leaves out unknown ones")
  wide = labels.astype(jnp.promote_types(labels.dtype, logits.dtype))
  return logits, jnp.where((wide < 0) | (wide > 1), jnp.nan, wide)


def _surprise(logits: Array) -> Array:
  """Computes `-log sigmoid(logits)`, the loss of the answer yes; minus the logits give that of no."""
  return jax.nn.softplus(-logits)


def _focus(surprise: Array, gamma: ArrayLike) -> Array:
  """Computes the probability to the power `gamma`, from minus its logarithm."""
  return jnp.exp(-jnp.asarray(gamma, surprise.dtype) * surprise)


def _mean(share: Array, yes: Array, no: Array) -> Array:
  """Computes the mean of the losses of both answers."""
  return share * yes + (1 - share) * no
