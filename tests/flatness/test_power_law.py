import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxreg import flatness
from jaxreg.flatness._power_law import _student_quantile

power_law_fit = jax.jit(flatness.power_law_fit)
broken_power_law_fit = jax.jit(flatness.broken_power_law_fit)


pytestmark = pytest.mark.usefixtures("x64")


def test_power_law_is_scipy_s_regression():
  generator = np.random.default_rng(0)
  x = np.exp(generator.normal(size=300))
  y = 3 * x**-2.5 * np.exp(0.2 * generator.normal(size=300))
  found = power_law_fit(x, y)
  expected = stats.linregress(np.log(x), np.log(y))
  assert float(found.slope) == pytest.approx(expected.slope)
  assert float(found.intercept) == pytest.approx(expected.intercept)
  assert float(found.correlation) == pytest.approx(expected.rvalue)
  # White's error is nearly the classical one where the scatter is even.
  np.testing.assert_allclose(np.diff(found.slope_interval), 2 * 1.96 * expected.stderr, rtol=0.15)
  interval = stats.pearsonr(np.log(x), np.log(y)).confidence_interval(0.95)
  np.testing.assert_allclose(found.correlation_interval, interval, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("growth", [0.0, 2.0], ids=["even", "growing"])
@pytest.mark.parametrize("size", [4, 5, 8, 50, 200])
def test_intervals_cover_the_truth(size, growth):
  """Scatter that is even or grows along the line, 500 times: at least the level, less 3 standard errors."""

  def covered(key):
    first, second = jax.random.split(key)
    u = jax.random.normal(first, (size,))
    v = 2 * u + jnp.exp(growth * u) * jax.random.normal(second, (size,)) / 10
    low, high = power_law_fit(jnp.exp(u), jnp.exp(v)).slope_interval
    return (low < 2) & (high > 2)

  share = jax.jit(jax.vmap(covered))(jax.random.split(jax.random.key(0), 500)).mean()
  assert share >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 500)


@pytest.mark.thorough
@pytest.mark.parametrize("growth", [0.0, 1.0], ids=["even", "growing"])
@pytest.mark.parametrize("size", [10, 20, 50])
def test_intervals_of_a_bent_line_cover_the_truth(size, growth):
  def covered(key):
    u = jnp.linspace(-1, 1, size)
    v = -jnp.minimum(u - 0.2, 0) - 3 * jnp.maximum(u - 0.2, 0)
    v += jnp.exp(growth * u) * jax.random.normal(key, (size,)) / 10
    low, high = broken_power_law_fit(jnp.exp(u), jnp.exp(v)).slope_intervals.T
    truth = jnp.array([-1, -3])
    return (low < truth) & (high > truth)

  shares = jax.jit(jax.vmap(covered))(jax.random.split(jax.random.key(0), 100)).mean(axis=0)
  assert (shares >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 100)).all()


@pytest.mark.thorough
@pytest.mark.parametrize("size", [5, 20])
def test_intervals_of_the_correlation_cover_that_of_normal_logarithms(size):
  def covered(key):
    u, other = jax.random.normal(key, (2, size))
    low, high = power_law_fit(jnp.exp(u), jnp.exp(0.6 * u + 0.8 * other)).correlation_interval
    return (low < 0.6) & (high > 0.6)

  share = jax.jit(jax.vmap(covered))(jax.random.split(jax.random.key(0), 1000)).mean()
  assert share >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 1000)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_quantiles_are_those_of_student_s_t(confidence):
  freedom = np.array([1, 2.5, 10, 300, 1e5])
  quantile = _student_quantile(confidence, jnp.asarray(freedom))
  np.testing.assert_allclose(quantile, stats.t.ppf((1 + confidence) / 2, freedom), rtol=1e-6)


@pytest.mark.thorough
def test_points_without_a_logarithm_do_not_count():
  x, y = np.array([1.0, 2, 4, 8, 16, 0, 3, np.inf]), np.array([1.0, 4, 16, 64, 256, 5, -1, 2])
  found = power_law_fit(x, y)
  assert found.num_points == 5
  assert float(found.slope) == pytest.approx(2)
  # White's error of type HC3, and Bell and McCaffrey's degrees of freedom, in plain matrices.
  y[1] = 6.0
  design = np.stack([np.ones(5), np.log(x[:5])], axis=1)
  coefficients, *_ = np.linalg.lstsq(design, np.log(y[:5]), rcond=None)
  left, inverse = np.log(y[:5]) - design @ coefficients, np.linalg.inv(design.T @ design)
  maker = np.eye(5) - design @ inverse @ design.T
  rows = inverse @ design.T
  variance = np.square(rows[1] * left / np.diag(maker)).sum()
  form = maker * rows[1] / np.sqrt(np.diag(maker))
  eigenvalues = np.linalg.eigvalsh(form.T @ form)
  freedom = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
  interval = power_law_fit(x, y).slope_interval
  half = stats.t.ppf(0.975, freedom) * np.sqrt(variance)
  np.testing.assert_allclose(np.diff(interval), 2 * half, rtol=1e-8)
  y[1] = 4.0
  masked = power_law_fit(x, y, where=np.arange(8) < 4)
  assert masked.num_points == 4
  assert np.isnan(power_law_fit(x[:3], y[:3]).slope)


