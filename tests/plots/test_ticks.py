"""Axes of numbers have at least three labelled ticks, also in small figures."""

import numpy as np
import pytest
import test_marks
import test_texts
from matplotlib.ticker import FixedLocator

from jaxreg._figures import new_figure, tidy


def least(figure):
  """Returns the smallest number of labels that an axis of numbers shows."""
  figure.draw_without_rendering()
  numbers = []
  for axis in (each for axes in figure.axes if axes.axison for each in (axes.xaxis, axes.yaxis)):
    low, high = np.sort(axis.get_view_interval()) + 1e-9 * np.array([-1, 1])
    ticks = (*axis.get_major_ticks(), *axis.get_minor_ticks())
    if not isinstance(axis.get_major_locator(), FixedLocator):  # names, or ticks that the figure chose
      numbers.append(sum(low <= tick.get_loc() <= high and bool(tick.label1.get_text()) for tick in ticks))
  return min(numbers, default=3)


@pytest.mark.thorough
@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("ratio", [1.02, 1.3, 2, 5, 9, 11, 13, 50, 290, 310, 900, 1100, 1e5])
def test_a_small_axis_has_three_ticks(scale, ratio):
  for low in (1e-4, 0.013, 0.97, 1.9, 4.1, 730.0):
    figure = new_figure(1.8, 1.4, "")
    axis = figure.subplots()
    axis.plot([0, 1], [low, ratio * low])
    axis.set_yscale(scale)
    tidy(axis)
    assert least(figure) >= 3, low


@pytest.mark.thorough
@pytest.mark.parametrize("name", test_texts.DRAW)
def test_a_figure_of_the_library_has_three_ticks(name):
  assert least(test_texts.DRAW[name]("a")) >= 3


@pytest.mark.parametrize("draw", [draw for draw, _ in test_marks.FIGURES])
def test_a_figure_with_marks_has_three_ticks(draw):
  assert least(draw()) >= 3
