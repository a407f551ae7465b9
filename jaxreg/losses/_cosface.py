"""Softmax of cosines with a margin for the label: CosFace and ArcFace."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_labels, check_logits, check_option, check_wide, per_class
from jaxreg._labels import is_target_of
from jaxreg._scaled import norm, unit_length
from jaxreg._sharding import sharding_like
from jaxreg._where import only_where
from jaxreg.losses._softmax import margins_of, softmax_cross_entropy, softmax_log_probs
from jaxreg.typing import Array


@only_where(shared=("kernel",))
def cosface(
  features: ArrayLike,
  kernel: ArrayLike,
  labels: ArrayLike,
  *,
  margin: ArrayLike = 0.35,
  scale: ArrayLike = 64.0,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes CosFace: the cross-entropy of cosines, with the label's cosine lowered by a margin.

  .. math:: \ell = -\log \frac{e^{s (\cos\theta_t - m)}}
    {e^{s (\cos\theta_t - m)} + \sum_{k \ne t} e^{s \cos\theta_k}}, \qquad
    \cos\theta_k = \frac{x^\top W_k}{\|x\| \|W_k\|}

  The cosines are between features and classes. Predict with `cosine_log_probs`, which has no margin.

  Args:
    features: `x`, `[..., features]`, floating.
    kernel: `W`, `[features, classes]`, floating.
    labels: `[...]`, integer; soft labels are refused: the margin belongs to one class.
    margin: `m`, a scalar or `[...]`, at least 0; 0 is the normalised softmax.
    scale: `s`, a scalar or `[...]`, above 0.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in nats, float32 or wider. Zero features have cosines of 0 and no gradient.

  Example:
    >>> cosface(jnp.array([[2.0, 0.0]]), 3 * jnp.eye(2), jnp.array([0]), margin=1.0)  # cosines 1 - 1 and 0
    Array([0.6931472], dtype=float32)

  References:
    Wang et al., `CosFace: Large Margin Cosine Loss for Deep Face Recognition`, 2018.
  """
  cosines, _, _, labels = _angles(features, kernel, labels)
  margin = _option(margin, "margin", cosines)
  scale = _option(scale, "scale", cosines, open_low=True)
  # The margin is added last: less a large one, the label's cosine would have no digits left.
  margins, _ = margins_of(check_logits(scale * cosines), labels)
  return jax.nn.softplus(
    jax.nn.logsumexp(margins, axis=-1) + jnp.broadcast_to(scale * margin, (*cosines.shape[:-1], 1))[..., 0]
  )


@only_where(shared=("kernel",))
def arcface(
  features: ArrayLike,
  kernel: ArrayLike,
  labels: ArrayLike,
  *,
  margin: ArrayLike = 0.5,
  scale: ArrayLike = 64.0,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes ArcFace: the cross-entropy of cosines, with the label's angle widened by a margin.

  .. math:: \ell = -\log \frac{e^{s \psi(\theta_t)}}{e^{s \psi(\theta_t)} + \sum_{k \ne t} e^{s \cos\theta_k}}

  .. math:: \psi(\theta) = \begin{cases} \cos(\theta + m) & \theta + m \le \pi \\
    -2 - \cos(\theta + m) & \theta + m > \pi \end{cases}

  The cosines are between features and classes. The second case is not in the paper: without it, a larger
  angle beyond `pi - m` would lower the loss.

  Args:
    features, kernel, labels, scale, where: as in `cosface`.
    margin: `m`, a scalar or `[...]`, in radians, in [0, pi]; 0 is the normalised softmax.

  Returns:
    `[...]`, in nats, float32 or wider. Zero features have `psi` and cosines of 0 and no gradient.

  Example:
    >>> right = jax.jit(lambda x: arcface(x, 3 * jnp.eye(2), jnp.array([0]), margin=jnp.pi / 2))
    >>> right(jnp.array([[2.0, 0.0]])).round(4)  # cosines 0 and 0
    Array([0.6931], dtype=float32)

  References:
    Deng et al., `ArcFace: Additive Angular Margin Loss for Deep Face Recognition`, 2019, Eq. 3.
  """
  cosines, sine, target, labels = _angles(features, kernel, labels)
  margin = _option(margin, "margin", cosines, high=math.pi)
  scale = _option(scale, "scale", cosines, open_low=True)
  widened = jnp.cos(margin) * cosines - jnp.sin(margin) * sine
  widened = jnp.where(cosines >= -jnp.cos(margin), widened, -2 - widened)
  return softmax_cross_entropy(scale * jnp.where(target, widened, cosines), labels)


def cosine_log_probs(features: ArrayLike, kernel: ArrayLike, *, scale: ArrayLike = 64.0) -> Array:
  r"""Computes log-probabilities from cosines without a margin: the prediction for `cosface` and `arcface`.

  .. math:: \log p_k = s \cos\theta_k - \log \sum_j e^{s \cos\theta_j}

  Args:
    features, kernel, scale: as in `cosface`.

  Returns:
    `[..., classes]`, float32 or wider.

  Example:
    >>> cosine_log_probs(jnp.array([2.0, 0.0]), 3 * jnp.eye(2), scale=1.0).round(2)  # cosines 1 and 0
    Array([-0.31, -1.31], dtype=float32)

  References:
    Wang et al., `CosFace: Large Margin Cosine Loss for Deep Face Recognition`, 2018, Eq. 2.
  """
  cosines = _cosines(features, kernel)[0]
  return softmax_log_probs(_option(scale, "scale", cosines, open_low=True) * cosines)


def _option(value: ArrayLike, name: str, cosines: Array, **bounds: Any) -> Array:
  check_option(value, name, cosines.shape[:-1], low=0, **bounds)
  return per_class(value, cosines.dtype)


def _cosines(features: ArrayLike, kernel: ArrayLike) -> tuple[Array, Array, Array]:
  """Returns the cosines `[..., classes]`, and features and classes `[classes, features]` of length 1."""
  features, kernel = check_wide(features, "features"), check_wide(kernel, "kernel")
  if features.ndim == 0:
    raise ValueError("features must be [..., features], got a scalar")
  if kernel.ndim != 2 or kernel.shape[0] != features.shape[-1]:
    raise ValueError(f"kernel must be [{features.shape[-1]}, classes], got {kernel.shape}")
  # A zero vector has no direction and gets no gradient.
  x, w = unit_length(features, (-1,)), unit_length(kernel.T, (-1,))
  return jnp.matmul(x, w.T, precision=jax.lax.Precision.HIGHEST), x, w


def _angles(features: ArrayLike, kernel: ArrayLike, labels: ArrayLike) -> tuple[Array, Array, Array, Array]:
  """Returns cosines `[..., classes]`, the label's sine `[..., 1]`, the label's mask, and the labels."""
  features = check_wide(features, "features")
  cosines, x, w = _cosines(features, kernel)
  labels = check_labels(labels, features, "features", num_classes=w.shape[0])
  at_label = w.at[labels].get(mode="fill", out_sharding=sharding_like(x))
  # The sine is the length of the orthogonal part. sqrt(1 - cos^2) has no slope at 0 and rounds below it.
  across = x - (x * at_label).sum(axis=-1, keepdims=True) * at_label
  return cosines, norm(across, (-1,)), is_target_of(labels, cosines), labels
