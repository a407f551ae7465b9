"""Penalties on the activations of units."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_batched, check_floating, check_option
from jaxreg._divergence import kl_terms
from jaxreg._leaves import absolute, wide
from jaxreg._sharding import gathered
from jaxreg.typing import Array


def l1_activity(activations: ArrayLike) -> Array:
  r"""Computes the sum of each example's absolute activations.

  .. math:: \Omega(h) = \|h\|_1 = \sum_i |h_i|

  There is one value per example, so the mean does not depend on the batch size. The gradient at 0 is 0.

  Args:
    activations: `[batch, ...]`, floating; for several layers add the values.

  Returns:
    `[batch]`, float32 or wider.

  Example:
    >>> l1_activity(jnp.array([[1.0, -2.0], [0.0, 0.5]]))
    Array([3. , 0.5], dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, sparse representations.
  """
  activations = wide(check_batched(activations, "activations"))
  return absolute(activations).sum(axis=tuple(range(1, activations.ndim)))


def kl_sparsity(
  activations: ArrayLike,
  *,
  target: ArrayLike = 0.05,
  weights: ArrayLike | None = None,
  axis_name: str | None = None,
) -> Array:
  r"""Computes the KL divergence of each unit's mean activation from a small target.

  .. math:: \mathrm{KL}(\rho \,\|\, \hat\rho_j) = \rho \log \frac{\rho}{\hat\rho_j}
    + (1 - \rho) \log \frac{1 - \rho}{1 - \hat\rho_j}, \qquad \hat\rho_j = \text{mean over examples of } h_j

  There is one value per unit, not per example: the mean comes before the divergence. So the mean over parts
  of a batch gives another penalty than the mean over the whole batch; with `axis_name` the mean is over all
  devices.

  Args:
    activations: `[..., units]`, floating, in [0, 1] like a sigmoid's outputs; the mean is over all axes but
      the last.
    target: `rho` in (0, 1), a scalar or `[units]`.
    weights: `[...]`, one per example; 0 for padding.
    axis_name: name of a mapped axis that the mean also covers.

  Returns:
    `[units]` in nats, float32 or wider. For a unit that is always 0 or 1 the value is finite and the gradient
    leads away from there.

  Example:
    >>> kl_sparsity(jnp.array([[0.05, 0.9], [0.05, 0.7]])).round(4)
    Array([0.    , 1.3416], dtype=float32)

  References:
    Ng, `Sparse autoencoder`, CS294A lecture notes, 2011, section 3.
  """
  activations = wide(check_batched(activations, "activations"))
  check_option(target, "target", activations.shape[-1:], low=0, high=1, open_low=True, open_high=True)
  mean = _mean(activations, weights, axis_name)
  # Clips one step of the dtype inside [0, 1]; beyond that the value is constant and the gradient continues.
  eps = jnp.finfo(mean.dtype).eps
  mean += jax.lax.stop_gradient(jnp.clip(mean, eps, 1 - eps) - mean)
  target = jnp.broadcast_to(jnp.asarray(target, mean.dtype), mean.shape)
  gap = target - mean
  yes = jnp.log(target), jnp.log(mean)
  no = jnp.log1p(-target), jnp.log1p(-mean)
  # The logarithm of a quotient near 1 keeps its digits; the difference of the logarithms would not.
  near = jnp.abs(gap) < 0.5 * jnp.minimum(target, 1 - target)
  gap = jnp.where(near, gap, 0)
  ratios = -jnp.log1p(-gap / target), -jnp.log1p(gap / (1 - target))
  terms = [
    kl_terms(log_p, log_q, jnp.where(near, ratio, log_p - log_q))
    for (log_p, log_q), ratio in zip((yes, no), ratios, strict=True)
  ]
  return terms[0] + terms[1]


def activity_variance(
  activations: ArrayLike,
  *,
  target: ArrayLike = 1.0,
  eps: float = 1e-4,
  weights: ArrayLike | None = None,
  axis_name: str | None = None,
) -> Array:
  r"""Computes how far the standard deviation of each unit over the batch is below a target.

  .. math:: \max\Bigl(0,\ \gamma - \sqrt{\operatorname{Var}(h_j) + \epsilon}\Bigr), \qquad
    \operatorname{Var}(h_j) = \frac{1}{n - 1} \sum_i (h_{ij} - \bar h_j)^2

  It keeps units from collapsing to a constant. There is one value per unit; the source's term is their mean.
  A batch statistic does not divide into parts; with `axis_name` it is over all devices.

  Args:
    activations: `[..., units]`, floating; the variance is over all axes but the last.
    target: `gamma` >= 0, a scalar or `[units]`.
    eps: added to the variance, > 0.
    weights, axis_name: as in `kl_sparsity`; `n` is the sum of the weights.

  Returns:
    `[units]`, float32 or wider.

  Example:
    >>> activity_variance(jnp.array([[0.0, 3.0], [1.0, 7.0]]), eps=1e-8).round(4)
    Array([0.2929, 0.    ], dtype=float32)

  References:
    Bardes, Ponce and LeCun, `VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised
    Learning`, 2022, Eqs. 1 and 2.
  """
  activations = wide(check_batched(activations, "activations"))
  check_option(target, "target", activations.shape[-1:], low=0)
  check_option(eps, "eps", (), low=0, open_low=True)
  centred, roots, scale = _centred(activations, weights, axis_name)
  variance = _total(jnp.square(roots * centred).sum(axis=0), axis_name) * scale
  gap = jnp.asarray(target, variance.dtype) - jnp.sqrt(variance + eps)
  return jax.nn.relu(gap)


def activity_covariance(
  activations: ArrayLike, *, weights: ArrayLike | None = None, axis_name: str | None = None
) -> Array:
  r"""Computes the sum of each unit's squared covariances with the other units over the batch.

  .. math:: \sum_{k \ne j} C_{jk}^2, \qquad C = \frac{1}{n - 1} \sum_i (h_i - \bar h)(h_i - \bar h)^\top

  It decorrelates the units. There is one value per unit; the source's term is their mean.

  Args:
    activations: `[..., units]`, floating; the covariance is over all axes but the last.
    weights, axis_name: as in `kl_sparsity`; `n` is the sum of the weights.

  Returns:
    `[units]`, float32 or wider.

  Example:
    >>> activity_covariance(jnp.array([[0.0, 3.0], [1.0, 7.0]]))  # the covariance is 2
    Array([4., 4.], dtype=float32)

  References:
    Bardes, Ponce and LeCun, `VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised
    Learning`, 2022, Eqs. 3 and 4.
    Cogswell et al., `Reducing Overfitting in Deep Networks by Decorrelating Representations`, 2016.
  """
  activations = wide(check_batched(activations, "activations"))
  centred, roots, scale = _centred(activations, weights, axis_name)
  rows = gathered(roots * centred)
  covariance = _total(jnp.matmul(rows.T, rows, precision="highest"), axis_name) * scale
  # Subtracting the squared variances after the sum would leave nothing of small covariances.
  return jnp.square(jnp.where(jnp.eye(len(covariance), dtype=bool), 0, covariance)).sum(axis=0)


def _centred(
  activations: Array, weights: ArrayLike | None, axis_name: str | None
) -> tuple[Array, Array, Array]:
  """Returns deviations from the mean `[n, units]`, roots of the weights `[n, 1]`, and `1 / (n - 1)`."""
  weights = _weights(activations, weights)
  mean = _mean(activations, weights[..., 0], axis_name)
  mean = mean.reshape((1,) * (activations.ndim - 1) + mean.shape)
  centred = jnp.where(weights != 0, activations - mean, 0)
  freedom = _total(weights.sum(), axis_name) - 1
  scale = jnp.where(freedom > 0, 1 / jnp.where(freedom > 0, freedom, 1), 0)
  return centred.reshape(-1, centred.shape[-1]), jnp.sqrt(weights).reshape(-1, 1), scale


def _weights(activations: Array, weights: ArrayLike | None) -> Array:
  """Returns the weights `[..., 1]`, by default 1."""
  leading = activations.shape[:-1]
  if weights is None:
    weights = jnp.ones(leading, activations.dtype)
  return check_floating(weights, "weights", shape=leading).astype(activations.dtype)[..., None]


def _total(x: Array, axis_name: str | None) -> Array:
  return x if axis_name is None else jax.lax.psum(x, axis_name)


def _mean(activations: Array, weights: ArrayLike | None, axis_name: str | None) -> Array:
  weights = _weights(activations, weights)
  # An example of weight 0 may hold anything.
  kept = jnp.where(weights != 0, activations, 0)
  axes = tuple(range(activations.ndim - 1))
  total, count = (weights * kept).sum(axis=axes), weights.sum(axis=axes)
  total, count = _total(total, axis_name), _total(count, axis_name)
  return total / jnp.where(count > 0, count, 1)
