"""Power laws: straight lines in logarithms, a test of straightness, and a bent line of two."""

from __future__ import annotations

import statistics
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import betainc
from jax.scipy.stats import norm
from jax.typing import ArrayLike

from jaxreg._checks import check_range, check_wide
from jaxreg._sharding import gathered
from jaxreg.typing import Array


class PowerLaw(NamedTuple):
  """The result of `power_law_fit`."""

  slope: Array
  intercept: Array
  slope_interval: Array
  correlation: Array
  correlation_interval: Array
  linearity: Array
  num_points: Array


class BrokenPowerLaw(NamedTuple):
  """The result of `broken_power_law_fit`."""

  breakpoint: Array
  slopes: Array
  slope_intervals: Array
  correlation: Array
  linearity: Array
  num_points: Array


def power_law_fit(
  x: ArrayLike, y: ArrayLike, *, where: ArrayLike | None = None, confidence: float = 0.95
) -> PowerLaw:
  r"""Fits :math:`\log y = a + b \log x` by least squares, with confidence intervals.

  The slope's interval allows for scatter that changes along the line: White's standard error of type HC3,
  and the quantile of Student's t with Bell and McCaffrey's degrees of freedom. For few points it is wider
  than its level asks for. The correlation's interval is Fisher's, which holds for normal logarithms. Both
  assume independent points. Only points that are positive and finite in both coordinates count.

  The test of linearity combines two tests with Bonferroni's correction: Student's t, with White's error of
  type HC3, whether `c` is 0 in a further term :math:`c (\log x)^2`; and Wald and Wolfowitz' count of runs of
  residuals of one sign along `x`. With 100 points and even scatter, a straight law is rejected as often as
  the level says; if the scatter grows tenfold along the line, about twice as often.

  Args:
    x, y: `[points]`.
    where: `[points]`, the points that count.
    confidence: level of the intervals.

  Returns:
    A NamedTuple: `slope` and `intercept`, in natural logarithms; `correlation` of the logarithms;
    `slope_interval` and `correlation_interval` `[2]`; `linearity`, the p-value of the test: if it is small,
    the relation is not a power law, and the slope depends on the range of `x`; `num_points`, the number of
    points that count. NaN if `x` is constant or fewer than 4 points count; `linearity` needs 5.

  Example:
    >>> x = jnp.array([1.0, 2.0, 4.0, 8.0])
    >>> power_law_fit(x, 3 * x**-2).slope.round(3)
    Array(-2., dtype=float32)

  References:
    White, `A heteroskedasticity-consistent covariance matrix estimator`, 1980; MacKinnon and White, 1985
    (HC3); Bell and McCaffrey, `Bias reduction in standard errors for linear regression with multi-stage
    samples`, 2002; Wald and Wolfowitz, `On a test whether two samples are from the same population`, 1940.
  """
  return _straight(*_logarithms(x, y, where, confidence), float(confidence))


@partial(jax.jit, static_argnums=3)  # an eager loop would compile in each call
def _straight(u: Array, v: Array, weight: Array, confidence: float) -> PowerLaw:
  number = weight.sum()
  enough = jnp.where(number >= 4, 1.0, jnp.nan)
  mean_u, mean_v = ((weight * value).sum() / number for value in (u, v))
  du, dv = weight * (u - mean_u), weight * (v - mean_v)
  spread = (du**2).sum()
  slope = (du * dv).sum() / spread * enough
  intercept = mean_v - slope * mean_u
  residuals = weight * (v - intercept - slope * u)
  correlation = (du * dv).sum() / jnp.sqrt(spread * (dv**2).sum()) * enough
  scaled = jnp.stack([weight, du / jnp.sqrt(spread)], axis=1)
  deviations, freedoms = _robust_errors(scaled, residuals, v, weight)
  half = _student_quantile(confidence, freedoms[1]) * deviations[1] / jnp.sqrt(spread)
  slope_interval = jnp.stack([slope - half, slope + half])
  # Rounding can raise a perfect correlation slightly above 1.
  z = jnp.arctanh(jnp.clip(correlation, -1, 1))
  half = statistics.NormalDist().inv_cdf((1 + confidence) / 2) / jnp.sqrt(number - 3)
  correlation_interval = jnp.tanh(jnp.stack([z - half, z + half]))
  p_values = jnp.stack([_no_quadratic_term(du, v, weight), _mixed_signs(u, v, residuals)])
  linearity, count = jnp.minimum(2 * p_values.min(), 1), number.astype(int)
  return PowerLaw(slope, intercept, slope_interval, correlation, correlation_interval, linearity, count)


