"""The sum of the norms of each unit's weights."""

from jaxreg._leaves import group_factor, selected, total, unit_axes
from jaxreg._scaled import norm
from jaxreg.paths import kernels_only
from jaxreg.typing import Array, Mask, Params


def group_lasso(
  params: Params,
  *,
  axis: int | tuple[int, ...] | None = None,
  size_weighted: bool = True,
  mask: Mask = kernels_only,
) -> Array:
  r"""Computes the sum over units of the norm of each unit's incoming weights.

  .. math:: \Omega(w) = \sum_g \sqrt{n_g}\, \|w_g\|_2, \qquad
    \nabla_{w_g} \Omega = \sqrt{n_g}\, \frac{w_g}{\|w_g\|_2}, \quad 0 \text{ at } w_g = 0

  The penalty drives whole units to zero. The factor `sqrt(n_g)`, with `n_g` the number of weights in a group,
  makes groups of different sizes comparable. For units that are exactly zero use
  `constraints.prox_group_lasso`.

  Args:
    params, mask: as in `l2`.
    axis: axes of a group's weights, the same for all leaves; by default the axes of one unit's incoming
      weights (`paths.incoming_axes`).
    size_weighted: whether to multiply by the root of the size.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> group_lasso({"kernel": jnp.array([[3.0, 0.0], [4.0, 0.0]])}, size_weighted=False)
    Array(5., dtype=float32)

  References:
    Yuan and Lin, `Model selection and estimation in regression with grouped variables`, 2006.
  """

  def leaf_penalty(name: str, w: Array) -> Array:
    axes = unit_axes(name, w, axis)
    return group_factor(w, axes, size_weighted) * norm(w, axes).sum()

  return total(leaf_penalty(name, w) for name, w in selected(params, mask))
