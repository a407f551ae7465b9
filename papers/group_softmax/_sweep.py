"""Results of runs over the values of one hyper-parameter."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from jaxreg._figures import WIDTH, band, bar, new_figure, tidy
from jaxreg._intervals import cut, interval
from jaxreg._metrics import metric

Runs = Mapping[str, Sequence[float]]


def sweep(
  series: Mapping[str, Mapping[float, Runs]],
  reference: tuple[str, Runs],
  metrics: Mapping[str, tuple[str, float]],
  *,
  xlabel: str,
  title: str = "",
) -> Figure:
  """Draws means of runs with 95 % confidence intervals (Student's t) over a hyper-parameter.

  Args:
    series: by label and value of the hyper-parameter (positive, on a log axis), the metrics of its runs.
    reference: a label and the metrics of the runs without the hyper-parameter: a line and a band through all
      values.
    metrics: by name, the label of its panel and a factor, such as 100 for per cent.
    xlabel: the hyper-parameter.
    title: above the figure.

  Returns:
    A figure with one panel per metric. For a label `kind rule`, the kind sets the style and the rule the
    colour of the line.

  Raises:
    ValueError: if there is no series.
  """
  if not series:
    raise ValueError("series must have at least one entry, got none")
  figure = new_figure(WIDTH, 1.2 + 2.7 * len(metrics), title)
  axes = np.atleast_1d(figure.subplots(len(metrics), 1))
  colors: dict[str, str] = {}
  styles: dict[str, str] = {}
  for axis, (name, (label, factor)) in zip(axes, metrics.items(), strict=True):
    least, most = factor * metric(name).low, factor * metric(name).high
    mean, half = factor * np.array(interval(reference[1][name]))
    below, above = cut(mean, half, (least, most))
    axis.axhline(mean, color="tab:gray", linewidth=1, label=reference[0])
    axis.axhspan(mean - below, mean + above, color="tab:gray", alpha=0.15, linewidth=0)
    for number, (line, points) in enumerate(series.items()):
      kind, _, rule = line.partition(" ")
      color = colors.setdefault(rule, f"C{len(colors)}")
      style = styles.setdefault(kind, ("-", "--", ":")[len(styles) % 3])
      values = np.array(sorted(points))
      means, halves = factor * np.array([interval(points[value][name]) for value in values]).T
      # Side by side, so that bars of different lines do not overlap.
      shifted = values * 1.04 ** (number - (len(series) - 1) / 2)
      axis.errorbar(
        shifted,
        means,
        yerr=cut(means, halves, (least, most)),
        color=color,
        linestyle=style,
        marker="o",
        markersize=3,
        capsize=2,
        label=line,
      )
    axis.set_xscale("log")
    ticks = sorted({value for points in series.values() for value in points})
    axis.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(xlabel)
    tidy(axis, label)
  handles, _ = axes[0].get_legend_handles_labels()
  marks = (bar("95 % interval"), band(f"95 % interval of {reference[0]}"))
  figure.legend(
    handles=[*handles, *marks], loc="outside lower center", ncols=3, fontsize="small", frameon=False
  )
  return figure
