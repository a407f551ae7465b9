"""The figures of the geometry of SGD: what is drawn is what was given, and the data are what they say."""

import jax
import numpy as np
import pytest

from papers.adaptive_sgd import _geometry as geometry
from papers.adaptive_sgd import plots as adaptive_sgd_plots


@pytest.mark.thorough
def test_steps_end_on_their_balls_where_the_loss_is_least():
  gradient, metric = np.array([-1.0, -0.45]), np.array([[2.0, -1.0], [-1.0, 1.2]])
  found = geometry.balls(gradient, metric)
  for edge, step in found.values():
    np.testing.assert_allclose((edge @ gradient).min(), step @ gradient, rtol=1e-3)
    assert np.linalg.norm(edge - step, axis=1).min() < 2e-2
  figure = adaptive_sgd_plots.unit_balls(found, gradient, title="t")
  assert [axis.get_title(loc="left") for axis in figure.axes] == list(found)
  np.testing.assert_allclose(figure.axes[1].lines[0].get_xydata(), found["1.5-norm"][0], rtol=1e-6)


@pytest.mark.thorough
def test_paths_in_both_coordinates():
  hessian, a, start = np.diag([1.0, 0.1]), np.array([[1.0, 0.5], [0.0, 3.0]]), np.array([1.0, -2.0])
  paths = geometry.coordinates(hessian, a, start, 0.1, 3)
  y = np.linalg.solve(a, start)
  for step in range(4):
    np.testing.assert_allclose(paths["y"]["descent in y"][step], y, rtol=1e-4, atol=1e-6)
    y = y - 0.1 * a.T @ hessian @ a @ y
  np.testing.assert_allclose(paths["x"]["descent in x"][1], start - 0.1 * hessian @ start, rtol=1e-6)
  axis = np.linspace(-2, 2, 5)
  figure = adaptive_sgd_plots.descent_paths(
    {"one": (axis, axis, np.add.outer(axis**2, axis**2), paths["x"])}, labels={"one": ("a", "b")}
  )
  assert figure.axes[0].get_xlabel() == "a"
  np.testing.assert_allclose(figure.axes[0].lines[1].get_xydata(), paths["x"]["descent in y"])


@pytest.mark.thorough
def test_stationary_points_of_a_tiny_net():
  with jax.enable_x64(True):
    losses, indices = geometry.stationary(0, starts=12, hidden=1, iterations=40)
  assert losses.shape == indices.shape
  assert losses.size >= 3
  assert set(np.round(6 * indices, 6)) <= set(range(7))  # of 6 parameters
  losses, errors = geometry.widths(0, sizes=(1, 4), trials=3, steps=20)
  assert list(losses) == list(errors) == ["1 unit", "4 units"]
  assert all(np.isfinite(x).all() and x.shape == (3,) for x in (*losses.values(), *errors.values()))


def test_the_relation_of_small_indices_is_found_again():
  losses = np.linspace(0.1, 1, 60)
  indices = 0.2 * np.maximum(losses / 0.3 - 1, 0) ** 1.5
  a, c, error = geometry.small_index_fit(losses, indices, 1.5, most=0.15)
  np.testing.assert_allclose([a, c], [0.2, 0.3], rtol=0.02)
  assert error < 1e-3 < geometry.small_index_fit(losses, indices, 1.0, most=0.15)[2]


def test_landscape_figures():
  fits = {"a fit": ([0.1, 0.4], [0.0, 0.5])}
  figure = adaptive_sgd_plots.stationary_points([0.1, 0.2, 0.3, 0.4], [0.0, 0.1, 0.2, 0.5], bins=2, fits=fits)
  np.testing.assert_allclose(figure.axes[0].lines[2].get_xydata(), [[0.1, 0.0], [0.4, 0.5]])
  np.testing.assert_allclose(figure.axes[0].lines[1].get_xydata(), [[0.15, 0.05], [0.35, 0.35]])
  figure = adaptive_sgd_plots.final_losses(
    {"2 units": [0.1, 0.3], "4 units": [0.0, 0.0]}, {"2 units": [0.5, 0], "4 units": [0, 0]}
  )
  assert [len(figure.axes), figure.axes[0].get_title(loc="left")] == [
    2,
    "2 units: std 0.1, without error 50 %",
  ]
  heights = [patch.get_height() for patch in figure.axes[1].patches]
  np.testing.assert_allclose([heights[0], sum(heights)], 1)


def test_steps_and_paths_of_lists():
  ball = ([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]], [0.0, 2.0])
  axis, _ = adaptive_sgd_plots.unit_balls({"a": ball, "b": ball}, [0.0, -1.0]).axes
  np.testing.assert_array_equal(axis.lines[0].get_xydata(), ball[0])
  np.testing.assert_allclose(axis.lines[1].get_xydata()[:, 1], [2.0, 2.0])  # level: across the gradient
  plane = ([-1.0, 2.0], [0.0, 3.0], [[0.0, 1.0], [1.0, 2.0]], {"path": [[0.0, 0.0], [1.0, 1.0]]})
  (axis,) = adaptive_sgd_plots.descent_paths({"one": plane}, labels={"one": ("a", "b")}).axes
  assert (axis.get_xlabel(), axis.get_ylabel(), axis.get_title(loc="left")) == ("a", "b", "one")
  assert (axis.get_xlim(), axis.get_ylim()) == ((-1.0, 2.0), (0.0, 3.0))


def test_refusals():
  with pytest.raises(ValueError, match="balls must have at least one"):
    adaptive_sgd_plots.unit_balls({}, [1.0, 0.0])
  with pytest.raises(ValueError, match="planes must have at least one"):
    adaptive_sgd_plots.descent_paths({})
  with pytest.raises(ValueError, match=r"must be \[n\] alike"):
    adaptive_sgd_plots.stationary_points([1.0], [1.0, 2.0])
  with pytest.raises(ValueError, match="must have the same labels"):
    adaptive_sgd_plots.final_losses({"a": [1.0]}, {"b": [1.0]})
