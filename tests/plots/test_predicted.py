"""Predictions against true values: the figure holds the numbers it was given."""

import numpy as np
import pytest

from jaxreg import plots

RNG = np.random.default_rng(0)
TARGETS = RNG.normal(size=50)
OUTPUTS = TARGETS + 0.1


def test_the_points_and_the_shares_below_each_quantile():
  targets = np.where(np.arange(50) == 3, np.nan, TARGETS)
  quantiles = OUTPUTS[:, None] + np.array([-1.0, 0.0, 0.05])
  figure = plots.predicted(targets, OUTPUTS, quantiles, levels=(0.1, 0.5, 0.9), title="of 49")
  left, right = figure.axes
  known = np.isfinite(targets)
  points = next(line for line in left.lines if "RMSE 0.1" in line.get_label())
  np.testing.assert_array_equal(points.get_xdata(), TARGETS[known])
  np.testing.assert_array_equal(points.get_ydata(), OUTPUTS[known])
  shares = next(line for line in right.lines if line.get_label() == "49 targets")
  np.testing.assert_allclose(shares.get_ydata(), (targets[known, None] <= quantiles[known]).mean(0))
  bars = left.collections[0].get_segments()
  np.testing.assert_allclose([bar[:, 1] for bar in bars], quantiles[known][:, [0, -1]])


def test_one_axis_without_quantiles_and_no_figure_without_targets():
  assert len(plots.predicted(TARGETS, OUTPUTS).axes) == 1
  with pytest.raises(ValueError, match="targets must have at least one finite value"):
    plots.predicted(TARGETS * np.nan, OUTPUTS)
