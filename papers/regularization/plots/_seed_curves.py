"""Curves over steps, means over runs with a band."""

import itertools
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import new_figure, tidy
from papers.regularization.plots._plane import pair


def seed_curves(
  steps: ArrayLike,
  values: Mapping[str, ArrayLike],
  *,
  ylabel: str,
  marks: Mapping[str, float] | None = None,
  log: bool = False,
  title: str = "",
) -> Figure:
  """Draws quantities along a training: the mean over runs, with a band of one standard deviation.

  Args:
    steps: `[n]`.
    values: by label, `[runs, n]`.
    ylabel: what the values are.
    marks: steps to mark by a vertical line, by label, such as the step of early stopping.
    log: whether the values have a logarithmic axis; they must be above 0 then.
    title: above the figure.

  Returns:
    A figure of one axis.

  Raises:
    ValueError: if there is nothing to draw, or a shape does not fit.
  """
  if not values:
    raise ValueError("values must have at least one label, got none")
  steps = pair(steps, "steps", (-1,))
  figure = new_figure(6.0, 3.8, title)
  axis = figure.subplots()
  for number, (label, runs) in enumerate(values.items()):
    runs = pair(runs, label, (-1, len(steps)))
    mean, spread = runs.mean(axis=0), runs.std(axis=0, ddof=min(1, len(runs) - 1))
    axis.plot(steps, mean, color=f"C{number}", label=label)
    # A logarithmic axis has no place for an end below 0: the band is cut a decade below the mean.
    low = np.maximum(mean - spread, mean / 10) if log else mean - spread
    axis.fill_between(steps, low, mean + spread, color=f"C{number}", alpha=0.2, linewidth=0)
  for style, (label, step) in zip(itertools.cycle(("--", ":")), (marks or {}).items()):
    axis.axvline(step, color="black", linestyle=style, linewidth=1, label=label)
  axis.set(xlabel="step", ylabel=ylabel, yscale="log" if log else "linear")
  tidy(axis)
  axis.legend(fontsize="small", frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
  return figure
