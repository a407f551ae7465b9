"""The distance along a direction to the point where the loss has doubled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg.flatness._common import analysis, scalar_loss, widened
from jaxreg.flatness._subset import Where, check_no_tree, selected, split
from jaxreg.typing import Array, Batch, Key, LossFn, Params, check_range, check_wide

MAX_STEPS = 200  # per search; with the default growth a factor of 1e35
FOLLOWED = 0.8  # of the last direction's crossing; from there one step outward usually suffices

Profile = Callable[[Array], Array]


class IntervalFlatness(NamedTuple):
  """Widths of the region of small loss, one per direction.

  Attributes:
    width: `[k]`, `right - left`; infinite if a side was not crossed.
    left, right: `[k]`, the points where the loss is `factor` times the loss at 0; `left` is negative.
    crossed: `[k, 2]`, whether the left and the right crossing were found below `cap`.
    min_ratio: `[k]`, the least loss seen over the loss at 0; below 1 the parameters are no minimum along it.
    evaluations: `[k]`, the number of evaluations of the loss.
  """

  width: Array
  left: Array
  right: Array
  crossed: Array
  min_ratio: Array
  evaluations: Array


@analysis
def interval_flatness(
  loss_fn: LossFn,
  params: Params,
  directions: ArrayLike,
  batch: Batch,
  *,
  where: Where = "*",
  key: Key | None = None,
  factor: float = 2.0,
  first_step: float | None = None,
  growth: float = 1.5,
  rtol: float = 1e-3,
  cap: float = 1e6,
  batch_size: int = 1,
) -> IntervalFlatness:
  r"""Finds the width of the region around the parameters where the loss is at most `factor` times theirs.

  .. math:: F_v = r - l, \qquad L(\theta + l v) = L(\theta + r v) = c L(\theta), \quad l < 0 < r

  The two sides are searched separately, because a trained network is seldom at the exact minimum. A search
  starts at 0.8 of the preceding direction's crossing. It walks outward by factors of `growth` until the loss
  is too large, or inward until it is not. Then it closes the bracket by the ITP method, in the logarithms of
  the distance and of the rise of the loss. In these a parabola is a straight line. It finds the first
  crossing outward from its start. If you expect a profile with several crossings, give `first_step` to start
  every search there.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`; use a cross-entropy that is accurate near 0, such as
      `losses.softmax_cross_entropy`.
    params: any pytree.
    directions: `[k, size]` in the order of `subset(params, where).flat`; unit vectors in the paper. For a
      tree like `params` give `subset(tree, where).flat[None]`.
    batch: passed to `loss_fn`.
    where: the parameters that move.
    key: passed to `loss_fn`.
    factor: `c`, above 1.
    first_step: the start of every search; by default the first search starts at a hundredth of the norm of
      the parameters.
    growth: above 1; large steps can jump over a crossing.
    rtol: relative accuracy of a crossing.
    cap: the largest distance that is searched.
    batch_size: directions at once; 1 is fastest on a CPU.

  Returns:
    `IntervalFlatness`.

  Raises:
    TypeError: if `directions` or a selected leaf are not floating, or `key` is no typed key.
    ValueError: if a shape or number does not fit, or the loss at the parameters is not positive, not finite
      or not the same in every call.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 + 0.5 * (batch * params**2).sum()
    >>> interval_flatness(loss, jnp.zeros(2), jnp.eye(2), jnp.array([4.0, 1.0])).width.round(2)
    Array([1., 2.], dtype=float32)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks: flatness of solution and noise structure`,
    2021, definition 2.
    Oliveira and Takahashi, `An Enhancement of the Bisection Method Average Performance Preserving Minmax
    Optimality`, 2020.
  """
  mask = selected(params, where)
  params, batch = widened(params), widened(batch)
  directions = check_directions(directions, split(params, mask).flat.size)
  _check(factor, first_step, growth, rtol, cap)
  start = jnp.asarray(0.0 if first_step is None else first_step, directions.dtype)
  options = (jnp.asarray(value, directions.dtype) for value in (factor, growth, rtol, cap))
  found, at_start = _interval(
    loss_fn, mask, batch_size, first_step is None, params, directions, batch, key, start, *options
  )
  check_loss(*at_start)
  return found


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _interval(
  loss_fn, mask, batch_size, follow, params, directions, batch, key, start, factor, growth, rtol, cap
):
  part = split(params, mask)
  flat = part.flat

  def line(direction: Array) -> Profile:
    direction = direction.astype(flat.dtype)
    return lambda t: scalar_loss(loss_fn, part.merge(flat + t.astype(flat.dtype) * direction), batch, key)

  if follow:
    start = 1e-2 * jnp.maximum(jnp.linalg.norm(flat), 1e-3).astype(directions.dtype)
  # Twice in one program, which computes the loss only once unless it changes from call to call.
  loss, again = (scalar_loss(loss_fn, params, batch, key) for _ in range(2))
  found = intervals(line, directions, loss, start, factor, growth, rtol, cap, follow, batch_size)
  return found, (loss, again)


def intervals(
  line: Callable[[Any], Profile],
  directions: Any,
  loss: Array,
  start: Array,
  factor: Array,
  growth: Array,
  rtol: Array,
  cap: Array,
  follow: bool,
  batch_size: int,
) -> IntervalFlatness:
  """Searches all directions; `line(direction)` is the loss along one as a function of the distance."""
  number = jax.tree.leaves(directions)[0].shape[0]
  lanes = max(1, min(batch_size, number))
  rows = -(-number // lanes)
  # Copies of the last direction fill up the last row.
  index = jnp.minimum(jnp.arange(rows * lanes), number - 1).reshape(rows, lanes)
  target = factor * loss
  signs = jnp.array([-1, 1], start.dtype)

  def one(starts: Array, direction: Any) -> tuple[Array, Any]:
    profile = line(direction)
    side = lambda each: crossing(lambda t: profile(each[0] * t), loss, target, each[1], growth, rtol, cap)
    at, crossed, least, evaluations = jax.lax.map(side, (signs, starts))
    if follow:
      starts = jnp.where(crossed, FOLLOWED * at, starts)
    return starts, (at, crossed, jnp.minimum(least.min(), loss) / loss, evaluations.sum())

  def row(starts: Array, chosen: Array) -> tuple[Array, Any]:
    picked = jax.tree.map(lambda x: x[chosen], directions)
    if lanes > 1:
      return jax.vmap(one)(starts, picked)
    starts, found = one(starts[0], jax.tree.map(lambda x: x[0], picked))
    return starts[None], jax.tree.map(lambda x: x[None], found)

  _, found = jax.lax.scan(row, jnp.broadcast_to(start, (lanes, 2)), index)
  at, crossed, least, evaluations = jax.tree.map(
    lambda x: x.reshape(rows * lanes, *x.shape[2:])[:number], found
  )
  at = jnp.where(crossed, at, jnp.inf)
  return IntervalFlatness(at.sum(axis=1), -at[:, 0], at[:, 1], crossed, least, evaluations)


def crossing(
  profile: Profile, loss: Array, target: Array, start: Array, growth: Array, rtol: Array, cap: Array
) -> tuple[Array, Array, Array, Array]:
  """Finds where `profile`, `loss` at 0, reaches `target`: `(t, found, least value seen, evaluations)`."""
  # NaN counts as too large.
  excess = lambda t: jnp.nan_to_num((profile(t) - target).astype(start.dtype), nan=jnp.inf, posinf=jnp.inf)
  unknown = jnp.full((), jnp.inf, start.dtype)
  zero = jnp.zeros((), start.dtype)

  def open_(state):
    low, _, high, _, _, count = state
    return ((low == 0) | jnp.isinf(high)) & (low < cap) & (count < MAX_STEPS)

  def walk(state):
    low, f_low, high, f_high, least, count = state
    t = jnp.where(jnp.isinf(high), jnp.where(low == 0, start, jnp.minimum(low * growth, cap)), high / growth)
    f = excess(t)
    below = f < 0
    low, f_low = jnp.where(below, t, low), jnp.where(below, f, f_low)
    high, f_high = jnp.where(below, high, t), jnp.where(below, f_high, f)
    return low, f_low, high, f_high, jnp.minimum(least, f), count + 1

  state = (zero, -unknown, unknown, unknown, unknown, jnp.int32(0))
  near, f_near, far, f_far, least, count = jax.lax.while_loop(open_, walk, state)
  found = (near > 0) & jnp.isfinite(far) & (far <= cap)

  # The logarithm of the rise relative to the target's, against the logarithm of the distance relative to the
  # nearer end. If the loss has hardly risen or has fallen, the logarithm is meaningless and is clipped.
  rise = (target - loss).astype(start.dtype)
  height = lambda f: jnp.log1p(jnp.maximum(f / rise, -0.95))
  width = jnp.log(jnp.where(found, far / near, growth))

  # ITP: interpolate, truncate, project; at most one step more than bisection needs.
  tolerance = jnp.maximum(rtol, 8 * jnp.finfo(start.dtype).eps) / 2
  slope = 0.02 / width
  steps = jnp.maximum(jnp.ceil(jnp.log2(width / (2 * tolerance))), 0) + 1

  def interpolated(low, y_low, high, y_high):
    x = (y_high * low - y_low * high) / (y_high - y_low)
    return jnp.where(jnp.isfinite(x), x, (low + high) / 2)

  def wide(state):
    low, _, high, _, _, done = state
    return found & (high - low > 2 * tolerance) & (done < MAX_STEPS)

  def shrink(state):
    low, y_low, high, y_high, least, done = state
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
    return low, y_low, high, y_high, jnp.minimum(least, f), done + 1

  state = (zero, height(f_near), width, height(f_far), least, jnp.int32(0))
  low, y_low, high, y_high, least, done = jax.lax.while_loop(wide, shrink, state)
  at = near * jnp.exp(interpolated(low, y_low, high, y_high))
  return at, found, least + target, count + done


def check_directions(directions: ArrayLike, size: int) -> Array:
  """Returns `directions` if they are `[k, size]`."""
  check_no_tree(directions, "directions", f"rows [k, {size}]", "flat[None]")
  directions = check_wide(directions, "directions")
  if directions.ndim != 2 or directions.shape[1] != size or not len(directions):
    raise ValueError(
      f"directions must be [k, {size}], one row a direction with an entry for each selected parameter, "
      f"got {directions.shape}" + ("; directions[None] is one row" if directions.shape == (size,) else "")
    )
  return directions


def check_loss(loss: Array, again: Array, name: str = "loss_fn") -> None:
  """Checks that the loss is positive, finite and deterministic."""
  if isinstance(loss, Tracer):
    return
  first, second = float(loss), float(again)
  if not 0 < first < float("inf"):
    raise ValueError(f"{name} must be positive and finite at params, got {first}")
  if abs(first - second) > 1e3 * float(jnp.finfo(loss.dtype).eps) * first:
    raise ValueError(
      f"{name} must give the same loss in every call, got {first:g} and {second:g}; draw all noise from key"
    )


def _check(factor: float, first_step: float | None, growth: float, rtol: float, cap: float) -> None:
  check_range(factor, "factor", low=1, open_low=True)
  check_range(growth, "growth", low=1, open_low=True)
  check_range(rtol, "rtol", low=0, high=1, open_low=True)
  check_range(cap, "cap", low=0, open_low=True)
  if first_step is not None:
    check_range(first_step, "first_step", low=0, high=cap, open_low=True)
