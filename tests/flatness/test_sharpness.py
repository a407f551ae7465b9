"""Sharpness of quadratics in closed form, and intervals of small loss."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest

from jaxreg import flatness, losses

ROOT = np.random.default_rng(0).normal(size=(5, 5))


MATRIX, POINT = ROOT @ ROOT.T, np.random.default_rng(1).normal(size=5)


def loss(params, batch, *, key):
  return 0.5 * params["w"] @ (batch @ params["w"]) + params["still"].sum()


PARAMS = {"still": np.ones(2), "w": POINT}


@pytest.mark.usefixtures("x64")
def test_sam_sharpness_of_a_quadratic():
  """rho |g| + rho^2 g' H g / 2 |g|^2, and 0 at the minimum."""
  g = MATRIX @ POINT
  expected = 0.3 * np.linalg.norm(g) + 0.5 * 0.09 * g @ MATRIX @ g / (g @ g)
  found = flatness.sam_sharpness(loss, PARAMS, jnp.asarray(MATRIX), rho=0.3, mask="w")
  assert float(found) == pytest.approx(expected, rel=1e-12)
  at_minimum = {**PARAMS, "w": jnp.zeros(5)}
  assert float(flatness.sam_sharpness(loss, at_minimum, jnp.asarray(MATRIX), rho=0.3, mask="w")) == 0


def test_bad_arguments():
  with pytest.raises(ValueError, match="rho must"):
    flatness.sam_sharpness(loss, PARAMS, MATRIX, rho=0.0)


X64 = jax.enable_x64


def _width(profile, directions=((1.0,),), params=0.0, **options):
  """Of a profile over one number."""
  loss = lambda params, batch, *, key: profile(params["t"][0])
  return flatness.interval_flatness(loss, {"t": jnp.array([params])}, jnp.array(directions), None, **options)


@pytest.mark.thorough
@pytest.mark.claim("flatness", "definition 2", "of L = L0 + a t^2 / 2 it is 2 sqrt(2 L0 / a)")
@pytest.mark.parametrize("curvature", [1e-4, 1.0, 1e5])
@pytest.mark.parametrize("loss", [1e-6, 2.0])
def test_quadratic(curvature, loss):
  with X64(True):
    found = _width(lambda t: loss + curvature * t**2 / 2)
    np.testing.assert_allclose(found.width, 2 * np.sqrt(2 * loss / curvature), rtol=1e-3)
    np.testing.assert_allclose(found.right, -np.asarray(found.left), rtol=2e-3)
    assert found.crossed.all()
    assert found.min_ratio == pytest.approx(1)


@pytest.mark.claim(
  "flatness", "definition 2", "the level is a factor of the loss; the paper says 2 or another"
)
@pytest.mark.parametrize("factor", [1.5, 2.0, np.e, 3.0])
def test_factor(factor):
  with X64(True):
    found = _width(lambda t: 0.5 + t**2, factor=factor, tol=1e-9)
    np.testing.assert_allclose(found.width, 2 * np.sqrt(0.5 * (factor - 1)), rtol=1e-9)


@pytest.mark.thorough
def test_sides_are_searched_each_for_itself():
  """A kink, a tilted parabola that dips below the loss at 0, and no number beyond a point."""
  with X64(True):
    kink = _width(lambda t: 1 + jnp.where(t > 0, 4 * t, -t / 2))
    np.testing.assert_allclose([kink.left[0], kink.right[0]], [-2, 0.25], rtol=2e-3)
    tilted = _width(lambda t: (t - 1) ** 2 + 1)
    np.testing.assert_allclose([tilted.left[0], tilted.right[0]], [1 - np.sqrt(3), 1 + np.sqrt(3)], rtol=2e-3)
    assert tilted.min_ratio[0] < 0.6
    log = _width(lambda t: 1 - jnp.log1p(-t) + t**2)
    assert log.crossed.all()
    assert 0 < log.right[0] < 1
    ends = _width(lambda t: jnp.where(t > 0.7, jnp.nan, 1 + t**2))
    np.testing.assert_allclose([ends.left[0], ends.right[0]], [-1, 0.7], rtol=2e-3)


def test_kinks_are_seen_by_the_interval_and_not_by_the_curvature():
  """Flat up to a ReLU's kink at 1: no second derivative, and a finite width that a parabola has not."""
  loss = lambda params, batch, *, key: 1 + jax.nn.relu(jnp.abs(params[0]) - 1) * batch
  with X64(True):
    found = flatness.interval_flatness(loss, jnp.zeros(1), jnp.ones((1, 1)), 2.0)
    np.testing.assert_allclose([found.left[0], found.right[0]], [-1.5, 1.5], rtol=1e-3)
    np.testing.assert_array_equal(flatness.hessian(loss, jnp.full(1, 0.5), 2.0), 0)


@pytest.mark.thorough
def test_near_zero_loss_in_single_precision():
  """At 1e-8 the level is found as in float64, where of `logsumexp(z) - z_y` nothing is left."""
  generator = np.random.default_rng(0)
  directions = np.linalg.qr(generator.normal(size=(12, 3)))[0].T
  inputs, labels = generator.normal(size=(20, 4)), np.arange(20) % 3
  margins = np.float32(18 * np.eye(3)[labels] + generator.uniform(size=(20, 3)))

  def loss(params, batch, *, key):
    return losses.softmax_cross_entropy(batch[0] @ params.reshape(4, 3) + batch[1], labels).mean()

  def width(dtype):
    batch = jnp.asarray(inputs, dtype), jnp.asarray(margins, dtype)
    return flatness.interval_flatness(loss, jnp.zeros(12, dtype), jnp.asarray(directions, dtype), batch).width

  with X64(True):
    exact = width(np.float64)
    assert np.isfinite(exact).all()
    np.testing.assert_allclose(width(np.float32), exact, rtol=3e-3)
  naive = jax.nn.logsumexp(margins, axis=1) - margins[np.arange(20), labels]
  assert not naive.any()


