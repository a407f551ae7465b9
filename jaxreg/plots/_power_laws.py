"""Clouds of points on log axes, with fitted power laws."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from jaxreg.plots._axes import WIDTH, log_ticks, new_figure, tidy

MAX_POINTS = 3000
FEW_POINTS = 300
# No line is drawn for a fit that decides nothing: its interval is wider, or its slope steeper, than this.
WIDEST = 4.0
STEEPEST = 20.0


def power_laws(
  panels: Mapping[str, Mapping[str, tuple[Any, Any, Any]]],
  *,
  xlabels: Sequence[str],
  ylabels: Sequence[str],
  title: str = "",
) -> Figure:
  """Draws one panel per kind of data, with a cloud and a fit for each setting.

  A single power law is a dashed line. If the test of linearity rejects it, two power laws that meet are drawn
  as a bent line. A fit without a result has no line: its slope has a 95 % interval wider than 4, or is
  steeper than 20. The figure has no numbers of the fits; `power_law_table` writes them.

  Panels with the same labels share an axis, so that their sizes can be compared.

  Args:
    panels: by title, and by label of the setting, `(x, y, fit)`, where the fit comes from
      `flatness.power_law_fit` or `flatness.broken_power_law_fit`.
    xlabels, ylabels: one per panel.
    title: above the figure.

  Returns:
    A figure with the panels below each other.

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, figures 2 and 3.
  """
  if not panels or len(panels) != len(xlabels) or len(panels) != len(ylabels):
    raise ValueError(
      f"panels must have at least one entry, each with an xlabel and a ylabel, got {len(panels)} panels, "
      f"{len(xlabels)} xlabels and {len(ylabels)} ylabels"
    )
  figure = new_figure(WIDTH, 0.6 + 3 * len(panels), title)
  same_x, same_y = len(set(xlabels)) == 1, len(set(ylabels)) == 1
  axes = figure.subplots(len(panels), 1, squeeze=False, sharex=same_x, sharey=same_y)[:, 0]
  for axis, (name, series), xlabel, ylabel in zip(axes, panels.items(), xlabels, ylabels, strict=True):
    for number, (label, (x, y, fit)) in enumerate(series.items()):
      x, y = np.asarray(x, float), np.asarray(y, float)
      shown = np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)
      x, y = x[shown], y[shown]
      every = max(1, len(x) // MAX_POINTS)
      if len(x):
        size = 6 if len(x) <= FEW_POINTS else 2.5
        cloud: Any = {"markersize": size, "color": f"C{number}", "alpha": 0.4, "linewidth": 0}
        axis.plot(x[::every], y[::every], ".", label="" if decided(fit) else f"{label}: no slope", **cloud)
        outline = [withStroke(linewidth=3, foreground="black")]  # visible on the cloud of its own colour
        style: Any = {"color": f"C{number}", "linewidth": 1.5, "path_effects": outline}
        if decided(fit):
          axis.plot(*_line(fit, x.min(), x.max()), "--", label=label, **style)
    if axis.lines:
      axis.set_xscale("log")
      axis.set_yscale("log")
      # Beside the axis: on it, six lines of labels would hide the clouds.
      handles, labels = axis.get_legend_handles_labels()
      handles.append(Line2D([], [], color="dimgray", linestyle="", marker="."))
      labels.append("one direction;\ndashes: the fit")
      beside: Any = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
      axis.legend(handles, labels, fontsize="small", frameon=False, **beside)
    else:
      axis.text(0.5, 0.5, "no finite values", ha="center", transform=axis.transAxes)
    tidy(axis, name)
    axis.set_ylabel(ylabel)
    if axis is axes[-1] or not same_x:
      axis.set_xlabel(xlabel)
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
  """Whether a fit has a result: a 95 % interval no wider than 4, and no slope steeper than 20."""
  if hasattr(fit, "slopes"):
    return bool((np.abs(np.asarray(fit.slopes, float)) <= STEEPEST).all())
  low, high = (float(end) for end in fit.slope_interval)
  return high - low <= WIDEST and abs(float(fit.slope)) <= STEEPEST


def power_law_table(panels: Mapping[str, Mapping[str, tuple[Any, Any, Any]]]) -> str:
  """Writes the fits of `power_laws` as a Markdown table: slopes and correlations with their 95 % intervals.

  Args:
    panels: as for `power_laws`.

  Returns:
    A table with a row for each setting of each panel. A fit without a line in the figure has the slope
    "undecided".

  Example:
    >>> from jaxreg.flatness import power_law_fit
    >>> x = jnp.array([1.0, 2.0, 4.0, 8.0])
    >>> print(power_law_table({"gradients": {"keep 0.8": (x, x**-2, power_law_fit(x, x**-2))}}))
    | samples | setting | slope | correlation |
    |---|---|---|---|
    | gradients | keep 0.8 | -2.00 [-2.00, -2.00] | -1.00 [-1.00, -1.00] |
  """
  lines = ["| samples | setting | slope | correlation |", "|---|---|---|---|"]
  lines += [
    f"| {name} | {label} | {_slope(fit)} | {_correlation(fit)} |"
    for name, series in panels.items()
    for label, (_, _, fit) in series.items()
  ]
  return "\n".join(lines)


def _slope(fit: Any) -> str:
  bent = hasattr(fit, "slopes")
  if not decided(fit):
    return "undecided" if bent else f"undecided {_interval(fit.slope_interval)}"
  if bent:
    (below, above), at = fit.slopes, fit.breakpoint[0]
    return f"{float(below):.2f}, then {float(above):.2f} from {float(at):.2g}"
  return f"{float(fit.slope):.2f} {_interval(fit.slope_interval)}"


def _correlation(fit: Any) -> str:
  interval = "" if hasattr(fit, "slopes") else f" {_interval(fit.correlation_interval)}"
  return f"{float(fit.correlation):.2f}{interval}"


def _interval(ends: Any) -> str:
  low, high = (float(end) for end in ends)
  return f"[{low:.2f}, {high:.2f}]"
