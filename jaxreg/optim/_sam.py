"""Sharpness-aware minimisation that survives a zero gradient, and its relatives ASAM and GSAM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._checks import check_choice, check_range
from jaxreg._leaves import wide
from jaxreg._sharding import partitioned
from jaxreg.optim._masked import on_whole, part, train_only, whole
from jaxreg.optim._trust_region import BLOCKS, as_updates, check_transform, on_floating, steepest
from jaxreg.typing import Mask, Params

GradFn = Callable[[Params], Any]


def sam(
  inner: optax.GradientTransformation,
  *,
  rho: ArrayLike = 0.05,
  blocks: str = "global",
  trained: Mask | None = None,
) -> optax.GradientTransformationExtraArgs:
  r"""Runs an optimizer with the gradient at a nearby point uphill: sharpness-aware minimisation.

  .. math:: \Delta = \operatorname{inner}\bigl(\nabla L(w + \rho\, g / \|g\|)\bigr), \qquad 0/0 = 0

  `update` takes the gradient at `w`, which gives the direction, and the function `grad_fn(params)`, which it
  calls once for the second gradient. If the first gradient is 0, the second is taken at `w` itself, so that
  nothing becomes NaN; `optax.contrib.sam` with `normalize` stays NaN from there on.

  With BatchNorm, return only the gradient from `grad_fn` and keep the statistics of the first pass.
  Statistics of the perturbed weights would count the batch a second time and belong to a network that is
  discarded. `grad_fn` must see the same batch and the same noise as the first gradient, and under `pmap` it
  must average over devices.

  `grad_fn` gets its parameters in at least float32: in bfloat16 a usual perturbation,
  `rho / sqrt(number of weights)` per weight, rounds away, and SAM would reduce to its inner optimizer. So
  `grad_fn` must not cast the parameters back before it uses them. The inner optimizer gets the second
  gradient in the dtypes of the first.

  Frozen parameters must not be perturbed: `trained` says which parameters are not frozen. In `optax.masked`
  and `optax.partition`, which hide a part of the parameters, give `update` also `all_params=params`, so that
  `grad_fn` gets the whole tree; the hidden parameters are not perturbed. Transforms before this one in a
  chain change the first gradient only.

  Args:
    inner: the optimizer that takes the step.
    rho: length of the perturbation, at least 0.
    blocks: which parameters are normalised together, as in `trust_region`; the paper uses `global`.
    trained: a mask of the parameters that are trained; the others are not perturbed, and their updates are 0.
      None for all.

  Returns:
    An Optax transform whose `update` needs `params` and `grad_fn`.

  Example:
    >>> loss = lambda w: 0.5 * jnp.sum(jnp.array([1.0, 4.0]) * w**2)
    >>> tx, w = sam(optax.sgd(0.1), rho=0.5), jnp.array([1.0, 0.0])
    >>> updates, state = tx.update(jax.grad(loss)(w), tx.init(w), w, grad_fn=jax.grad(loss))
    >>> updates
    Array([-0.15, -0.  ], dtype=float32)

    With a frozen backbone:

    >>> params = {"backbone": jnp.array(2.0), "head": jnp.array(3.0)}
    >>> slope = jax.grad(lambda params: params["backbone"] * params["head"] ** 2)
    >>> tx = sam(optax.sgd(0.5), rho=0.5, trained="head")
    >>> updates, state = tx.update(slope(params), tx.init(params), params, grad_fn=slope)
    >>> jax.tree.map(float, updates)
    {'backbone': 0.0, 'head': -7.0}

  References:
    Foret et al., `Sharpness-Aware Minimization for Efficiently Improving Generalization`, 2021, Eq. 2.
  """
  check_transform(inner)
  check_choice(blocks, "blocks", BLOCKS)
  check_range(rho, "rho", low=0)
  tx = optax.with_extra_args_support(inner)

  def update(updates, state, params=None, *, grad_fn: GradFn | None = None, **extra_args):
    grad_fn = _checked(params, grad_fn, extra_args)
    direction = steepest(jax.tree.map(wide, updates), blocks, "l2")
    second = _gradient_at(direction, updates, params, grad_fn, rho)
    return tx.update(second, state, params, **extra_args)

  return train_only(optax.GradientTransformationExtraArgs(tx.init, update), trained)


def asam(
  inner: optax.GradientTransformation,
  *,
  rho: ArrayLike = 0.5,
  eps: ArrayLike = 0.01,
  mask: Mask = paths.kernels_only,
  trained: Mask | None = None,
) -> optax.GradientTransformationExtraArgs:
  r"""Runs an optimizer with the gradient at a point uphill, where larger weights move farther.

  .. math:: \Delta = \operatorname{inner}\Bigl(\nabla L\Bigl(w + \rho\,
    \frac{T^2 g}{\|T g\|}\Bigr)\Bigr), \qquad T_i = |w_i| + \epsilon, \qquad 0/0 = 0

  If weights are rescaled without changing the function, as the two layers of a ReLU unit, then `sam` looks at
  another neighbourhood. With `eps = 0` this transform looks at the same one. `update` takes `grad_fn` as
  `sam` does, with the same conditions, and `all_params` in `optax.masked` and `optax.partition`.

  Args:
    inner, trained: as in `sam`.
    rho: length of the perturbation after division by `T`, at least 0.
    eps: at least 0; lets weights move that are nearly 0.
    mask: the parameters that have this `T`, by default kernels and embeddings; the others have `T = 1`, as in
      the paper's code.

  Returns:
    An Optax transform whose `update` needs `params` and `grad_fn`.

  Example:
    >>> loss = lambda w: 0.5 * jnp.sum(jnp.array([1.0, 4.0]) * w["kernel"] ** 2)
    >>> tx, w = asam(optax.sgd(0.1), rho=0.5, eps=0.0), {"kernel": jnp.array([2.0, 0.0])}
    >>> tx.update(jax.grad(loss)(w), tx.init(w), w, grad_fn=jax.grad(loss))[0]["kernel"]
    Array([-0.3, -0. ], dtype=float32)

  References:
    Kwon et al., `ASAM: Adaptive Sharpness-Aware Minimization`, 2021, Eq. 9 and Algorithm 1.
  """
  check_transform(inner)
  check_range(rho, "rho", low=0)
  check_range(eps, "eps", low=0)
  tx = optax.with_extra_args_support(inner)

  def update(updates, state, params=None, *, grad_fn: GradFn | None = None, **extra_args):
    grad_fn = _checked(params, grad_fn, extra_args)
    # A mask may be a tree of all parameters, also where `params` shows a part of them.
    leaves, tree = jax.tree.flatten(whole(params, extra_args.get("all_params")))
    taken = paths.chosen(jax.tree.unflatten(tree, leaves), mask)
    sizes = [jnp.abs(wide(w)) + eps if each else 1.0 for w, each in zip(leaves, taken)]
    scale = part(jax.tree.unflatten(tree, sizes), updates)
    scaled = lambda t, u: (t * wide(u)).astype(wide(u).dtype)
    direction = steepest(jax.tree.map(scaled, scale, updates), "global", "l2")
    second = _gradient_at(jax.tree.map(scaled, scale, direction), updates, params, grad_fn, rho)
    return tx.update(second, state, params, **extra_args)

  return train_only(optax.GradientTransformationExtraArgs(tx.init, update), trained)


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
    grad_fn = _checked(params, grad_fn, extra_args)
    first = jax.tree.map(wide, updates)
    second = _gradient_at(steepest(first, "global", "l2"), first, params, grad_fn, rho)
    unit = steepest(second, "global", "l2")
    along = partitioned(optax.tree.vdot, first, unit, kept=slice(0))
    less = lambda p, g, u: p - weight * (g - along * u)
    combined = as_updates(jax.tree.map(less, second, first, unit), updates)
    return tx.update(combined, state, params, **extra_args)

  return train_only(optax.GradientTransformationExtraArgs(tx.init, update), trained)


def _checked(params: Params | None, grad_fn: GradFn | None, extra_args: Mapping[str, Any]) -> GradFn:
  """Returns `grad_fn`, which computes the second gradient, of the whole tree if `all_params` is given."""
  if params is None or grad_fn is None:
    raise ValueError("params and grad_fn must be given to update")
  return on_whole(grad_fn, "grad_fn", extra_args.get("all_params"))


def _gradient_at(direction: Any, updates: Any, params: Params, grad_fn: GradFn, rho: ArrayLike) -> Any:
  """The gradient at `params + rho * direction`, in the dtypes of the updates."""
  # The point is not rounded to the parameters' dtypes, which could erase the perturbation.
  top = on_floating(lambda w, u: (wide(w) + rho * u).astype(u.dtype), params, direction)
  return as_updates(part(grad_fn(top), updates), updates)
