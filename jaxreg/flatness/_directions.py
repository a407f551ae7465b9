"""Random directions scaled like the parameters, and the loss along directions."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg.flatness._common import analysis, scalar_loss, widened
from jaxreg.flatness._subset import Where, no_tree, selected
from jaxreg.typing import Array, Batch, Key, LossFn, Params, check_key, check_wide, key_first


@key_first
def filter_normalized_direction(
  key: Key,
  params: Params,
  *,
  granularity: Literal["layer", "filter"] = "layer",
  filter_axis: int | None = None,
  one_dim: Literal["zero", "keep"] = "zero",
  where: Where = "*",
) -> Params:
  r"""Draws a random direction in which every filter has the norm of the parameters' filter.

  .. math:: d_{ij} \leftarrow \frac{d_{ij}}{\lVert d_{ij} \rVert} \lVert \theta_{ij} \rVert,
    \qquad d \sim N(0, I)

  Args:
    key: a typed key.
    params: any pytree of floating arrays.
    granularity: the meaning of a filter: a whole leaf (as in the paper for its fully connected network), or
      the incoming weights of one unit.
    filter_axis: the axis of the units, the same for all leaves; by default the name of a leaf determines a
      unit's incoming weights (`paths.incoming_axes`).
    one_dim: `zero` does not move biases and normalisation scales: leaves with one axis, and those named
      `bias` or `scale`, such as the biases of attention heads. `keep` treats each as one filter.
    where: the leaves that move.

  Returns:
    A pytree like `params`.

  Raises:
    TypeError: if `key` is no typed key or a selected leaf not floating.
    ValueError: for another `granularity` or `one_dim`, if `where` selects nothing, or if a leaf has no
      `filter_axis`.

  Example:
    >>> direction = filter_normalized_direction(jax.random.key(0), {"kernel": 2 * jnp.ones((3, 3))})
    >>> jnp.linalg.norm(direction["kernel"]).round(4)
    Array(6., dtype=float32)

  References:
    Li et al., `Visualizing the Loss Landscape of Neural Nets`, 2018, section 4.
    Zhang, Zhou and Xu, `Dropout in training neural networks: flatness of solution and noise structure`,
    2021, section 5.
  """
  check_key(key)
  for name, value, allowed in (
    ("granularity", granularity, ("layer", "filter")),
    ("one_dim", one_dim, ("zero", "keep")),
  ):
    if value not in allowed:
      raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
  leaves, tree = jax.tree.flatten(params)
  mask = selected(params, where)
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
    norm = lambda x: jnp.sqrt(jnp.sum(x * x, axis=axes, keepdims=True))
    direction = jax.random.normal(key, leaf.shape, wide.dtype)
    return (direction / norm(direction) * norm(wide)).astype(leaf.dtype)

  rows = zip(keys, paths.leaf_names(params), leaves, mask, strict=True)
  return jax.tree.unflatten(tree, [scaled(*row) for row in rows])


@analysis
def loss_profile(
  loss_fn: LossFn,
  params: Params,
  direction: Params,
  alphas: ArrayLike,
  batch: Batch,
  *,
  key: Key | None = None,
  batch_size: int = 1,
) -> Array:
  r"""Computes the loss along a direction.

  .. math:: f(\alpha) = L(\theta + \alpha d)

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`; `key=None` asks for no noise.
    params: any pytree.
    direction: a pytree like `params`, as from `filter_normalized_direction`. For a vector `v` give
      `subset(jax.tree.map(jnp.zeros_like, params), where).merge(v)`.
    alphas: `[points]`.
    batch: passed to `loss_fn`.
    key: passed to `loss_fn`.
    batch_size: points at once; 1 is fastest on a CPU.

  Returns:
    `[points]`.

  Raises:
    TypeError: if `direction` is a vector and `params` a tree, `alphas` are not floating or `key` is no typed
      key.
    ValueError: if `direction` is not shaped like `params`, or `alphas` is not one-dimensional.

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
  return _surface(loss_fn, batch_size, params, (_like(direction, params), zeros), points, batch, key)


@analysis
def loss_surface(
  loss_fn: LossFn,
  params: Params,
  directions: tuple[Params, Params],
  alphas: ArrayLike,
  betas: ArrayLike,
  batch: Batch,
  *,
  key: Key | None = None,
  batch_size: int = 1,
) -> Array:
  r"""Computes the loss in a plane, :math:`f(\alpha, \beta) = L(\theta + \alpha d_1 + \beta d_2)`.

  Args:
    loss_fn, params, batch, key, batch_size: as in `loss_profile`.
    directions: two pytrees like `params`.
    alphas: `[rows]`.
    betas: `[columns]`.

  Returns:
    `[rows, columns]`.

  Raises:
    TypeError: if `directions` are not two trees, `alphas` or `betas` not floating or `key` no typed key.
    ValueError: if a direction is not shaped like `params`, or `alphas` or `betas` are not one-dimensional.

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
  pair = tuple(directions) if no_tree(directions) else ()
  if len(pair) != 2:
    raise TypeError(f"directions must be two trees like params, got one {type(directions).__name__}")
  first, second = (_like(direction, params) for direction in pair)
  points = jnp.stack(jnp.meshgrid(alphas, betas, indexing="ij"), axis=-1).reshape(-1, 2)
  values = _surface(loss_fn, batch_size, params, (first, second), points, batch, key)
  return values.reshape(len(alphas), len(betas))


def _surface_of(loss_fn, batch_size, params, directions, points, batch, key):
  def at(point: Array) -> Array:
    move = lambda x, a, b: (x + point[0] * a + point[1] * b).astype(x.dtype)
    return scalar_loss(loss_fn, jax.tree.map(move, params, *directions), batch, key)

  return jax.lax.map(at, points, batch_size=batch_size)


_surface = jax.jit(_surface_of, static_argnums=(0, 1))


def _points(x: ArrayLike, name: str) -> Array:
  x = check_wide(x, name)
  if x.ndim != 1:
    raise ValueError(f"{name} must be [points], got {x.shape}")
  return x


def _like(direction: Params, params: Params) -> Params:
  if jax.tree_util.all_leaves([direction]) and not jax.tree_util.all_leaves([params]):
    raise TypeError(
      f"direction must be a tree like params, got an array of shape {jnp.shape(direction)}; "
      "subset(jax.tree.map(jnp.zeros_like, params), where).merge(vector) turns a vector into a tree"
    )
  got, want = (
    {name: jnp.shape(x) for name, x in zip(paths.leaf_names(tree), jax.tree.leaves(tree), strict=True)}
    for tree in (direction, params)
  )
  if got != want:
    wrong = min(name for name in got.keys() | want.keys() if got.get(name) != want.get(name))
    found, wanted = (shapes.get(wrong, "nothing") for shapes in (got, want))
    raise ValueError(
      f"direction must be shaped like params: {wrong or 'the one leaf'} must have {wanted}, got {found}"
    )
  return direction
