"""Projections after a step: as an Optax transform, or in place of the update."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxreg._leaves import wide
from jaxreg.constraints._prox import replace_updates
from jaxreg.paths import everything
from jaxreg.typing import Params, check_function

Projection = Callable[[Params], Params]


def project(projection: Projection) -> optax.GradientTransformationExtraArgs:
  r"""Projects the parameters after each step; the **last** transform of a chain.

  .. math:: w \leftarrow P(w + \Delta_t)

  A transform after it in the chain can violate the constraint again. Momentum is not changed and may point
  outward. An average of feasible parameters is feasible if the set is convex: a ball is, a sphere is not.
  With bfloat16 parameters the update to the projected point is rounded and misses the constraint by up to one
  per cent; then use `apply_updates_and_project`.

  Args:
    projection: `params -> params`, from this folder with its options bound by `functools.partial`, or from
      `optax.projections`.

  Returns:
    An Optax transform that needs `params`.

  Raises:
    TypeError: if `projection` is not a function of the parameters alone, such as `max_norm` without its
      limit.
    ValueError: in `update`, without `params`.

  Example:
    >>> import functools
    >>> from jaxreg.constraints import max_norm
    >>> tx = optax.chain(optax.sgd(1.0), project(functools.partial(max_norm, limit=1.0)))
    >>> params = {"kernel": jnp.zeros((2, 1))}
    >>> updates, _ = tx.update({"kernel": jnp.array([[-3.0], [-4.0]])}, tx.init(params), params)
    >>> optax.apply_updates(params, updates)["kernel"].ravel()
    Array([0.6, 0.8], dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, norm penalties as
    constrained optimization (explicit constraints with reprojection).
  """
  check_function(projection, "projection", "params -> params", takes=1)

  def update(updates, state, params=None, **extra_args):
    del extra_args
    return replace_updates(projection, updates, params, everything), state

  return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def apply_updates_and_project(params: Params, updates: Any, projection: Projection) -> Params:
  """Adds the updates and projects, in at least float32, and only then rounds to the parameters' dtypes.

  Use it in place of `optax.apply_updates` and of `project` at the end of the chain.

  Args:
    params: any pytree.
    updates: the updates from an Optax chain, a pytree of the same structure.
    projection: `params -> params`.

  Returns:
    The new parameters, in their dtypes.

  Raises:
    TypeError: if `projection` is not a function of the parameters alone, such as `max_norm` without its
      limit.

  Example:
    >>> halve = lambda params: jax.tree.map(lambda w: w / 2, params)
    >>> apply_updates_and_project(jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.bfloat16), halve)
    Array([1, 1], dtype=bfloat16)
  """
  check_function(projection, "projection", "params -> params", takes=1)
  moved = projection(jax.tree.map(lambda p, u: wide(p) + wide(u), params, updates))
  return jax.tree.map(lambda p, new: new.astype(jnp.result_type(p)), params, moved)
