"""Parts of figures: new figures, axis scales, the finish of an axis, and grey entries of a legend."""

import textwrap
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

GREY: Any = "dimgray"
NOT_FINITE = "not finite"  # the group of the marks of values that are not finite
WIDTH = 6.2  # of a figure of the pages, in inches: on a telephone of 390 pixels, small text is 7 pixels high


def new_figure(width: float, height: float, title: str) -> Figure:
  """Makes an empty figure, sized in inches, with automatic layout; a long title has several lines."""
  figure = Figure(figsize=(width, height), layout="constrained")
  if title:
    lines = [textwrap.fill(line, int(12 * width)) for line in title.splitlines()]
    figure.suptitle(verbatim("\n".join(lines)), fontsize="medium")
  return figure


def verbatim(text: object) -> str:
  """Returns a text that Matplotlib shows as it is: without mathematics, and also if it begins with `_`."""
  escaped = str(text).replace("$", r"\$")
  # Legends leave out labels that begin with `_`; this space has no width.
  return f"\u200b{escaped}" if escaped.startswith("_") else escaped


def colors(number: int) -> list[Any]:
  """Returns `number` different colours: the usual ten, or steps of one map from blue to red."""
  if number <= 10:
    return [f"C{place}" for place in range(number)]
  return [colormaps["turbo"](place) for place in np.linspace(0.03, 0.97, number)]


def log_scale(axis: Axes, *, min_ratio: float = 1.0) -> None:
  """Sets a log axis for positive values, a symmetric log axis if some are 0, or else a linear one.

  Args:
    axis: with its lines drawn.
    min_ratio: the axis stays linear if the largest positive value is less than this many times the smallest.
  """
  values = np.concatenate([[], *(x.get_ydata() for x in axis.lines if x.get_gid() != NOT_FINITE)])
  values = values[np.isfinite(values)]
  positive = values[values > 0]
  if (values < 0).any() or (positive.size and positive.max() < min_ratio * positive.min()):
    return
  if not positive.size:
    axis.set_ylim(bottom=0)
    return
  low, high = max(positive.min(), 1e-6 * positive.max()), positive.max()
  if positive.size == values.size:
    axis.set_yscale("log")
    log_ticks(axis.yaxis, low, high)
  else:
    axis.set_yscale("symlog", linthresh=low, linscale=0.3)
    axis.set_ylim(bottom=0)
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    ticks = np.outer(decades, _digits(low, high)).ravel()
    axis.set_yticks([0, *ticks[(ticks >= low) & (ticks <= axis.get_ylim()[1])]])
    _plain(axis.yaxis)


def log_ticks(axis: Axis, low: float, high: float) -> None:
  """Sets plain numbers as ticks of a logarithmic axis with values from `low` to `high`."""
  if high < 12 * low:  # contains too few of the numbers 1, 2 and 5 times a power of ten
    axis.set_major_locator(MaxNLocator(5, min_n_ticks=3))
  else:
    axis.set_major_locator(LogLocator(subs=_digits(low, high), numticks=12))
  _plain(axis)


def _digits(low: float, high: float) -> tuple[int, ...]:
  return (1, 2, 5) if high < 1000 * low else (1,)


def _plain(axis: Axis) -> None:
  axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
  axis.set_minor_formatter(NullFormatter())


def percent_ticks(axis: Axis) -> None:
  """Labels the ticks of an axis of shares in percent."""
  axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
  axis.set_minor_formatter(NullFormatter())


def tidy(axis: Axes, title: str = "", *, grid: Literal["both", "x"] = "both") -> None:
  """Adds a title on the left, a light grid and at least three ticks; hides the upper and the right frame."""
  if title:
    axis.set_title(title, loc="left", fontsize="medium")
  for each in (axis.xaxis, axis.yaxis):
    locator, (low, high) = each.get_major_locator(), each.get_view_interval()
    if isinstance(locator, LogLocator) and 0 < low < high < 1000 * low:
      log_ticks(each, low, high)
    elif isinstance(locator, LogLocator):
      locator.set_params(numticks=int(np.clip(each.get_tick_space(), 5, 9)))
    elif isinstance(locator, MaxNLocator):
      locator.set_params(min_n_ticks=3)
  axis.grid(alpha=0.3, axis=grid)
  axis.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, handles: Sequence[Any], *, columns: int = 2) -> Legend:
  """Adds a legend below the axes: on them, it would cover what is drawn."""
  where = "outside lower center"
  return figure.legend(handles=handles, loc=where, ncols=columns, fontsize="small", frameon=False)


def finish(axis: Axes, title: str, *, legend: bool = True) -> None:
  """Adds title, grid, legend and the label of the epochs; an axis without a line says so.

  If every line has one point, there is no range of values: the axes then start at 0.
  """
  tidy(axis, title)
  axis.set_xlabel("epoch")
  if not axis.lines:
    axis.text(0.5, 0.5, "not recorded", transform=axis.transAxes, ha="center", va="center", color="gray")
    axis.set(xticks=[], yticks=[])
  elif legend or any(x.get_gid() == NOT_FINITE for x in axis.lines):
    axis.legend(fontsize="small", framealpha=0.8)
  _frame_single_points(axis)


def _frame_single_points(axis: Axes) -> None:
  drawn = [np.stack(x.get_data(), axis=1) for x in axis.lines if x.get_transform() == axis.transData]
  if not drawn or any(len(points) > 1 for points in drawn):
    return
  epochs, values = np.concatenate(drawn).T
  axis.set_xlim(0, 1.1 * epochs.max() or 1)
  if axis.get_autoscaley_on() and np.isfinite(values).any():
    axis.set_yscale("linear")
    low, high = 1.1 * min(0, np.nanmin(values)), 1.1 * max(0, np.nanmax(values))
    axis.set_ylim(low, high if high > low else 1)


def dot(label: str) -> Line2D:
  """Returns the entry of a point."""
  return Line2D([], [], color=GREY, linestyle="", marker="o", markersize=4, label=label)


def bar(label: str) -> Line2D:
  """Returns the entry of an upright interval."""
  return Line2D([], [], color=GREY, linestyle="", marker="|", markersize=9, label=label)


def band(label: str) -> Patch:
  """Returns the entry of a filled area."""
  return Patch(color=GREY, alpha=0.25, linewidth=0, label=label)


def stroke(label: str, style: Any = "-", *, width: float = 1.5) -> Line2D:
  """Returns the entry of a line, solid or dashed."""
  return Line2D([], [], color=GREY, linestyle=style, linewidth=width, label=label)
