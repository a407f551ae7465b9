"""Spectra of covariances, from few and from many samples."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg.plots._axes import new_figure, tidy


def spectra(panels: Mapping[str, Mapping[str, ArrayLike]], *, title: str = "") -> Figure:
  """Draws eigenvalues over their index, one panel per setting.

  Args:
    panels: by title, and by label, eigenvalues `[k]`, the largest first; values up to 1e-8 of the largest are
      left out.
    title: above the figure.

  Returns:
    A figure with a row of panels.
  """
  if not panels:
    raise ValueError("panels must have at least one entry, got none")
  figure = new_figure(4.2 * len(panels) + 0.6, 3.8, title)
  axes = figure.subplots(1, len(panels), squeeze=False)[0]
  for axis, (name, series) in zip(axes, panels.items(), strict=True):
    for label, values in series.items():
      values = np.asarray(values, float)
      values = values[values > 1e-8 * values[0]]
      axis.plot(np.arange(1, len(values) + 1), values, label=label)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("index")
    tidy(axis, name)
  axes[0].set_ylabel("eigenvalue of the covariance")
  axes[0].legend(fontsize="small", frameon=False)
  return figure