def broken_power_law_fit(
  x: ArrayLike, y: ArrayLike, *, where: ArrayLike | None = None, confidence: float = 0.95
) -> BrokenPowerLaw:
  r"""Fits two power laws that meet, for a relation that `power_law_fit` finds not to be straight.

  .. math:: \log y = a + b_1 \min(\log x - t, 0) + b_2 \max(\log x - t, 0)

  The breakpoint :math:`t` is the quantile of `log x` with the smallest squared error, among the 91 quantiles
  from 5 to 95 per cent that have at least 3 points on each side. The interval of a slope holds those
  for all breakpoints that an F test of the squared error does not reject; each has the errors of
  `power_law_fit`, for lines that need not meet. It is wide for few points.

  Args:
    x, y, where, confidence: as in `power_law_fit`.

  Returns:
    A NamedTuple: `breakpoint` `[2]`, `x` and `y` of the point where the lines meet; `slopes` `[2]`, below and
    above it; `slope_intervals` `[2, 2]`, a row per slope; `correlation`, `linearity` and `num_points` as in
    `power_law_fit`. The numbers are NaN with fewer than 8 points or a constant `x`.

  Example:
    >>> x = jnp.geomspace(0.1, 10.0, 101)
    >>> broken_power_law_fit(x, jnp.where(x < 1, x**-1, x**-3)).slopes.round(2)
    Array([-1., -3.], dtype=float32)

  References:
    Muggeo, `Estimating regression models with unknown break-points`, 2003.
  """
  return _broken(*_logarithms(x, y, where, confidence), confidence)


@jax.jit
def _broken(u: Array, v: Array, weight: Array, confidence: float) -> BrokenPowerLaw:
  number = weight.sum()
  ordered = jnp.sort(jnp.where(weight > 0, u, jnp.inf))
  ranks = jnp.linspace(0.05, 0.95, 91) * (number - 1)
  ranks = jnp.clip(ranks, 2, jnp.maximum(number - 4, 2))
  below, part = jnp.floor(ranks).astype(int), ranks % 1
  breaks = (1 - part) * ordered[below] + part * ordered[jnp.ceil(ranks).astype(int)]

  def fit(breakpoint_: Array) -> tuple[Array, Array, Array]:
    below, above = jnp.minimum(u - breakpoint_, 0), jnp.maximum(u - breakpoint_, 0)
    design = jnp.stack([jnp.ones_like(u), below, above], axis=1)
    coefficients, residuals = _least_squares(design, v, weight)
    # The column of the breakpoint in the linearised model: it is estimated, too.
    step = (u > breakpoint_).astype(u.dtype)[:, None]
    deviations, freedoms = _robust_errors(jnp.concatenate([design, step], axis=1), residuals, v, weight)
    error = (residuals**2).sum()
    half = (_student_quantile(confidence, freedoms) * deviations)[:3]
    return jnp.where(jnp.isfinite(error), error, jnp.inf), coefficients, half

  errors, coefficients, half = jax.lax.map(fit, breaks)
  place = jnp.argmin(errors)
  enough = jnp.where(number >= 8, 1.0, jnp.nan)
  breakpoint_ = jnp.exp(jnp.stack([breaks[place], coefficients[place, 0]])) * enough
  slopes = coefficients[place, 1:] * enough
  ratio = 1 + _student_quantile(confidence, number - 4) ** 2 / (number - 4)
  possible = (errors <= ratio * errors[place])[:, None]
  low = jnp.where(possible, (coefficients - half)[:, 1:], jnp.inf).min(axis=0)
  high = jnp.where(possible, (coefficients + half)[:, 1:], -jnp.inf).max(axis=0)
  intervals = jnp.stack([low, high], axis=1) * enough
  whole = _straight(u, v, weight, 0.95)
  return BrokenPowerLaw(breakpoint_, slopes, intervals, whole.correlation, whole.linearity, whole.num_points)


def _logarithms(
  x: ArrayLike, y: ArrayLike, where: ArrayLike | None, confidence: float
) -> tuple[Array, Array, Array]:
  """Returns both logarithms and weights, which are 1 for points that count and else 0."""
  x = check_wide(x, "x")
  y = check_wide(y, "y", shape=x.shape)
  check_range(confidence, "confidence", low=0, high=1 - 1e-9, open_low=True)
  counts = jnp.isfinite(x) & jnp.isfinite(y) & (x > 0) & (y > 0)
  if where is not None:
    where = jnp.asarray(where)
    if where.shape != x.shape or where.dtype != bool:
      raise ValueError(f"where must be booleans of shape {x.shape}, got {where.dtype} {where.shape}")
    counts &= where
  # Least squares need all points on each device.
  x, y, counts = gathered(x), gathered(y), gathered(counts)
  u, v = (jnp.log(jnp.where(counts, value, 1)) for value in (x, y))
  return u, v, counts.astype(x.dtype)


