"""The loss along random directions through trained networks."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from jaxreg.plots._axes import WIDTH, log_ticks, new_figure, tidy
from jaxreg.plots._marks import band, stroke


def profiles(alphas: ArrayLike, losses: Mapping[str, ArrayLike], *, title: str = "") -> Figure:
  """Draws the mean loss over directions, a band of one standard deviation, and thin lines per direction.

  Args:
    alphas: `[points]`, distances in units of the parameters' own norm.
    losses: by label, `[directions, points]`.
    title: above the figure.

  Returns:
    A figure of two axes: linear, and on a log scale.

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, figure 1.
  """
  alphas = np.asarray(alphas)
  figure = new_figure(WIDTH, 3.8, title)
  axes = figure.subplots(1, 2)
  for number, (label, values) in enumerate(losses.items()):
    values = np.asarray(values)
    if values.ndim != 2 or values.shape[1:] != alphas.shape:
      raise ValueError(f"{label} must be [directions, {len(alphas)}], got {values.shape}")
    mean, spread = values.mean(axis=0), values.std(axis=0)
    for axis, low in zip(
      axes, (mean - spread, np.minimum(mean, np.maximum(mean - spread, values.min(axis=0))))
    ):
      axis.plot(alphas, values.T, color=f"C{number}", linewidth=0.5, alpha=0.3)
      axis.fill_between(alphas, low, mean + spread, color=f"C{number}", alpha=0.2, linewidth=0)
      axis.plot(alphas, mean, color=f"C{number}", label=label)
  axes[1].set_yscale("log")
  log_ticks(axes[1].yaxis, *axes[1].get_ylim())
  for axis, name in zip(axes, ("linear scale", "log scale"), strict=True):
    tidy(axis, name)
    axis.set_xlabel(r"$\alpha$")
    axis.xaxis.set_major_locator(MaxNLocator(4))
  axes[0].set_ylabel(r"loss at $\theta + \alpha d$")
  handles, _ = axes[0].get_legend_handles_labels()
  marks = (stroke("mean"), band("one standard deviation"), stroke("one direction", width=0.5))
  # Below the axes: on them, six entries would cover the curves.
  where = "outside lower center"
  figure.legend(handles=[*handles, *marks], loc=where, ncols=3, fontsize="small", frameon=False)
  return figure
