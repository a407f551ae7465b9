"""The size of the gradients of softmax and DropMax while DropMax trains."""

import textwrap
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, log_scale, new_figure, tidy


def gradients(steps: ArrayLike, groups: Mapping[str, Mapping[str, ArrayLike]], *, title: str = "") -> Figure:
  """Draws norms of the gradient in the logits over training steps, one axis per group of examples.

  Args:
    steps: `[n]`.
    groups: by title of the axis, such as `lowest tenth of the margins`; in each, by label, norms `[n]`.
    title: above the figure.

  Returns:
    A figure with one axis per group.

  Raises:
    ValueError: if there is no group, or the length of a series differs from `steps`.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix B.
  """
  if not groups:
    raise ValueError("groups must have at least one entry, got none")
  steps = np.asarray(steps)
  figure = new_figure(WIDTH, 3.8, title)
  axes = figure.subplots(1, len(groups), squeeze=False)[0]
  for axis, (name, series) in zip(axes, groups.items(), strict=True):
    for label, values in series.items():
      values = np.asarray(values)
      if values.shape != steps.shape:
        raise ValueError(f"{name}, {label} must have the shape of steps, {steps.shape}, got {values.shape}")
      axis.plot(steps, values, marker="o", markersize=3, label=label)
    log_scale(axis)
    axis.set_title(textwrap.fill(name, 30), loc="left", fontsize="small")
    axis.set_xlabel("training step")
    tidy(axis)
  axes[0].set_ylabel("mean norm of the gradient in the logits")
  # Below the axes: on them, the legend would cover a curve.
  handles, labels = axes[0].get_legend_handles_labels()
  below = "outside lower center"
  figure.legend(handles, labels, loc=below, ncols=2, fontsize="small", frameon=False)
  return figure
