"""Methods side by side."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from jaxreg.plots._axes import new_figure
from jaxreg.plots._interval import interval

PANELS = {
  "test/error": ("test error (%)", 100, 100),
  "test/nll": ("NLL (nats)", 1, np.inf),
  "test/ece": ("ECE (%)", 100, 100),
}


def comparison(rows: Mapping[str, Mapping[str, Sequence[float]]], *, title: str = "") -> Figure:
  """The runs of each method as dots, their mean and its 95 % confidence interval (Student's t) as a bar.

  The interval of few runs may reach below 0 or above 100 %, where no value can lie: the axes end there.

  Args:
    rows: by label, the values of `test/error`, `test/ece` (fractions) and `test/nll` (nats) of its runs; the
      first is the reference, whose mean is drawn through all rows.
    title: above the figure.

  Returns:
    A figure with a panel for each metric.

  Raises:
    ValueError: if there is no row.
  """
  if not rows:
    raise ValueError("rows must have at least one, got none")
  figure = new_figure(11, 1.4 + 0.42 * len(rows), title)
  axes = figure.subplots(1, len(PANELS), sharey=True)
  for axis, (name, (label, factor, most)) in zip(axes, PANELS.items(), strict=True):
    for place, runs in enumerate(rows.values()):
      values = factor * np.asarray(runs[name], float)
      color = "tab:gray" if place == 0 else "tab:blue"
      axis.plot(values, np.full(len(values), place), "o", color=color, markersize=4, alpha=0.4, clip_on=False)
      mean, half = interval(values)
      axis.errorbar(mean, place, xerr=half, fmt="|", color=color, capsize=4, markersize=12)
      if place == 0:
        axis.axvline(mean, color="tab:gray", linewidth=0.8, linestyle=":")
    low, high = axis.get_xlim()
    axis.set_xlim(max(low, 0), min(high, most))
    axis.set_title(label, loc="left", fontsize="medium")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.3)
  axes[0].set_yticks(range(len(rows)), list(rows))
  axes[0].invert_yaxis()
  axes[0].margins(y=0.6 / max(len(rows), 2))
  figure.supxlabel(
    "Dots: single runs. Bars: their mean and its 95 % confidence interval. Dotted: the first row's mean.",
    fontsize="small",
    color="dimgray",
  )
  return figure
