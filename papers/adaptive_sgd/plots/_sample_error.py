"""The error of a sampled prediction by the number of samples."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, band, new_figure, tidy


def sample_error(
  numbers: ArrayLike, panels: Mapping[str, tuple[ArrayLike, ArrayLike]], *, title: str = ""
) -> Figure:
  """Draws predictions by samples beside predictions by scaled weights.

  Args:
    numbers: numbers of samples, `[k]`, positive.
    panels: by the axis's label, values by samples `[runs, k]` and by scaled weights `[runs]`, drawn as means
      with one standard deviation over the runs.
    title: above the figure.

  Returns:
    A figure with one axis per panel.

  Raises:
    ValueError: if there is no panel or a shape does not fit.

  References:
    Srivastava et al., `Dropout: A Simple Way to Prevent Neural Networks from Overfitting`, 2014, figure 11.
  """
  if not panels:
    raise ValueError("panels must have at least one entry, got none")
  numbers = np.asarray(numbers, float)
  figure = new_figure(WIDTH, 3 * len(panels), title)
  axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
  for axis, (name, (sampled, scaled)) in zip(axes, panels.items(), strict=True):
    sampled, scaled = np.asarray(sampled, float), np.asarray(scaled, float)
    if sampled.ndim != 2 or sampled.shape != (*scaled.shape, *numbers.shape):
      raise ValueError(
        f"{name} must be [runs, {len(numbers)}] and [runs], got {sampled.shape} and {scaled.shape}"
      )
    mean, std = (scaled.mean(), scaled.std(ddof=min(1, len(scaled) - 1)))
    axis.axhspan(mean - std, mean + std, color="black", alpha=0.12, linewidth=0)
    axis.axhline(mean, color="black", linestyle="--", label="weight scaling")
    mean, std = sampled.mean(axis=0), sampled.std(axis=0, ddof=min(1, len(sampled) - 1))
    axis.plot(numbers, mean, "o-", markersize=4, label="mean of M samples")
    axis.fill_between(numbers, mean - std, mean + std, alpha=0.25, linewidth=0)
    axis.set_xscale("log", base=2)
    axis.set_xticks(numbers)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set(xlabel="samples M", ylabel=name)
    tidy(axis)
  handles, _ = axes[0].get_legend_handles_labels()
  spread = band("one standard deviation")
  axes[0].legend(handles=[*handles, spread], fontsize="small", frameon=False, title=f"{len(scaled)} runs")
  return figure
