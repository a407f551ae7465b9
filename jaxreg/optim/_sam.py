"""Sharpness-aware minimisation that survives a zero gradient."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_range
from jaxreg._leaves import wide
from jaxreg.optim._masked import gradient_part, on_whole, train_only
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
  must average over devices. Within `nnx.Optimizer` it gets arrays, and returns `nnx.as_pure(gradients)`.

  `grad_fn` gets its parameters in at least float32: in bfloat16 a usual perturbation,
  `rho / sqrt(number of weights)` per weight, rounds away, and SAM would reduce to its inner optimizer. So
  `grad_fn` must not cast the parameters back before it uses them. The inner optimizer gets the second
  gradient in the dtypes of the first.

  Frozen parameters must not be perturbed: `trained` says which parameters are not frozen. In `optax.masked`
  and `optax.partition`, which hide a part of the parameters, give `update` also `all_params=params`, so that
  `grad_fn` gets the whole tree; the hidden parameters are not perturbed. Transforms before this one in a
  chain change the first gradient only.

  To accumulate over parts of a batch, put the accumulation inside:
  `sam(optax.MultiSteps(inner, 4).gradient_transformation())`. Each part then has its own perturbation, and
  the step takes the mean of the second gradients, as in the paper's `m`-sharpness.
  `optax.MultiSteps(sam(inner), 4)` is refused: there the second gradient would see the last part only.

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
    grad_fn = check_second(params, grad_fn, extra_args)
    direction = steepest(jax.tree.map(wide, updates), blocks, "l2")
    second = gradient_at(direction, updates, params, grad_fn, rho)
    return tx.update(second, state, params, **extra_args)

  return train_only(optax.GradientTransformationExtraArgs(tx.init, update), trained)


def check_second(params: Params | None, grad_fn: GradFn | None, extra_args: Mapping[str, Any]) -> GradFn:
  """Returns `grad_fn`, which computes the second gradient, of the whole tree if `all_params` is given."""
  if params is None or grad_fn is None:
    raise ValueError("params and grad_fn must be given to update, also by what wraps it")
  check_whole_batch(
    "accumulate inside of it, as in optim.sam(optax.MultiSteps(inner, k).gradient_transformation())"
  )
  return on_whole(grad_fn, "grad_fn", extra_args.get("all_params"))


def check_whole_batch(remedy: str) -> None:
  """Refuses `optax.MultiSteps` around an optimizer that calls functions of the parameters.

  `MultiSteps` averages the gradients of several parts of a batch, but passes the functions of the last part.
  None of its arguments to `update` shows this, so the check looks for its code among the callers.
  """
  frame = inspect.currentframe()
  while frame is not None:
    if frame.f_code is optax.MultiSteps.update.__code__:
      raise ValueError(
        "optax.MultiSteps must not wrap an optimizer whose update needs grad_fn, which sees the last part of "
        f"the batch only; {remedy}"
      )
    frame = frame.f_back


def gradient_at(direction: Any, updates: Any, params: Params, grad_fn: GradFn, rho: ArrayLike) -> Any:
  """Computes the gradient at `params + rho * direction`, in the dtypes of the updates."""
  # The point is not rounded to the parameters' dtypes, which could erase the perturbation.
  top = on_floating(lambda w, u: (wide(w) + rho * u).astype(u.dtype), params, direction)
  return as_updates(gradient_part(grad_fn(top), updates), updates)