def _student_quantile(confidence: float, freedom: Array) -> Array:
  """Returns the quantile of Student's t that a share `confidence` of its absolute values stays below."""

  def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
    low, high = ends
    middle = (low + high) / 2
    squares = jnp.exp(2 * middle)
    enough = betainc(0.5, freedom / 2, squares / (freedom + squares)) >= confidence
    return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

  # The ends are logarithms: each step halves their distance.
  start = jnp.full_like(freedom, -20), jnp.full_like(freedom, 25)
  return jnp.where(jnp.isfinite(freedom), jnp.exp(jax.lax.fori_loop(0, 60, halve, start)[1]), jnp.nan)


def _no_quadratic_term(du: Array, v: Array, weight: Array) -> Array:
  """Computes the p-value of the hypothesis that the quadratic term is 0; `du` has mean 0."""
  freedom = weight.sum() - 3
  scaled = du / jnp.sqrt((du**2).sum() / weight.sum())
  design = jnp.stack([jnp.ones_like(du), scaled, scaled**2], axis=1)
  coefficients, residuals = _least_squares(design, v, weight)
  deviations, _ = _robust_errors(design, residuals, v, weight)
  t = coefficients[2] / deviations[2]
  return betainc(freedom / 2, 0.5, freedom / (freedom + t**2)) * jnp.where(freedom >= 2, 1.0, jnp.nan)


def _mixed_signs(u: Array, v: Array, residuals: Array) -> Array:
  """Computes the p-value of the runs of equal sign in the residuals along `u`, except for rounding errors."""
  counts = jnp.abs(residuals) > 8 * jnp.finfo(v.dtype).eps * jnp.abs(v).max()
  order = jnp.argsort(jnp.where(counts, u, jnp.inf))
  positive, counts = residuals[order] > 0, counts[order]
  above, number = (counts & positive).sum(), counts.sum()
  runs = 1 + ((positive[1:] != positive[:-1]) & counts[1:]).sum()
  product = 2.0 * above * (number - above)
  expected = product / number + 1
  deviation = jnp.sqrt((expected - 1) * (expected - 2) / (number - 1))
  return jnp.where(product > 0, norm.cdf((runs - expected) / deviation), 1.0)


def _least_squares(design: Array, v: Array, weight: Array) -> tuple[Array, Array]:
  """Returns the coefficients, and the residuals of `v`."""
  q, r = jnp.linalg.qr(weight[:, None] * design)
  coefficients = jax.scipy.linalg.solve_triangular(r, q.T @ v)
  return coefficients, weight * (v - design @ coefficients)


def _robust_errors(design: Array, residuals: Array, v: Array, weight: Array) -> tuple[Array, Array]:
  """Returns the coefficients' standard errors of type HC3, and Bell and McCaffrey's degrees of freedom."""
  eps = jnp.finfo(v.dtype).eps
  q, r = jnp.linalg.qr(weight[:, None] * design)
  leverage = jnp.minimum((q**2).sum(axis=1), 1 - eps)
  # The residuals of a perfect line are rounding errors, which must not count as evidence for a bend.
  rounding = 8 * eps * jnp.abs(weight * v).max()
  solution = jax.scipy.linalg.solve_triangular(r, q.T)
  scaled = weight * jnp.sqrt(residuals**2 + rounding**2) / (1 - leverage)
  squares = solution**2
  # The variance is a quadratic form of even scatter: its degrees of freedom are (trace A)^2 / trace A^2.
  shares = squares / (1 - leverage)[None]
  products = jnp.einsum("ni,kn,nj->kij", q, shares, q)
  beside = (products**2).sum(axis=(1, 2)) - ((shares * leverage[None]) ** 2).sum(axis=1)
  freedoms = squares.sum(axis=1) ** 2 / ((squares**2).sum(axis=1) + jnp.maximum(beside, 0))
  most = jnp.maximum(weight.sum() - design.shape[1], 1)
  return jnp.sqrt(((solution * scaled[None]) ** 2).sum(axis=1)), jnp.clip(freedoms, 1, most)
