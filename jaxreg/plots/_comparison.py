"""A comparison of methods, side by side."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from jaxreg._figures import WIDTH, legend_below, new_figure, tidy, verbatim
from jaxreg._intervals import cut, interval
from jaxreg._metrics import COMPARED, heading, metric
from jaxreg._paper_names import paper_name

COLORS = ("tab:gray", "tab:blue")  # of the reference, and of the other rows
FAR = 5.0  # a row is far above if it ends this many widths of the others from their start
FAR_ALONE = 2.5  # the same, for the last eighth of many rows
MANY = 24  # from this many rows on, each row is lower, so that all fit on a screen


def comparison(rows: Mapping[str, Mapping[str, Sequence[float]]], *, title: str = "") -> Figure:
  """Draws each method's runs as dots, with their mean and its 95 % confidence interval (Student's t).

  The interval of few runs may reach below 0 or above 100 %, which no value can: the axes end there. A row
  that would flatten a panel is drawn as an arrow at the panel's end, with the mean.

  Args:
    rows: by label, the values of `test/error`, `test/ece` (fractions) and `test/nll` (nats) of its runs, or
      of `test/rmse`, `test/mae` and `test/r2`; the first row is the reference; its mean is drawn through all
      rows.
  """
  if not rows:
    raise ValueError("rows must have at least one entry, got none")
  many = len(rows) > MANY
  size = {"fontsize": 7.5 if many else "small"}
  figure = new_figure(WIDTH, 1.8 + (0.13 if many else 0.3) * len(rows), title)
  first = next(iter(rows.values()))
  panels = [name for name in COMPARED if name in first]
  axes = figure.subplots(1, len(panels), sharey=True)
  for axis, name in zip(axes, panels, strict=True):
    unit, factor = metric(name).unit, metric(name).factor
    most = factor * metric(name).high
    drawn = [factor * np.asarray(runs[name], float) for runs in rows.values()]
    ends = []
    for place, values in enumerate(drawn):
      color = COLORS[min(place, 1)]
      dots = 2.5 if many else 4
      axis.plot(values, np.full(len(values), place), "o", color=color, markersize=dots, alpha=0.4)
      mean, half = interval(values)
      marks = {"capsize": 1.5, "markersize": 6, "linewidth": 1} if many else {"capsize": 4, "markersize": 10}
      xerr = cut(mean, half, (0, most))[:, None]
      axis.errorbar(mean, place, xerr=xerr, fmt="|", color=color, **marks)
      ends.append((min(values.min(), mean - half), max(values.max(), mean + half)))
      if place == 0:
        axis.axvline(mean, color=COLORS[0], linewidth=0.8, linestyle=":")
    low, high = _limits(np.array(ends), most)
    axis.set_xlim(low, high)
    axis.xaxis.set_major_locator(MaxNLocator(3))
    axis.tick_params(axis="x", labelsize="small")
    for place, values in enumerate(drawn):
      if values.mean() > high:
        # An arrow for a row far outside: on its scale, the others would be one point.
        side = axis.get_yaxis_transform()
        middle = {"ha": "right", "va": "center" if many else "bottom", **size}
        axis.text(1, place, f"{values.mean():.3g} ", transform=side, **middle)
        axis.plot(1, place, ">", color=COLORS[1], transform=side, clip_on=False)
    tidy(axis, f"{heading(name)} ({unit})" if unit else heading(name), grid="x")
  axes[0].set_yticks(range(len(rows)), [verbatim(paper_name(label)) for label in rows], **size)
  axes[0].invert_yaxis()
  axes[0].margins(y=0.6 / max(len(rows), 2))
  reference, mean = (
    f"mean of {verbatim(paper_name(next(iter(rows))))}",
    "mean and its 95 % confidence interval",
  )
  handles = [
    Line2D([], [], color=COLORS[1], linestyle="", marker="o", markersize=4, alpha=0.4, label="single run"),
    Line2D([], [], color=COLORS[1], marker="|", markersize=12, label=mean),
    Line2D([], [], color=COLORS[0], linewidth=0.8, linestyle=":", label=reference),
  ]
  legend_below(figure, handles, columns=3)
  return figure


def _limits(ends: np.ndarray, most: float) -> tuple[float, float]:
  """Computes an axis's limits over all intervals, without rows far above if they are fewer than half."""
  lows, highs = ends[np.isfinite(ends).all(axis=1)].T
  if not len(highs):
    return 0.0, 1.0
  order = np.argsort(highs)
  low, high = lows.min(), highs[order[0]]
  for left, index in zip(range(len(order) - 1, 0, -1), order[1:]):
    far = FAR_ALONE if left <= len(order) // 8 else FAR
    few = 2 * left < len(order)
    if few and lows[index] > high and highs[index] - low > far * (high - low) and high > low:
      break
    high = max(high, highs[index])
  margin = 0.05 * (high - low) or 0.5
  return max(low - margin, 0.0), min(high + margin, most)
