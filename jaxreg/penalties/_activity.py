"""Penalties on the activations of units, and a measure of their sparsity."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_batched, check_floating, check_option
from jaxreg._divergence import kl_terms
from jaxreg._leaves import absolute, wide
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


def sparsity(activations: ArrayLike, *, tol: float = 0.0) -> Array:
  """Computes the fraction of each example's activations that are zero, up to `tol`.

  Args:
    activations: `[batch, ...]`, floating.
    tol: the largest absolute value that counts as zero.

  Returns:
    `[batch]`, float32 or wider, in [0, 1].

  Example:
    >>> sparsity(jnp.array([[0.0, 2.0, 0.0, 0.0, -3.0, 0.0]])).round(4)
    Array([0.6667], dtype=float32)
  """
  activations = wide(check_batched(activations, "activations"))
  check_option(tol, "tol", (), low=0)
  zero = (jnp.abs(activations) <= tol).astype(activations.dtype)
  return zero.mean(axis=tuple(range(1, activations.ndim)))


def _mean(activations: Array, weights: ArrayLike | None, axis_name: str | None) -> Array:
  leading = activations.shape[:-1]
  if weights is None:
    weights = jnp.ones(leading, activations.dtype)
  weights = check_floating(weights, "weights", shape=leading).astype(activations.dtype)[..., None]
  # An example of weight 0 may hold anything.
  kept = jnp.where(weights != 0, activations, 0)
  axes = tuple(range(len(leading)))
  total, count = (weights * kept).sum(axis=axes), weights.sum(axis=axes)
  if axis_name is not None:
    total, count = jax.lax.psum((total, count), axis_name)
  return total / jnp.where(count > 0, count, 1)
