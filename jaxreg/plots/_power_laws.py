"""Clouds of points on log axes, with fitted power laws."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from jaxreg._figures import GREY, WIDTH, log_ticks, new_figure, tidy, verbatim

MAX_POINTS = 3000
FEW_POINTS = 300
# No line is drawn for a fit that decides nothing: its interval is wider, or its slope steeper, than this.
WIDEST = 4.0
STEEPEST = 20.0

Panels = Mapping[str, Mapping[str, tuple[Any, Any, Any]]]  # x, y and a fit, by title and label


def power_laws(panels: Panels, *, xlabel: str, ylabel: str, title: str = "") -> Figure:
  """Draws one panel per kind of data, with a cloud and a fit for each setting, on the same axes.

  A single power law is a dashed line. If the test of linearity rejects it, two power laws that meet are drawn
  as a bent line. A fit without a result has no line: its slope has a 95 % interval wider than 4, or is
  steeper than 20. The figure has no numbers of the fits.

  Args:
    panels: by title, and by label of the setting, `(x, y, fit)`, where the fit comes from
      `flatness.power_law_fit` or `flatness.broken_power_law_fit`.
    xlabel, ylabel: of all panels; mathematics may stand between dollar signs.

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, figures 2 and 3.
  """
  if not panels:
    raise ValueError("panels must have at least one entry, got none")
  figure = new_figure(WIDTH, 0.6 + 3 * len(panels), title)
  axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
  for axis, (name, series) in zip(axes, panels.items(), strict=True):
    for number, (label, (x, y, fit)) in enumerate(series.items()):
      x, y = np.asarray(x, float), np.asarray(y, float)
      shown = np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)
      x, y = x[shown], y[shown]
      every = max(1, len(x) // MAX_POINTS)
      if len(x):
        size = 6 if len(x) <= FEW_POINTS else 2.5
        cloud: Any = {"markersize": size, "color": f"C{number}", "alpha": 0.4, "linewidth": 0}
        axis.plot(
          x[::every], y[::every], ".", label="" if decided(fit) else f"{verbatim(label)}: no slope", **cloud
        )
        outline = [withStroke(linewidth=3, foreground="black")]  # visible on the cloud of its own colour
        style: Any = {"color": f"C{number}", "linewidth": 1.5, "path_effects": outline}
        if decided(fit):
          axis.plot(*_line(fit, x.min(), x.max()), "--", label=verbatim(label), **style)
    if axis.lines:
      axis.set(xscale="log", yscale="log")
      mark = Line2D([], [], color=GREY, linestyle="", marker=".", label="one direction;\ndashes: the fit")
      # Right of the axis: on it, six lines of labels would hide the clouds.
      place: Any = {"handles": [*axis.get_legend_handles_labels()[0], mark], "loc": "center left"}
      axis.legend(bbox_to_anchor=(1, 0.5), fontsize="small", frameon=False, **place)
    else:
      axis.text(0.5, 0.5, "no finite values", ha="center", transform=axis.transAxes)
    tidy(axis, verbatim(name))
    axis.set_ylabel(ylabel)
  axes[-1].set_xlabel(xlabel)
  # The ticks come last, because an axis may span several panels.
  for axis in axes:
    if axis.lines:
      log_ticks(axis.xaxis, *axis.get_xlim())
      log_ticks(axis.yaxis, *axis.get_ylim())
  return figure


def _line(fit: Any, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
  if not hasattr(fit, "slopes"):
    ends = np.array([low, high])
    return ends, np.exp(float(fit.intercept)) * ends ** float(fit.slope)
  at, value = (float(number) for number in fit.breakpoint)
  below, above = (float(slope) for slope in fit.slopes)
  ends = np.array([low, at, high])
  return ends, value * np.array([(low / at) ** below, 1, (high / at) ** above])


def decided(fit: Any) -> bool:
  """Tells whether a fit has a result: a 95 % interval no wider than 4, and no slope steeper than 20."""
  if hasattr(fit, "slopes"):
    return bool((np.abs(np.asarray(fit.slopes, float)) <= STEEPEST).all())
  low, high = (float(end) for end in fit.slope_interval)
  return high - low <= WIDEST and abs(float(fit.slope)) <= STEEPEST
