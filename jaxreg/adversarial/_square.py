"""The Square attack: random search by squares, without gradients."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg._leaves import wide
from jaxreg._scaled import unit_length
from jaxreg._sharding import placed_like
from jaxreg.adversarial._apgd import Values, like
from jaxreg.adversarial._common import Bounds, perturbed, unit
from jaxreg.adversarial._pgd import Norm, inside, project
from jaxreg.typing import Array, Key

AREA = 0.8  # share of the image in the first squares
HALVINGS = 10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000  # of the area, at these of 10 000 queries
TILES = 5  # in a row of the first perturbation in the L2 norm


class Search(NamedTuple):
  """The state of a run; all arrays but the number have one row per example."""

  number: Array  # of queries done
  best: Array  # the perturbation with the largest loss
  best_loss: Array
  success: Array  # whether the answer is wrong there


def sides(num_queries: int, height: int, width: int, norm: Norm) -> np.ndarray:
  """Returns the side of the square of each query; odd and at least 3 for `l2`, where the image allows it."""
  done = 10000 * np.arange(num_queries) // num_queries
  area = AREA / 2.0 ** np.searchsorted(HALVINGS, done)
  each, most = np.maximum(np.round(np.sqrt(area * height * width)), 1).astype(np.int32), min(height, width)
  if norm == "l2":
    each = np.maximum(each, 3)
    each, most = each + (each % 2 == 0), most - (most % 2 == 0)
  return np.minimum(each, most)


def bump(side: int) -> np.ndarray:
  """Returns the update of a square in the L2 norm, `[side, side]` of length 1: one half is negative."""
  half = side // 2
  both = np.concatenate([_peak(half, side), -_peak(side - half, side)])
  return both / np.linalg.norm(both)


def _peak(rows: int, columns: int) -> np.ndarray:
  """Returns a rectangle of length 1 that falls with the distance from its centre."""
  distance = np.maximum(
    np.abs(np.arange(rows) - rows // 2)[:, None], np.abs(np.arange(columns) - columns // 2)
  )
  heights = np.cumsum(1 / np.arange(1 + max(rows, columns) // 2, 0, -1.0) ** 2)[::-1]
  each = heights[distance]
  return each / max(float(np.linalg.norm(each)), 1e-30)


def square(
  key: Key,
  values: Values,
  x: Array,
  *,
  radius: Array,
  norm: Norm,
  num_queries: int,
  clip: Bounds,
  done: Array,
) -> tuple[Array, Array]:
  """Returns a perturbation for each image, and whether the answer is wrong there.

  It stops once every example that is not `done` has a wrong answer.

  References:
    Andriushchenko, Croce, Flammarion and Hein, `Square Attack: a Query-efficient Black-box Adversarial Attack
    via Random Search`, 2020, Algorithms 1 to 3.
  """
  height, width = x.shape[1:3]
  each = jnp.asarray(sides(num_queries, height, width, norm))

  def onto_ball(delta: Array) -> Array:
    return inside(x, project(delta, radius, norm), clip)

  def evaluate(delta: Array) -> tuple[Array, Array]:
    loss, wrong = values(perturbed(x, delta, clip))
    return jax.lax.stop_gradient(loss), wrong

  def goes_on(search: Search) -> Array:
    return (search.number < num_queries) & ~(done | search.success).all()

  def advance(search: Search) -> Search:
    draw = jax.random.fold_in(key, search.number)
    changed = changed_square if norm == "linf" else moved_square
    delta = onto_ball(changed(draw, search.best, each[search.number], radius))
    loss, wrong = evaluate(delta)
    better = ~search.success & ((loss > search.best_loss) | wrong)
    return Search(
      number=search.number + 1,
      best=jnp.where(like(better, x), delta, search.best),
      best_loss=jnp.where(better, loss, search.best_loss),
      success=search.success | wrong,
    )

  key, start_key = jax.random.split(key)
  start = onto_ball(radius * (stripes(start_key, x) if norm == "linf" else tiles(start_key, x)))
  search = jax.lax.while_loop(goes_on, advance, Search(jnp.int32(1), start, *evaluate(start)))
  return search.best, search.success


def stripes(key: Key, x: Array) -> Array:
  """Draws the first perturbation in the maximum norm: a sign for each column and channel."""
  signs = _signs(key, (x.shape[0], 1, *x.shape[2:]), x)
  return signs + jnp.zeros_like(wide(x))


def tiles(key: Key, x: Array) -> Array:
  """Draws the first perturbation in the L2 norm, of length 1: bumps with random signs on a grid."""
  batch, height, width, channels = x.shape
  side = max(min(height, width) // TILES, 1)
  shape, offsets = (height // side, width // side), []
  for size, number in zip((height, width), shape, strict=True):
    rest = size - number * side
    offsets.append((rest // 2, rest - rest // 2))
  grid = jnp.asarray(np.pad(np.tile(bump(side), shape), offsets), wide(x).dtype)
  signs = _signs(key, (batch, *shape, channels), x)
  signs = jnp.repeat(jnp.repeat(signs, side, axis=1), side, axis=2)
  signs = jnp.pad(signs, ((0, 0), *offsets, (0, 0)), constant_values=1)
  return unit(placed_like(signs * grid[None, :, :, None], x))


def changed_square(key: Key, delta: Array, side: Array, radius: Array) -> Array:
  """Sets a square of each perturbation to the radius, with a random sign for each channel."""
  place, sign = jax.random.split(key)
  window, _ = windows(place, delta, side)
  signs = _signs(sign, (delta.shape[0], 1, 1, delta.shape[3]), delta)
  return jnp.where(window, radius * signs, delta)


def moved_square(key: Key, delta: Array, side: Array, radius: Array) -> Array:
  """Moves the length of a second square into a first one, along its perturbation and a random bump."""
  first_key, second_key, sign_key, turn_key = jax.random.split(key, 4)
  first, (row, column) = windows(first_key, delta, side)
  second, _ = windows(second_key, delta, side)
  most = min(delta.shape[1:3])
  odd = [*range(1, most + 1, 2)]
  table = np.zeros((len(odd), most, most))
  for number, size in enumerate(odd):
    table[number, :size, :size] = bump(size)
  chosen = jnp.asarray(table, delta.dtype)[side // 2]
  turned = jax.random.bernoulli(turn_key, 0.5, (delta.shape[0], 1, 1, 1))
  shape = jnp.where(placed_like(turned, delta), _at(chosen.T, row, column), _at(chosen, row, column))
  shape = jnp.where(first, shape, 0) * _signs(sign_key, (delta.shape[0], 1, 1, delta.shape[3]), delta)
  old = unit_length(jnp.where(first, delta, 0), (1, 2))
  new = unit_length(shape + old, (1, 2))
  unused = jnp.maximum(jnp.square(radius) - jnp.square(delta).sum(axis=(1, 2, 3), keepdims=True), 0)
  both = jnp.square(jnp.where(first | second, delta, 0)).sum(axis=(1, 2), keepdims=True)
  length = jnp.sqrt(both + unused / delta.shape[3])
  return jnp.where(first, new * length, jnp.where(second, 0, delta))


def windows(key: Key, delta: Array, side: Array) -> tuple[Array, tuple[Array, Array]]:
  """Draws a square of each image: its mask `[batch, height, width, 1]`, and places from its corner."""
  places = []
  for axis, draw in zip((1, 2), jax.random.split(key), strict=True):
    size = delta.shape[axis]
    corner = jax.random.randint(draw, (delta.shape[0], 1, 1, 1), 0, size - side + 1)
    steps = jnp.arange(size).reshape([-1 if each == axis else 1 for each in range(4)])
    places.append(steps - placed_like(corner, delta))
  row, column = places
  return (row >= 0) & (row < side) & (column >= 0) & (column < side), (row, column)


def _at(table: Array, row: Array, column: Array) -> Array:
  """Takes entries of `table` at rows and columns from a corner, which are clipped to the table."""
  most = table.shape[0] - 1
  return table[jnp.clip(row, 0, most), jnp.clip(column, 0, most)]


def _signs(key: Key, shape: tuple[int, ...], x: Array) -> Array:
  return placed_like(jax.random.rademacher(key, shape, wide(x).dtype), x)
