"""How fast the loss rises near the parameters: in a ball, in a box, and along directions until it doubles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_key, check_range
from jaxreg.flatness._common import analysis, scalar_loss, widened
from jaxreg.flatness._subset import check_directions, flat_loss, selected, split
from jaxreg.typing import Array, Batch, Key, LossFn, Mask, Params

MAX_STEPS = 200  # of one search: with the default growth, the distance grows by a factor of 1e35
FOLLOWED = 0.8  # A search starts at this share of the last crossing; one step outward then usually suffices.

Profile = Callable[[Array], Array]


@analysis
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

  It is a first-order approximation of the largest rise in a ball. Where the gradient is 0 it is 0.

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


@analysis
def keskar_sharpness(
  loss_fn: LossFn,
  params: Params,
  batch: Batch,
  *,
  key: Key,
  eps: float = 1e-3,
  num_starts: int = 4,
  num_steps: int = 20,
  mask: Mask = "*",
) -> Array:
  r"""Searches the largest relative rise of the loss in a box, in percent.

  .. math:: 100 \max_{|z_i| \le \epsilon (|\theta_i| + 1)} \frac{L(\theta + z) - L(\theta)}{1 + L(\theta)}

  It takes projected steps along the gradient's sign from random points of the box, for a lower bound, as the
  paper's ten iterations of L-BFGS-B do.

  Args:
    loss_fn, params, batch, mask: as in `hvp`; the loss is called with `key=None`.
    key: draws the points to start from.
    eps: the size of the box.
    num_starts: number of searches; the largest rise counts.
    num_steps: steps of a search, each as long as 2.5 half sides of the box over `num_steps`.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 * (params**2).sum()
    >>> keskar_sharpness(loss, jnp.zeros(2), None, key=jax.random.key(0), eps=0.1).round(3)
    Array(1., dtype=float32)

  References:
    Keskar et al., `On Large-Batch Training for Deep Learning: Generalization Gap and Sharp Minima`, 2017,
    metric 2.1, with the whole space.
  """
  check_key(key)
  check_range(eps, "eps", low=0, open_low=True)
  check_count(num_starts, "num_starts")
  check_count(num_steps, "num_steps")
  taken = selected(params, mask)
  return _keskar(loss_fn, taken, num_starts, num_steps, widened(params), widened(batch), key, eps)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _keskar(loss_fn, mask, num_starts, num_steps, params, batch, key, eps):
  flat, loss_at = flat_loss(loss_fn, params, mask, batch, None)
  side = eps * (jnp.abs(flat) + 1)
  loss = lambda inside: loss_at(flat + side * inside)

  def search(key: Key) -> Array:
    def step(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
      inside, best = carry
      value, gradient = jax.value_and_grad(loss)(inside)
      return jnp.clip(inside + 2.5 / num_steps * jnp.sign(gradient), -1, 1), jnp.maximum(best, value)

    start = jax.random.uniform(key, flat.shape, flat.dtype, -1, 1)
    inside, best = jax.lax.fori_loop(0, num_steps, step, (start, loss(start)))
    return jnp.maximum(best, loss(inside))

  at_params = loss(jnp.zeros_like(flat))
  found = jax.lax.map(search, jax.random.split(key, num_starts)).max()
  return 100 * jnp.maximum(found - at_params, 0) / (1 + at_params)


class IntervalFlatness(NamedTuple):
  """The result of `interval_flatness`."""

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
  starts at 0.8 of the preceding direction's crossing, walks outward by factors of `growth` until the loss is
  too large, or inward until it is not, and closes the bracket by the ITP method in logarithms of the distance
  and of the rise, where a parabola is a straight line. It finds the first crossing outward from its start: if
  a profile may have several, give `first_step` to start every search there.

  Args:
    loss_fn, params, batch, mask, key: as in `hvp`; use a cross-entropy that is accurate near 0, such as
      `losses.softmax_cross_entropy`.
    directions: `[k, size]` in the order of `subset(params, mask).flat`; unit vectors in the paper. For a
      tree like `params` give `subset(tree, mask).flat[None]`.
    factor: `c`, above 1.
    first_step: the start of every search; by default a hundredth of the parameters' norm for the first.
    growth: above 1; large steps can jump over a crossing.
    tol: accuracy of a crossing, relative to its distance.
    cap: the largest distance that is searched.
    chunk_size: directions at once; 1 is fastest on a CPU.

  Returns:
    A NamedTuple of `[k]`: the crossings `left`, negative, and `right`; their distance `width`, infinite if a
    side was not crossed; `crossed` `[k, 2]`, whether each side was, below `cap`; `min_ratio`, the least loss
    seen over that at 0, below 1 if the parameters are no minimum; `evaluations` of the loss.

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
  search = as_search(directions.dtype, factor, first_step, growth, tol, cap)
  found, at_start = _interval(loss_fn, taken, chunk_size, params, directions, batch, key, search)
  check_loss(*at_start)
  return found


class Search(NamedTuple):
  """The options of `interval_flatness` as arrays; without `start` the first search starts near."""

  start: Array | None
  factor: Array
  growth: Array
  tol: Array
  cap: Array


def as_search(
  dtype: Any,
  factor: float = 2.0,
  first_step: float | None = None,
  growth: float = 1.5,
  tol: float = 1e-3,
  cap: float = 1e6,
) -> Search:
  """Checks the options of a search."""
  check_range(factor, "factor", low=1, open_low=True)
  check_range(growth, "growth", low=1, open_low=True)
  check_range(tol, "tol", low=0, high=1, open_low=True)
  check_range(cap, "cap", low=0, open_low=True)
  if first_step is not None:
    check_range(first_step, "first_step", low=0, high=cap, open_low=True)
  number = lambda x: None if x is None else jnp.asarray(x, dtype)
  return Search(*map(number, (first_step, factor, growth, tol, cap)))  # type: ignore[arg-type]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _interval(loss_fn, mask, chunk_size, params, directions, batch, key, search):
  flat, loss_at = flat_loss(loss_fn, params, mask, batch, key)

  def line(direction: Array) -> Profile:
    direction = direction.astype(flat.dtype)
    return lambda t: loss_at(flat + t.astype(flat.dtype) * direction)

  near = 1e-2 * jnp.maximum(jnp.linalg.norm(flat), 1e-3).astype(directions.dtype)
  # Evaluated twice to detect a changing loss; the compiler merges the two if they are the same.
  loss, again = (scalar_loss(loss_fn, params, batch, key) for _ in range(2))
  return intervals(line, directions, loss, near, search, chunk_size), (loss, again)


def intervals(
  line: Callable[[Any], Profile],
  directions: Any,
  loss: Array,
  near: Array,
  search: Search,
  chunk_size: int = 1,
) -> IntervalFlatness:
  """Searches all directions; `line(direction)` is the loss along one as a function of the distance.

  Without `search.start` the first search starts at `near`, and the others at the preceding crossing.
  """
  start, factor, growth, tol, cap = search
  follow = start is None
  start = near if start is None else start
  number = jax.tree.leaves(directions)[0].shape[0]
  lanes = max(1, min(chunk_size, number))
  rows = -(-number // lanes)
  # Copies of the last direction fill up the last row.
  index = jnp.minimum(jnp.arange(rows * lanes), number - 1).reshape(rows, lanes)
  target = factor * loss
  signs = jnp.array([-1, 1], start.dtype)

  def one(starts: Array, direction: Any) -> tuple[Array, Any]:
    profile = line(direction)
    side = lambda each: crossing(lambda t: profile(each[0] * t), loss, target, each[1], growth, tol, cap)
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
  profile: Profile, loss: Array, target: Array, start: Array, growth: Array, tol: Array, cap: Array
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

  # Interpolation in log-log coordinates: log(1 + excess / target rise) against log(distance / nearer end). If
  # the loss has hardly risen or has fallen, the logarithm is meaningless and is clipped.
  rise = (target - loss).astype(start.dtype)
  height = lambda f: jnp.log1p(jnp.maximum(f / rise, -0.95))
  width = jnp.log(jnp.where(found, far / near, growth))

  # ITP: interpolate, truncate, project; at most one step more than bisection needs.
  tolerance = jnp.maximum(tol, 8 * jnp.finfo(start.dtype).eps) / 2
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
