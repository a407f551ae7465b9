"""The plane in which a training moved most, for a loss surface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxreg.flatness._common import analysis, widened
from jaxreg.flatness._covariance import principal_components
from jaxreg.flatness._subset import Where, selected, split
from jaxreg.typing import Array, Params


class Plane(NamedTuple):
  """A plane through the last point of a trajectory.

  Attributes:
    directions: two trees like the parameters, orthonormal, for `loss_surface`.
    coordinates: `[num, 2]`, the points of the trajectory in the plane; the last is 0.
    explained: `[2]`, the part of the trajectory's variance along each direction.
  """

  directions: tuple[Params, Params]
  coordinates: Array
  explained: Array


@analysis
def trajectory_plane(points: Iterable[Params], *, where: Where = "*") -> Plane:
  """Computes the two principal directions of a trajectory of parameters.

  A random plane shows nothing of a training, because random directions are orthogonal to it.

  Args:
    points: at least three trees of parameters alike, such as checkpoints, in their order.
    where: the parameters that count; the directions are 0 in the others.

  Returns:
    `Plane`; `loss_surface(loss_fn, points[-1], plane.directions, ...)` is the surface under the trajectory.

  Raises:
    TypeError: if a selected leaf is not floating.
    ValueError: if there are fewer than three points or two parameters, points differ in structure or shape,
      or do not differ in value, or `where` selects nothing.

  Example:
    >>> plane = trajectory_plane([jnp.array([4.0, 0, 0]), jnp.array([2.0, 1, 0]), jnp.zeros(3)])
    >>> plane.coordinates.shape, plane.explained.sum().round(3)
    ((3, 2), Array(1., dtype=float32))

  References:
    Li et al., `Visualizing the Loss Landscape of Neural Nets`, 2018, section 7.
  """
  points = points if isinstance(points, Sequence) else list(points)
  if len(points) < 3:
    raise ValueError(f"points must have at least three trees of parameters, got {len(points)}")
  mask = selected(points[0], where)
  kinds = [(jax.tree.structure(each), [jnp.shape(leaf) for leaf in jax.tree.leaves(each)]) for each in points]
  if unlike := [number for number, kind in enumerate(kinds) if kind != kinds[0]]:
    raise ValueError(f"points must be trees alike, got another structure or shape at index {unlike[0]}")
  rows = jnp.stack([split(widened(point), mask).flat for point in points])
  if rows.shape[1] < 2:
    raise ValueError("where must select at least two parameters, got one")
  away = rows - rows[-1:]
  found = principal_components(away, num=2)
  total = jnp.sum((away - found.mean[None]) ** 2) / len(rows)
  if not isinstance(total, Tracer) and not total > 0:
    raise ValueError("points must be finite and differ from each other")
  zeros = split(jax.tree.map(jnp.zeros_like, widened(points[-1])), mask)
  first, second = (zeros.merge(direction) for direction in found.directions)
  return Plane((first, second), away @ found.directions.T, found.variances / total)
