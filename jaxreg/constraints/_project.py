"""Projections after a step, as an Optax transform."""

from collections.abc import Callable

import optax

from jaxreg._checks import check_function
from jaxreg.constraints._prox import replace_updates
from jaxreg.typing import Params

Projection = Callable[[Params], Params]


def project(projection: Projection) -> optax.GradientTransformationExtraArgs:
  r"""Projects the parameters after each step; the **last** transform of a chain.

  .. math:: w \leftarrow P(w + \Delta_t)

  A transform after it in the chain can violate the constraint again. Momentum is not changed and may point
  outward. An average of feasible parameters is feasible if the set is convex: a ball is, a sphere is not.
  With bfloat16 parameters the update to the projected point is rounded and misses the constraint by up to one
  per cent; then project the result of `optax.apply_updates` instead.

  Args:
    projection: `params -> params`, from this folder with its options bound by `functools.partial`, or from
      `optax.projections`.

  Returns:
    An Optax transform that needs `params`.

  Raises:
    TypeError: for a `projection` with options that are not bound, such as `max_norm` without its limit.

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
    return replace_updates(projection, updates, params), state

  return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
