"""Spectra of covariances, from few and from many samples."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg.plots._axes import WIDTH, new_figure, tidy


def spectra(panels: Mapping[str, Mapping[str, ArrayLike]], *, title: str = "") -> Figure:
  """Draws eigenvalues over their index, one panel per setting.

  Args:
    panels: by title, and by label, eigenvalues `[k]`, the largest first; values up to 1e-8 of the largest are
      left out.
    title: above the figure.

  Returns:
    A figure with two panels in a row.
  """
  if not panels:
    raise ValueError("panels must have at least one entry, got none")
  rows = -(-len(panels) // 2)
  figure = new_figure(WIDTH, 0.5 + 2.7 * rows, title)
  axes = figure.subplots(rows, 2, squeeze=False).ravel()
  for axis in axes[len(panels) :]:
    axis.set_axis_off()
  for axis, (name, series) in zip(axes, panels.items()):
    for label, values in series.items():
      values = np.asarray(values, float)
      values = values[values > 1e-8 * values[0]]
      axis.plot(np.arange(1, len(values) + 1), values, label=label)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("index")
    tidy(axis, name)
  figure.supylabel("eigenvalue of the covariance", fontsize="medium")
  axes[0].legend(fontsize="small", frameon=False)
  return figure