def test_a_flat_direction_is_infinite_and_flagged():
  with X64(True):
    found = _width(lambda t: jnp.where(t > 0, 1 + t**2, 1.0), cap=1e3)
    assert np.isinf(found.width[0])
    assert np.isinf(found.left[0])
    np.testing.assert_array_equal(found.crossed, [[False, True]])
    assert found.right[0] == pytest.approx(1, rel=1e-3)
    edge = _width(lambda t: 1 + t**2, first_step=1.0, cap=1.0)  # the cap is the last distance of the search
    np.testing.assert_allclose(edge.width, 2, rtol=1e-3)


def test_first_crossing_from_a_small_first_step():
  """Above the level from 1 to 2 and below it again until 30."""
  bumpy = lambda t: 1 + jnp.where((jnp.abs(t) > 1) & (jnp.abs(t) < 2), 5.0, 0.0) + (t / 30) ** 2
  with X64(True):
    found = _width(bumpy, first_step=1e-3, tol=1e-6)
    np.testing.assert_allclose([found.left[0], found.right[0]], [-1, 1], rtol=1e-5)


@pytest.mark.thorough
def test_evaluations_and_first_step_are_those_seen():
  """By a callback of the loss: two evaluations at 0, and then the search from the step that was asked for."""
  seen = []

  def profile(t):
    jax.debug.callback(lambda t: seen.append(float(t)), t)
    return 1 + t**2

  with X64(True):
    found = _width(profile, first_step=0.3, growth=2.0)
    jax.effects_barrier()
  moved = [t for t in seen if t != 0]
  assert int(found.evaluations[0]) == len(moved)
  # Both sides walk outward to 1.2, and close the bracket between it and 0.6.
  assert {-0.3, -0.6, -1.2, 0.3, 0.6, 1.2} <= {round(t, 12) for t in moved}
  assert min(abs(t) for t in moved) == pytest.approx(0.3)


@pytest.mark.thorough
@pytest.mark.parametrize("chunk_size", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_of_a_network_against_a_dense_scan(chunk_size):
  """NumPy's linear interpolation on 40 001 points; far directions take few evaluations each."""
  with X64(True):
    params, batch = nets.make_params(), nets.make_batch()
    part = flatness.subset(params, "Dense_1/*")
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(part.flat.size, 5)))[0].T
    found = flatness.interval_flatness(
      nets.loss_fn,
      params,
      jnp.asarray(directions),
      batch,
      mask="Dense_1/*",
      factor=1.2,
      cap=20.0,
      chunk_size=chunk_size,
    )
    t = np.linspace(-20, 20, 40_001)
    loss = jax.jit(
      jax.vmap(lambda v, t: nets.loss_fn(part.merge(part.flat + t * v), batch, key=None), (None, 0))
    )
    level = 1.2 * float(nets.loss_fn(params, batch, key=None))
    for v, left, right in zip(directions, found.left, found.right):
      above = np.asarray(loss(v, t)) > level
      expected = t[above & (t < 0)].max(initial=-np.inf), t[above & (t > 0)].min(initial=np.inf)
      np.testing.assert_allclose([left, right], expected, atol=2e-3, rtol=1e-3)
    assert np.isfinite(found.width).any()
    # The first search of every lane starts far inside.
    assert np.asarray(found.evaluations).mean() < (22 if chunk_size == 1 else 32)


@pytest.mark.thorough
def test_order_of_the_parameters_changes_nothing():
  with X64(True):
    params, batch = nets.make_params(), nets.make_batch()
    renamed = lambda p: {"Dense_0": p["c"], "Dense_1": p["b"], "Dense_2": p["a"]}
    other = {"c": params["Dense_0"], "b": params["Dense_1"], "a": params["Dense_2"]}
    direction = flatness.filter_normalized_direction(jax.random.key(0), params)
    flipped = {"c": direction["Dense_0"], "b": direction["Dense_1"], "a": direction["Dense_2"]}
    here = flatness.interval_flatness(nets.loss_fn, params, flatness.subset(direction).flat[None], batch)
    loss = lambda params, batch, *, key: nets.loss_fn(renamed(params), batch, key=key)
    there = flatness.interval_flatness(loss, other, flatness.subset(flipped).flat[None], batch)
    np.testing.assert_allclose(here.width, there.width, rtol=1e-9)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"factor": 1.0}, r"factor must lie in \(1, inf\), got 1.0"),
    ({"growth": 0.9}, "growth must lie in"),
    ({"first_step": 0.0}, "first_step must lie in"),
    ({"directions": ((1.0, 0.0),)}, r"directions must be \[k, 1\].*got \(1, 2\)"),
  ],
)
def test_bad_arguments_of_intervals(options, message):
  with pytest.raises(ValueError, match=message):
    _width(lambda t: 1 + t**2, **options)


def test_directions_are_rows():
  params = {"a": jnp.ones(2), "b": jnp.ones(3)}
  loss = lambda params, batch, *, key: 1 + (params["a"] ** 2).sum()
  with pytest.raises(
    TypeError, match=r"directions must be rows \[k, 5\], got a tree; convert it with subset.*flat\[None\]"
  ):
    flatness.interval_flatness(loss, params, params, None)
  with pytest.raises(ValueError, match=r"got \(5,\); directions\[None\] is one row"):
    flatness.interval_flatness(loss, params, flatness.subset(params).flat, None)


def test_a_loss_of_zero_has_no_multiple():
  with pytest.raises(ValueError, match=r"loss_fn must be positive and finite at params, got 0\.0"):
    _width(lambda t: t**2)
