"""How fast the loss rises near the parameters: in a ball, and along directions until it doubles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg._analyses import full_precision, mean_loss, widened
from jaxreg._checks import check_range
from jaxreg.flatness._subset import check_directions, flat_loss, selected, split
from jaxreg.typing import Array, Batch, Key, LossFn, Mask, Params

MAX_STEPS = 200  # of one search: with the default growth, the distance grows by a factor of 1e35
START_FRACTION = 0.8  # of the last crossing, where a search starts; one step outward then usually suffices

Profile = Callable[[Array], Array]  # the loss as a function of the distance


@full_precision
def sam_sharpness(
  loss_fn: LossFn,
  params: Params,
  batch: Batch,
  *,
  rho: float = 0.05,
  mask: Mask = "*",
  key: Key | None = None,
) -> Array:
  r"""Computes the rise of the loss after a step of length `rho` along the gradient.

  .. math:: L(\theta + \rho\, g / \lVert g \rVert) - L(\theta), \qquad g = \nabla L(\theta)

  It is a first-order approximation of the largest rise in a ball. If the gradient is 0, the result is 0.

  Args:
    loss_fn, params, batch, mask, key: as in `hvp`; the paper's `m`-sharpness is a mean over small batches.
    rho: radius of the ball.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 * (params**2).sum()
    >>> sam_sharpness(loss, jnp.array([3.0, 4.0]), None, rho=1.0)
    Array(5.5, dtype=float32)

  References:
    Foret et al., `Sharpness-Aware Minimization for Efficiently Improving Generalization`, 2021, section 2.
  """
  check_range(rho, "rho", low=0, open_low=True)
  return _sam(loss_fn, selected(params, mask), widened(params), widened(batch), key, rho)


@partial(jax.jit, static_argnums=(0, 1))
def _sam(loss_fn, mask, params, batch, key, rho):
  flat, loss = flat_loss(loss_fn, params, mask, batch, key)
  value, gradient = jax.value_and_grad(loss)(flat)
  norm = jnp.linalg.norm(gradient)
  step = jnp.where(norm > 0, rho / jnp.where(norm > 0, norm, 1), 0)
  return loss(flat + step * gradient) - value


class IntervalFlatness(NamedTuple):
  """The result of `interval_flatness`."""

  width: Array
  left: Array
  right: Array
  crossed: Array
  min_ratio: Array
  evaluations: Array


@full_precision
def interval_flatness(
  loss_fn: LossFn,
  params: Params,
  directions: ArrayLike,
  batch: Batch,
  *,
  mask: Mask = "*",
  key: Key | None = None,
  factor: float = 2.0,
  first_step: float | None = None,
  growth: float = 1.5,
  tol: float = 1e-3,
  cap: float = 1e6,
  chunk_size: int = 1,
) -> IntervalFlatness:
  r"""Finds the width of the region around the parameters where the loss is at most `factor` times theirs.

  .. math:: F_v = r - l, \qquad L(\theta + l v) = L(\theta + r v) = c L(\theta), \quad l < 0 < r

  The two sides are searched separately, because a trained network is seldom at the exact minimum. A search
  starts at 0.8 of the previous direction's crossing. It walks outward by factors of `growth` until the loss
  is too large, or inward until it is not. Then it closes the bracket by the ITP method in logarithms of the
  distance and of the rise, where a parabola is a straight line. It finds the first crossing outward from its
  start: if a profile may have several, give `first_step` to start every search there.

  Args:
    loss_fn, params, batch, mask, key: as in `hvp`. A cross-entropy must be accurate near 0, as
      `losses.softmax_cross_entropy` is.
    directions: `[k, size]` in the order of `subset(params, mask).flat`; unit vectors in the paper. For a
      tree like `params` give `subset(tree, mask).flat[None]`.
    factor: `c`, above 1.
    first_step: where every search starts; by default the first starts at a hundredth of the parameters' norm.
    growth: above 1; large steps can jump over a crossing.
    tol: accuracy of a crossing, relative to its distance.
    cap: the largest distance that is searched.
    chunk_size: how many directions to search at a time; 1 is fastest on a CPU.

  Returns:
    A NamedTuple of `[k]`: the crossings `left`, negative, and `right`; their distance `width`, infinite if a
    side was not crossed; `crossed` `[k, 2]`, whether each side was crossed below `cap`; `min_ratio`, the
    smallest loss seen divided by the loss at 0, below 1 if the parameters are not a minimum; `evaluations`,
    the number of evaluations of the loss.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 + 0.5 * (batch * params**2).sum()
    >>> interval_flatness(loss, jnp.zeros(2), jnp.eye(2), jnp.array([4.0, 1.0])).width.round(2)
    Array([1., 2.], dtype=float32)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, definition 2.
    Oliveira and Takahashi, `An Enhancement of the Bisection Method Average Performance Preserving Minmax
    Optimality`, 2020.
  """
  taken = selected(params, mask)
  params, batch = widened(params), widened(batch)
  directions = check_directions(directions, split(params, taken).flat.size)
  check_range(factor, "factor", low=1, open_low=True)
  check_range(growth, "growth", low=1, open_low=True)
  check_range(tol, "tol", low=0, high=1, open_low=True)
  check_range(cap, "cap", low=0, open_low=True)
  if first_step is not None:
    check_range(first_step, "first_step", low=0, high=cap, open_low=True)
    first_step = jnp.asarray(first_step, directions.dtype)  # type: ignore[assignment]
  search = Search(*(jnp.asarray(option, directions.dtype) for option in (factor, growth, tol, cap)))
  result, loss, again = _intervals(
    loss_fn, taken, chunk_size, params, directions, batch, key, first_step, search
  )
  _check_loss(loss, again)
  return result


class Search(NamedTuple):
  """The options of a search, as arrays."""

  factor: Array
  growth: Array
  tol: Array
  cap: Array


@partial(jax.jit, static_argnums=(0, 1, 2))
def _intervals(loss_fn, mask, chunk_size, params, directions, batch, key, first_step, search):
  """Searches all directions; without `first_step` each search starts near the crossing before it."""
  flat, loss_at = flat_loss(loss_fn, params, mask, batch, key)
  # Evaluated twice to detect a changing loss; the compiler merges equal evaluations.
  loss, again = (mean_loss(loss_fn, params, batch, key) for _ in range(2))
  if first_step is None:
    start = 1e-2 * jnp.maximum(jnp.linalg.norm(flat), 1e-3).astype(directions.dtype)
  else:
    start = first_step
  signs = jnp.array([-1, 1], start.dtype)

  def search_sides(starts: Array, direction: Array) -> tuple[Array, Any]:
    direction = direction.astype(flat.dtype)

    def search_side(side: tuple[Array, Array]) -> tuple[Array, Array, Array, Array]:
      sign, start = side

      def profile(distance: Array) -> Array:
        return loss_at(flat + (sign * distance).astype(flat.dtype) * direction)

      return crossing(profile, loss, start, search)

    distances, crossed, smallest, evaluations = jax.lax.map(search_side, (signs, starts))
    if first_step is None:
      starts = jnp.where(crossed, START_FRACTION * distances, starts)
    return starts, (distances, crossed, jnp.minimum(smallest.min(), loss) / loss, evaluations.sum())

  number = len(directions)
  lanes = max(1, min(chunk_size, number))
  rows = -(-number // lanes)
  # Copies of the last direction pad the last row.
  index = jnp.minimum(jnp.arange(rows * lanes), number - 1).reshape(rows, lanes)

  def search_row(starts: Array, row: Array) -> tuple[Array, Any]:
    if lanes > 1:
      return jax.vmap(search_sides)(starts, directions[row])
    return search_sides(starts, directions[row[0]])

  starts = jnp.broadcast_to(start, (lanes, 2) if lanes > 1 else (2,))
  columns = jax.lax.scan(search_row, starts, index)[1]
  distances, crossed, smallest, evaluations = (
    x.reshape(rows * lanes, *x.shape[1 + (lanes > 1) :])[:number] for x in columns
  )
  distances = jnp.where(crossed, distances, jnp.inf)
  result = IntervalFlatness(
    distances.sum(axis=1), -distances[:, 0], distances[:, 1], crossed, smallest, evaluations
  )
  return result, loss, again


def crossing(
  profile: Profile, loss: Array, start: Array, search: Search
) -> tuple[Array, Array, Array, Array]:
  """Finds the distance at which `profile`, which is `loss` at 0, reaches `factor * loss`.

  Returns the distance, whether it exists, the smallest value seen, and the number of evaluations.
  """
  factor, growth, tol, cap = search
  target = factor * loss

  def excess(distance: Array) -> Array:
    # NaN counts as too large.
    return jnp.nan_to_num((profile(distance) - target).astype(start.dtype), nan=jnp.inf, posinf=jnp.inf)

  unknown = jnp.full((), jnp.inf, start.dtype)
  zero = jnp.zeros((), start.dtype)

  def is_open(state):
    low, _, high, _, _, count = state
    return ((low == 0) | jnp.isinf(high)) & (low < cap) & (count < MAX_STEPS)

  def walk(state):
    low, f_low, high, f_high, smallest, count = state
    t = jnp.where(jnp.isinf(high), jnp.where(low == 0, start, jnp.minimum(low * growth, cap)), high / growth)
    f = excess(t)
    below = f < 0
    low, f_low = jnp.where(below, t, low), jnp.where(below, f, f_low)
    high, f_high = jnp.where(below, high, t), jnp.where(below, f_high, f)
    return low, f_low, high, f_high, jnp.minimum(smallest, f), count + 1

  state = (zero, -unknown, unknown, unknown, unknown, jnp.int32(0))
  near, f_near, far, f_far, smallest, count = jax.lax.while_loop(is_open, walk, state)
  crossed = (near > 0) & jnp.isfinite(far) & (far <= cap)

  # Interpolation in log-log coordinates: log(1 + excess / target rise) against log(distance / nearer end). If
  # the loss has hardly risen or has fallen, the logarithm is meaningless and is clipped.
  rise = (target - loss).astype(start.dtype)

  def height(f: Array) -> Array:
    return jnp.log1p(jnp.maximum(f / rise, -0.95))

  width = jnp.log(jnp.where(crossed, far / near, growth))

  # ITP: interpolate, truncate, project; at most one step more than bisection needs.
  tolerance = jnp.maximum(tol, 8 * jnp.finfo(start.dtype).eps) / 2
  slope = 0.02 / width
  steps = jnp.maximum(jnp.ceil(jnp.log2(width / (2 * tolerance))), 0) + 1

  def interpolated(low, y_low, high, y_high):
    x = (y_high * low - y_low * high) / (y_high - y_low)
    return jnp.where(jnp.isfinite(x), x, (low + high) / 2)

  def wide(state):
    low, _, high, _, _, done = state
    return crossed & (high - low > 2 * tolerance) & (done < MAX_STEPS)

  def shrink(state):
    low, y_low, high, y_high, smallest, done = state
    middle = (low + high) / 2
    x = interpolated(low, y_low, high, y_high)
    sign = jnp.sign(middle - x)
    # Step far enough past a good interpolation that the other end of the bracket also comes close.
    step = jnp.maximum(slope * (high - low) ** 2, 0.9 * tolerance)
    x = jnp.where(step <= jnp.abs(middle - x), x + sign * step, middle)
    radius = jnp.maximum(tolerance * 2 ** (steps - done) - (high - low) / 2, 0)
    x = jnp.where(jnp.abs(x - middle) <= radius, x, middle - sign * radius)
    f = excess(near * jnp.exp(x))
    below = f < 0
    low, y_low = jnp.where(below, x, low), jnp.where(below, height(f), y_low)
    high, y_high = jnp.where(below, high, x), jnp.where(below, y_high, height(f))
    return low, y_low, high, y_high, jnp.minimum(smallest, f), done + 1

  state = (zero, height(f_near), width, height(f_far), smallest, jnp.int32(0))
  low, y_low, high, y_high, smallest, done = jax.lax.while_loop(wide, shrink, state)
  distance = near * jnp.exp(interpolated(low, y_low, high, y_high))
  return distance, crossed, smallest + target, count + done


def _check_loss(loss: Array, again: Array) -> None:
  """Checks that the loss is positive, finite and deterministic."""
  if isinstance(loss, Tracer):
    return
  first, second = float(loss), float(again)
  if not 0 < first < float("inf"):
    raise ValueError(f"loss_fn must be positive and finite at params, got {first}")
  if abs(first - second) > 1e3 * float(jnp.finfo(loss.dtype).eps) * first:
    raise ValueError(
      f"loss_fn must give the same loss in every call, got {first:g} and {second:g}; draw all noise from key"
    )
