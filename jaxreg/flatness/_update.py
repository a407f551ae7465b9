"""The loss along an update, and the noise of the gradient that it comes from."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._analyses import full_precision, mean_loss, widened
from jaxreg._checks import check_array, check_range
from jaxreg.typing import Array, Batch, Key, LossFn, Params, PyTree

MAX_DOUBLINGS = 60  # of the first step, in either direction


class UpdateSharpness(NamedTuple):
  """The result of `update_sharpness`."""

  critical: Array
  directional: Array
  normalized: Array
  evaluations: Array


@full_precision
def update_sharpness(
  loss_fn: LossFn,
  params: Params,
  update: Params,
  batch: Batch,
  *,
  key: Key | None = None,
  first_step: ArrayLike = 1.0,
  tol: float = 1 / 16,
) -> UpdateSharpness:
  r"""Measures the curvature of the loss along an update, from a few evaluations of the loss.

  .. math:: \lambda_c = 2 / \eta_c, \quad \eta_c = \min \{ \eta > 0 : L(\theta + \eta u) > L(\theta) \},
    \qquad \lambda_{dir} = \frac{u^\top H u}{- g^\top u}, \qquad \lambda_{norm} = \frac{u^\top H u}{u^\top u}

  `u` is what an optimizer adds to the parameters, so the units of the first two are updates: at 2 the update
  leaves the loss as it was, above 2 it raises it. In the source `u` is divided by the learning rate: divide
  both by the learning rate for its units, where 2 becomes 2 over the learning rate. On a quadratic the
  critical equals the directional sharpness. The third does not depend on the length of the update, and is at
  most the largest eigenvalue of the Hessian.

  The search doubles or halves the step until the loss crosses its value, and then bisects. It sees the first
  sign that it meets, not small bumps in between.

  Args:
    loss_fn, params, batch, key: as in `hvp`; `loss_fn` must allow second derivatives in forward mode.
    update: a tree like `params`.
    first_step: the step that the search tries first, in updates.
    tol: relative width of the interval that holds the critical step; the source's is 1/16.

  Returns:
    A NamedTuple of scalars: `critical`, 0 if the loss falls at all steps and infinite if it rises at all;
    `directional`, negative where the curvature or the descent is; `normalized`; `evaluations`, how many
    losses the search computed.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 * (batch * params**2).sum()
    >>> curvatures, params = jnp.array([8.0, 1.0]), jnp.array([1.0, 0.0])
    >>> update = -0.2 * curvatures * params  # of gradient descent: 0.2 is below 2 / 8
    >>> update_sharpness(loss, params, update, curvatures).directional.round(3)
    Array(1.6, dtype=float32)

  References:
    Kalra et al., `A Scalable Measure of Loss Landscape Curvature for Analyzing the Training Dynamics of
    LLMs`, 2026, definitions 2.1 and 2.2.
    Pan and Li, `Toward Understanding Why Adam Converges Faster Than SGD for Transformers`, 2023.
  """
  check_range(tol, "tol", low=0, high=1, open_low=True, open_high=True)
  check_range(first_step, "first_step", low=0, open_low=True)
  params, update = widened(params), widened(update)
  if jax.tree.structure(update) != jax.tree.structure(params):
    raise ValueError("update must be a tree like params")
  for leaf, change in zip(jax.tree.leaves(params), jax.tree.leaves(update), strict=True):
    if jnp.shape(leaf) != jnp.shape(change):
      raise ValueError(f"update must have the shapes of params, {jnp.shape(leaf)}, got {jnp.shape(change)}")
  return _update_sharpness(loss_fn, params, update, widened(batch), key, first_step, tol)


@partial(jax.jit, static_argnums=0)
def _update_sharpness(loss_fn, params, update, batch, key, first_step, tol):
  def profile(step: Array) -> Array:
    moved = jax.tree.map(lambda w, u: w + step.astype(u.dtype) * u, params, update)
    return mean_loss(loss_fn, moved, batch, key)

  def value_and_slope(step: Array) -> tuple[Array, Array]:
    return jax.jvp(profile, (step,), (jnp.ones_like(step),))

  zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(update)))
  (loss, slope), (_, curvature) = jax.jvp(value_and_slope, (zero,), (jnp.ones_like(zero),))
  square = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(update))
  step, evaluations = _critical_step(profile, loss, jnp.asarray(first_step, zero.dtype), tol)
  # Rounding hides the rise of small steps.
  rises_at_once = (slope > 0) | ((slope == 0) & (curvature > 0))
  critical = jnp.where(rises_at_once, jnp.inf, 2 / step)
  return UpdateSharpness(critical, curvature / -slope, curvature / square, evaluations)


def _critical_step(profile, loss: Array, start: Array, tol: float) -> tuple[Array, Array]:
  """Finds the smallest step that raises the loss, and how many losses were computed."""

  def rises(step: Array) -> Array:
    return ~(profile(step) <= loss)  # NaN counts as a rise

  def is_open(state):
    low, high, count = state
    return ((low == 0) | jnp.isinf(high)) & (count < MAX_DOUBLINGS)

  def double_or_halve(state):
    low, high, count = state
    step = jnp.where(jnp.isinf(high), jnp.where(low == 0, start, 2 * low), high / 2)
    raised = rises(step)
    return jnp.where(raised, low, step), jnp.where(raised, step, high), count + 1

  def is_wide(state):
    low, high, _ = state
    return (low > 0) & jnp.isfinite(high) & (high - low > tol * high) & (low < (low + high) / 2)

  def bisect(state):
    low, high, count = state
    middle = (low + high) / 2
    raised = rises(middle)
    return jnp.where(raised, low, middle), jnp.where(raised, middle, high), count + 1

  state = (jnp.zeros_like(start), jnp.full_like(start, jnp.inf), jnp.int32(0))
  state = jax.lax.while_loop(is_open, double_or_halve, state)
  low, high, count = jax.lax.while_loop(is_wide, bisect, state)
  # Without a step that lowers the loss, the smallest one that raises it is 0.
  return jnp.where(low == 0, 0, (low + high) / 2), count


class NoiseScale(NamedTuple):
  """The result of `gradient_noise_scale`."""

  noise_scale: Array
  trace: Array
  squared_norm: Array


def gradient_noise_scale(gradients: PyTree, counts: ArrayLike) -> NoiseScale:
  r"""Estimates the batch size at which the noise of the gradient is as large as the gradient.

  .. math:: B_{simple} = \frac{\operatorname{tr} \Sigma}{\|G\|^2}, \qquad
    \widehat{\operatorname{tr} \Sigma} = \frac{n}{k - 1} \sum_i w_i \|g_i - \bar g\|^2, \quad
    \widehat{\|G\|^2} = \|\bar g\|^2 - \frac 1n \widehat{\operatorname{tr} \Sigma}, \quad w_i = n_i / n

  The gradients :math:`g_i` are means over `k` disjoint batches of :math:`n_i` examples, and
  :math:`\bar g = \sum_i w_i g_i` is the gradient of all `n`. A batch with :math:`n_i = 0` does not count in
  `k`. Both estimates are unbiased, and with batches of one size they are the source's estimates from the two
  batch sizes `n / k` and `n`. Their quotient is biased: average both over steps before you divide.

  Args:
    gradients: a tree whose leaves are `[k, ...]`, a gradient in each row; `k` is at least 2.
    counts: `[k]`, how many examples each gradient is a mean of.

  Returns:
    A NamedTuple of scalars, float32 or wider: `noise_scale`, `trace` of the covariance of the gradient of one
    example, and `squared_norm` of the true gradient, which may come out negative. All are NaN if fewer than
    two batches have examples.

  Example:
    >>> gradient_noise_scale(jnp.array([[2.0, 1.0], [4.0, 1.0]]), jnp.array([8, 8])).trace
    Array(16., dtype=float32)

  References:
    McCandlish et al., `An Empirical Model of Large-Batch Training`, 2018, Eq. 2.9 and appendix A.1.
  """
  leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(widened(gradients))]
  counts = check_array(counts, "counts")
  number = counts.shape[0] if counts.ndim == 1 else 0
  if number < 2 or not leaves or any(leaf.ndim == 0 or leaf.shape[0] != number for leaf in leaves):
    shapes = [leaf.shape for leaf in leaves]
    raise ValueError(
      f"gradients and counts must have a row for each of k >= 2 batches, got {shapes}, {counts.shape}"
    )
  counts = counts.astype(jnp.result_type(*leaves))
  total, num_batches = counts.sum(), (counts > 0).sum().astype(counts.dtype)
  deviation = square = jnp.zeros((), counts.dtype)
  for leaf in leaves:
    # A batch in which nothing counts has no mean.
    rows = jnp.where(counts[:, None] > 0, leaf.reshape(number, -1), 0)
    mean = jnp.matmul(counts, rows, precision="highest") / total
    # Of deviations: a difference of squared norms would lose the digits of a small noise.
    deviation += (counts / total * jnp.square(rows - mean[None]).sum(axis=1)).sum()
    square += jnp.square(mean).sum()
  # One batch says nothing about the noise.
  trace = jnp.where(num_batches > 1, total * deviation / (num_batches - 1), jnp.nan)
  squared_norm = square - trace / total
  return NoiseScale(trace / squared_norm, trace, squared_norm)