def _hc3_p_value(u, v):
  """Of the quadratic term: the sandwich formula of MacKinnon and White (1985), in plain matrices."""
  x = np.stack([np.ones_like(u), u, u**2], axis=1)
  bread = np.linalg.inv(x.T @ x)
  beta = bread @ x.T @ v
  left = (v - x @ beta) / (1 - np.diag(x @ bread @ x.T))
  covariance = bread @ x.T @ np.diag(left**2) @ x @ bread
  return 2 * stats.t.sf(abs(beta[2]) / np.sqrt(covariance[2, 2]), len(u) - 3)


def _runs_p_value(u, v):
  """Of the number of runs of one sign, with the moments of Wald and Wolfowitz (1940), as a normal one."""
  fit = stats.linregress(u, v)
  signs = (v - fit.intercept - fit.slope * u > 0)[np.argsort(u)]
  runs = 1 + sum(one != other for one, other in zip(signs[1:], signs[:-1], strict=True))
  m, n = signs.sum(), (~signs).sum()
  mean = 2 * m * n / (m + n) + 1
  variance = 2 * m * n * (2 * m * n - m - n) / ((m + n) ** 2 * (m + n - 1))
  return stats.norm.cdf((runs - mean) / np.sqrt(variance))


@pytest.mark.thorough
@pytest.mark.parametrize("bend", [0.0, 0.05, 0.15])
def test_linearity_is_the_textbook_test(bend):
  generator = np.random.default_rng(1)
  u = generator.normal(size=40)
  v = 1 - 2 * u + bend * u**2 + 0.2 * generator.normal(size=40)
  found = power_law_fit(np.exp(u), np.exp(v))
  wanted = min(1, 2 * min(_hc3_p_value(u, v), _runs_p_value(u, v)))
  assert float(found.linearity) == pytest.approx(wanted, rel=1e-6)


def test_linearity_refuses_a_law_that_winds():
  """No quadratic term in it: the sum of a slope and an odd function."""
  generator = np.random.default_rng(0)
  u = np.linspace(-3, 3, 121)
  v = -2 * u - np.sin(2 * u) + 0.1 * generator.normal(size=121)
  assert _hc3_p_value(u, v) > 0.05
  assert power_law_fit(np.exp(u), np.exp(v)).linearity < 1e-6


@pytest.mark.thorough
def test_linearity_refuses_bent_laws_and_rarely_straight_ones():
  """2000 times, at 5 per cent: even scatter, scatter that grows along the line, and a bend beside that."""

  def p_value(key, bend, growth):
    first, second = jax.random.split(key)
    u = jax.random.normal(first, (100,))
    scatter = jnp.where(growth, 0.1 + jnp.abs(u), 1.0)
    v = -2 * u - bend * u**2 + scatter * jax.random.normal(second, (100,))
    return power_law_fit(jnp.exp(u), jnp.exp(v)).linearity

  p_values = jax.jit(jax.vmap(p_value, in_axes=(0, None, None)))
  share = lambda *args: (p_values(jax.random.split(jax.random.key(0), 2000), *args) < 0.05).mean()
  assert 0.03 < share(0.0, False) < 0.07
  assert 0.05 < share(0.0, True) < 0.12  # what the docstring says
  assert share(1.0, True) > 0.8
  x = np.geomspace(1, 9, 50, dtype=np.float32)
  assert power_law_fit(x, x**-2).linearity > 0.05


@pytest.mark.thorough
def test_broken_power_law_finds_both_slopes():
  generator = np.random.default_rng(0)
  u = np.linspace(-3, 2, 200)
  v = 0.5 - 1.5 * np.minimum(u - 0.5, 0) - 4 * np.maximum(u - 0.5, 0) + 0.1 * generator.normal(size=200)
  mask = np.arange(250) < 200
  x, y = (np.pad(np.exp(values), (0, 50), constant_values=7.0) for values in (u, v))
  found = broken_power_law_fit(x, y, where=mask)
  np.testing.assert_allclose(np.log(found.breakpoint), [0.5, 0.5], atol=0.1)
  np.testing.assert_allclose(found.slopes, [-1.5, -4], atol=0.1)
  assert (found.slope_intervals[:, 0] < found.slopes).all()
  # The lines are the least squares of SciPy on the two sides, joined at the breakpoint.
  at = float(np.log(found.breakpoint[0]))
  design = np.stack([np.ones(200), np.minimum(u - at, 0), np.maximum(u - at, 0)], axis=1)
  expected, *_ = np.linalg.lstsq(design, v)
  np.testing.assert_allclose([np.log(found.breakpoint[1]), *found.slopes], expected, rtol=1e-6)
  assert found.linearity < 1e-6
  assert found.num_points == 200
  assert np.isnan(broken_power_law_fit(x[:7], y[:7]).slopes).all()


def test_bad_arguments():
  with pytest.raises(ValueError, match=r"y must have shape \(3,\), got \(2,\)"):
    flatness.power_law_fit(np.ones(3), np.ones(2))
  with pytest.raises(ValueError, match="where must be booleans"):
    flatness.power_law_fit(np.ones(3), np.ones(3), where=np.ones(3))


def test_points_may_lie_on_several_devices():
  mesh = jax.make_mesh((4,), ("data",))
  x = np.linspace(1, 9, 16)
  y = 3 * x**-2
  placed = [jax.device_put(each, jax.NamedSharding(mesh, jax.P("data"))) for each in (x, y)]
  for function in (flatness.power_law_fit, flatness.broken_power_law_fit):
    for got, want in zip(function(*placed), function(x, y), strict=True):
      np.testing.assert_allclose(got, want, rtol=1e-6)
