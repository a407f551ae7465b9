"""The figures of `flatness.Curvature` hold the numbers they were given."""

import numpy as np
import pytest

from jaxreg import plots
from jaxreg.flatness._layers import Layerwise
from jaxreg.flatness._trace import Estimate


def test_density_has_a_line_and_a_band():
  grid, values = np.linspace(-1, 5, 50), np.exp(-(np.linspace(-1, 5, 50) ** 2))
  figure = plots.density({"a": (grid, values, 0.1 * values), "b": (grid, 2 * values, 0 * values)})
  axis = figure.axes[0]
  np.testing.assert_allclose([line.get_ydata() for line in axis.lines], [values, 2 * values])
  assert axis.get_yscale() == "log"
  assert axis.get_ylim() == pytest.approx((2e-7 * values.max(), 6 * values.max()))
  assert len(axis.collections) == 2
  for wrong, message in (({}, "at least one entry"), ({"a": (grid, values, 0)}, r"a must be three arrays")):
    with pytest.raises(ValueError, match=message):
      plots.density(wrong)
  with pytest.raises(TypeError, match="densities must be a dict from labels to densities, got ndarray"):
    plots.density(grid)


def test_layers_have_a_bar_in_each_panel():
  traces = Estimate(np.array([3.0, -1.0]), np.array([0.5, 0.1]))
  norms = Estimate(np.array([4.0, 2.0]), np.array([0.5, 0.1]))
  found = Layerwise(("a", "b"), np.array([2.0, 1.0]), np.zeros(2), traces, (), norms, ())
  figure = plots.layerwise(found)
  assert [[bar.get_width() for bar in axis.patches] for axis in figure.axes] == [[2, 1], [3, -1], [4, 2]]
  assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["a", "b"]
  missing = Estimate(*np.full((2, 2), np.nan))
  only = plots.layerwise(found._replace(top_eigenvalues=np.full(2, np.nan), frobenius_norms=missing))
  assert [axis.get_xlabel() for axis in only.axes] == ["trace"]
  with pytest.raises(TypeError, match=r"layers must be the result of flatness\.layerwise, got dict"):
    plots.layerwise({"a": found})
  with pytest.raises(ValueError, match="finite values of at least one layer, got 0 layers"):
    plots.layerwise(
      Layerwise((), *np.zeros((2, 0)), Estimate(*np.zeros((2, 0))), (), Estimate(*np.zeros((2, 0))), ())
    )


def test_surface_has_the_path_and_its_shares():
  x, y = np.linspace(-2, 2, 21), np.linspace(-1, 1, 11)
  losses = 0.1 + x[:, None] ** 2 + 3 * y[None] ** 2
  path = np.array([[1.5, 0.5], [0.5, -0.2], [0, 0]])
  figure = plots.surface(x, y, losses, path=path, explained=[0.75, 0.2])
  axis = figure.axes[0]
  np.testing.assert_allclose(axis.lines[0].get_xydata(), path)
  assert axis.get_xlabel() == "first direction, 75% of the path"
  levels = axis.collections[0].levels
  np.testing.assert_allclose(levels[1:] / levels[:-1], levels[1] / levels[0])
  for options, message in (
    ({"losses": losses.T}, r"losses must be \[rows, columns\] = \[21, 11\]"),
    ({"losses": losses * np.nan}, "finite values"),
    ({"losses": losses, "path": path[0]}, r"path must be \[num, 2\]"),
  ):
    with pytest.raises(ValueError, match=message):
      plots.surface(x, y, **options)
