"""Sharpness-aware minimisation that also closes the gap between the loss and the loss uphill."""

from __future__ import annotations

import jax
import optax
from jax.typing import ArrayLike

from jaxreg._checks import check_range
from jaxreg._leaves import wide
from jaxreg._sharding import partitioned
from jaxreg.optim._masked import train_only
from jaxreg.optim._sam import GradFn, check_second, gradient_at
from jaxreg.optim._trust_region import as_updates, check_transform, steepest
from jaxreg.typing import Mask


def gsam(
  inner: optax.GradientTransformation,
  *,
  rho: ArrayLike = 0.05,
  weight: ArrayLike = 0.4,
  trained: Mask | None = None,
) -> optax.GradientTransformationExtraArgs:
  r"""Runs an optimizer with the gradient uphill, less a share of the part of the gradient orthogonal to it.

  .. math:: \Delta = \operatorname{inner}\bigl(g_p - \alpha\, g_\perp\bigr), \qquad
    g_p = \nabla L(w + \rho\, g / \|g\|), \qquad
    g_\perp = g - \frac{\langle g, g_p \rangle}{\|g_p\|^2}\, g_p, \qquad 0/0 = 0

  The orthogonal part leaves the loss uphill as it is, to first order. A step against it raises the loss at
  `w` itself, so the gap between the two losses, a measure of sharpness, falls. With `weight = 0` this is
  `sam`. The paper lets `rho` follow the learning rate:
  `optax.inject_hyperparams(gsam, static_args="inner")(inner, rho=schedule)`. `update` takes `grad_fn` as
  `sam` does, with the same conditions, and `all_params` in `optax.masked` and `optax.partition`.

  Args:
    inner, trained: as in `sam`.
    rho: length of the perturbation, at least 0.
    weight: `alpha`, the share, at least 0; the default is ours, to be searched.

  Returns:
    An Optax transform whose `update` needs `params` and `grad_fn`.

  Example:
    >>> loss = lambda w: 0.5 * jnp.sum(jnp.array([1.0, 4.0]) * w**2)
    >>> tx, w = gsam(optax.sgd(0.1), rho=0.0, weight=1.0), jnp.array([1.0, 0.0])
    >>> tx.update(jax.grad(loss)(w), tx.init(w), w, grad_fn=lambda w: jnp.array([0.0, 1.0]))[0]
    Array([ 0.1, -0.1], dtype=float32)

  References:
    Zhuang et al., `Surrogate Gap Minimization Improves Sharpness-Aware Training`, 2022, Algorithm 1.
  """
  check_transform(inner)
  check_range(rho, "rho", low=0)
  check_range(weight, "weight", low=0)
  tx = optax.with_extra_args_support(inner)

  def update(updates, state, params=None, *, grad_fn: GradFn | None = None, **extra_args):
    grad_fn = check_second(params, grad_fn, extra_args)
    first = jax.tree.map(wide, updates)
    second = gradient_at(steepest(first, "global", "l2"), first, params, grad_fn, rho)
    unit = steepest(second, "global", "l2")
    along = partitioned(optax.tree.vdot, first, unit, kept=slice(0))

    def less(p, g, u):
      return p - weight * (g - along * u)

    combined = as_updates(jax.tree.map(less, second, first, unit), updates)
    return tx.update(combined, state, params, **extra_args)

  return train_only(optax.GradientTransformationExtraArgs(tx.init, update), trained)
