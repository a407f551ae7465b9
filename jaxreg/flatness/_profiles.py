"""The loss along directions and in planes: random directions, or the main directions of a training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._analyses import full_precision, mean_loss, widened
from jaxreg._checks import check_choice, check_key, check_wide
from jaxreg._scaled import norm
from jaxreg.flatness._covariance import principal_components
from jaxreg.flatness._subset import is_array_like, selected, split
from jaxreg.typing import Array, Batch, Key, LossFn, Mask, Params


def filter_normalized_direction(
  key: Key,
  params: Params,
  *,
  granularity: Literal["layer", "filter"] = "layer",
  filter_axis: int | None = None,
  one_dim: Literal["zero", "keep"] = "zero",
  mask: Mask = "*",
) -> Params:
  r"""Draws a random direction in which every filter has the norm of the parameters' filter.

  .. math:: d_{ij} \leftarrow \frac{d_{ij}}{\lVert d_{ij} \rVert} \lVert \theta_{ij} \rVert,
    \qquad d \sim N(0, I)

  Args:
    key: draws `d`.
    params: any pytree of floating arrays.
    granularity: what a filter is: a whole leaf, as in the paper for its fully connected network, or the
      incoming weights of one unit.
    filter_axis: the axis of the units, the same for all leaves; by default the name of a leaf determines a
      unit's incoming weights (`paths.incoming_axes`).
    one_dim: `zero` does not move biases and normalisation scales: leaves with one axis, and leaves named
      `bias` or `scale`, such as the biases of attention heads. `keep` treats each as one filter.
    mask: the leaves that move.

  Example:
    >>> direction = filter_normalized_direction(jax.random.key(0), {"kernel": 2 * jnp.ones((3, 3))})
    >>> jnp.linalg.norm(direction["kernel"]).round(4)
    Array(6., dtype=float32)

  References:
    Li et al., `Visualizing the Loss Landscape of Neural Nets`, 2018, section 4.
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, section 5.
  """
  check_key(key)
  check_choice(granularity, "granularity", ("layer", "filter"))
  check_choice(one_dim, "one_dim", ("zero", "keep"))
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(key, len(leaves))

  def scaled(key: Key, name: str, leaf: Array, taken: bool) -> Array:
    leaf = jnp.asarray(leaf)
    flat = leaf.ndim <= 1 or paths.last_name(name) in ("bias", "scale")
    if not taken or (flat and one_dim == "zero"):
      return jnp.zeros_like(leaf)
    axes = tuple(range(leaf.ndim))
    if granularity == "filter" and not flat:
      if filter_axis is None:
        axes = paths.incoming_axes(name, leaf.ndim)
      elif -leaf.ndim <= filter_axis < leaf.ndim:
        axes = tuple(axis for axis in axes if axis != filter_axis % leaf.ndim)
      else:
        raise ValueError(f"filter_axis must be an axis of every kernel, got {filter_axis} for {leaf.shape}")
    wide = widened(leaf)
    direction = jax.random.normal(key, leaf.shape, wide.dtype)
    return (direction / norm(direction, axes) * norm(wide, axes)).astype(leaf.dtype)

  rows = zip(keys, paths.leaf_names(params), leaves, selected(params, mask), strict=True)
  return jax.tree.unflatten(tree, [scaled(*row) for row in rows])


@full_precision
def loss_profile(
  loss_fn: LossFn,
  params: Params,
  direction: Params,
  alphas: ArrayLike,
  batch: Batch,
  *,
  key: Key | None = None,
  chunk_size: int = 1,
) -> Array:
  r"""Computes the loss along a direction, :math:`f(\alpha) = L(\theta + \alpha d)`, `[points]`.

  Args:
    loss_fn, params, batch, key: as in `hvp`.
    direction: a pytree like `params`, such as the result of `filter_normalized_direction`. For a vector `v`
      give `subset(jax.tree.map(jnp.zeros_like, params), mask).merge(v)`.
    alphas: `[points]`.
    chunk_size: how many points to compute at a time; 1 is fastest on a CPU.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 * (batch * params**2).sum()
    >>> direction, alphas = jnp.array([1.0, 0.0]), jnp.array([-1.0, 0.0, 1.0])
    >>> loss_profile(loss, jnp.zeros(2), direction, alphas, jnp.array([4.0, 1.0]))
    Array([2., 0., 2.], dtype=float32)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, section 5 and figure 1.
  """
  alphas = _points(alphas, "alphas")
  params, batch = widened(params), widened(batch)
  zeros = jax.tree.map(jnp.zeros_like, params)
  points = jnp.stack([alphas, jnp.zeros_like(alphas)], axis=1)
  return _surface(loss_fn, chunk_size, params, (_like(direction, params), zeros), points, batch, key)


@full_precision
def loss_surface(
  loss_fn: LossFn,
  params: Params,
  directions: tuple[Params, Params],
  alphas: ArrayLike,
  betas: ArrayLike,
  batch: Batch,
  *,
  key: Key | None = None,
  chunk_size: int = 1,
) -> Array:
  r"""Computes the loss in a plane, :math:`L(\theta + \alpha d_1 + \beta d_2)`, `[rows, columns]`.

  Args:
    loss_fn, params, batch, key, chunk_size: as in `loss_profile`.
    directions: two pytrees like `params`.
    alphas, betas: `[rows]` and `[columns]`.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 * (batch * params**2).sum()
    >>> axes = jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])
    >>> steps = jnp.array([0.0, 1.0])
    >>> loss_surface(loss, jnp.zeros(2), axes, steps, steps, jnp.array([4.0, 2.0]))
    Array([[0., 1.],
           [2., 3.]], dtype=float32)

  References:
    Li et al., `Visualizing the Loss Landscape of Neural Nets`, 2018, section 4.
  """
  alphas, betas = _points(alphas, "alphas"), _points(betas, "betas")
  params, batch = widened(params), widened(batch)
  pair = tuple(directions) if is_array_like(directions) else ()
  if len(pair) != 2:
    raise TypeError(f"directions must be two trees like params, got one {type(directions).__name__}")
  first, second = (_like(direction, params) for direction in pair)
  points = jnp.stack(jnp.meshgrid(alphas, betas, indexing="ij"), axis=-1).reshape(-1, 2)
  values = _surface(loss_fn, chunk_size, params, (first, second), points, batch, key)
  return values.reshape(len(alphas), len(betas))


@partial(jax.jit, static_argnums=(0, 1))
def _surface(loss_fn, chunk_size, params, directions, points, batch, key):
  def loss_at(point: Array) -> Array:
    def move(x: Array, a: Array, b: Array) -> Array:
      return (x + point[0] * a + point[1] * b).astype(x.dtype)

    return mean_loss(loss_fn, jax.tree.map(move, params, *directions), batch, key)

  return jax.lax.map(loss_at, points, batch_size=chunk_size)


def _points(x: ArrayLike, name: str) -> Array:
  x = check_wide(x, name)
  if x.ndim != 1:
    raise ValueError(f"{name} must be [points], got {x.shape}")
  return x


def _like(direction: Params, params: Params) -> Params:
  if jax.tree_util.all_leaves([direction]) and not jax.tree_util.all_leaves([params]):
    raise TypeError(
      f"direction must be a tree like params, got an array of shape {jnp.shape(direction)}; "
      "subset(jax.tree.map(jnp.zeros_like, params), mask).merge(vector) turns a vector into a tree"
    )
  got, want = (
    {name: jnp.shape(x) for name, x in zip(paths.leaf_names(tree), jax.tree.leaves(tree), strict=True)}
    for tree in (direction, params)
  )
  if got != want:
    wrong = min(name for name in got.keys() | want.keys() if got.get(name) != want.get(name))
    got_shape, wanted_shape = (shapes.get(wrong, "nothing") for shapes in (got, want))
    raise ValueError(
      f"direction must be shaped like params: {wrong or 'the one leaf'} must have {wanted_shape}, got "
      f"{got_shape}"
    )
  return direction


class Plane(NamedTuple):
  """The result of `trajectory_plane`."""

  directions: tuple[Params, Params]
  coordinates: Array
  explained: Array


@full_precision
def trajectory_plane(points: Iterable[Params], *, mask: Mask = "*") -> Plane:
  """Computes the two principal directions of a trajectory of parameters.

  Random directions hardly show a trajectory.

  Args:
    points: at least three trees of parameters with one structure, such as checkpoints, in their order.
    mask: the parameters that count; the directions are 0 in the others.

  Returns:
    A NamedTuple: `directions`, two orthonormal trees like the parameters; `coordinates` `[points, 2]` of the
    trajectory in the plane, relative to the last point; `explained` `[2]`, the fraction of the trajectory's
    variance along each direction. `loss_surface(loss_fn, points[-1], plane.directions, ...)` is the surface
    under the trajectory.

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
  taken = selected(points[0], mask)
  kinds = [(jax.tree.structure(each), [jnp.shape(leaf) for leaf in jax.tree.leaves(each)]) for each in points]
  if unlike := [number for number, kind in enumerate(kinds) if kind != kinds[0]]:
    raise ValueError(f"points must have one structure and shapes, got a different tree at index {unlike[0]}")
  rows = jnp.stack([split(widened(point), taken).flat for point in points])
  if rows.shape[1] < 2:
    raise ValueError("mask must select at least two parameters, got one")
  away = rows - rows[-1:]
  components = principal_components(away, num_components=2)
  total = jnp.sum((away - components.mean[None]) ** 2) / len(rows)
  if not isinstance(total, Tracer) and not total > 0:
    raise ValueError("points must be finite and differ from each other")
  zeros = split(jax.tree.map(jnp.zeros_like, widened(points[-1])), taken)
  first, second = (zeros.merge(direction) for direction in components.directions)
  return Plane((first, second), away @ components.directions.T, components.variances / total)
