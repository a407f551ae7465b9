"""The density of the eigenvalues of a curvature."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jaxreg.plots._axes import new_figure, tidy


def density(densities: Mapping[str, Any], *, floor: float = 1e-7, title: str = "") -> Figure:
  """Draws densities of eigenvalues on a log scale, with a band of one standard error.

  Args:
    densities: by label, results of `flatness.spectral_density`: triples of the eigenvalues, the density and
      its standard error, each `[points]`.
    floor: the least density that is drawn, as a part of the largest.
    title: above the figure.

  Returns:
    A figure of one axis.

  References:
    Ghorbani, Krishnan and Xiao, `An Investigation into Neural Net Optimization via Hessian Eigenvalue
    Density`, 2019.
  """
  if not isinstance(densities, Mapping):
    raise TypeError(f"densities must be a dict from labels to densities, got {type(densities).__name__}")
  if not densities:
    raise ValueError("densities must have at least one entry, got none")
  figure = new_figure(5.6, 3.8, title)
  axis = figure.subplots()
  top = 0.0
  for number, (label, found) in enumerate(densities.items()):
    grid, values, errors = (np.asarray(part, float) for part in found)
    if grid.ndim != 1 or not grid.shape == values.shape == errors.shape:
      raise ValueError(
        f"{label} must be three arrays [points], got {grid.shape}, {values.shape}, {errors.shape}"
      )
    top, color = max(top, float(values.max())), f"C{number}"
    axis.plot(grid, values, color=color, label=label)
    low = np.maximum(values - errors, floor * values.max())
    axis.fill_between(grid, low, values + errors, color=color, alpha=0.25, linewidth=0)
  axis.set(yscale="log", ylim=(floor * top, 3 * top), xlabel="eigenvalue", ylabel="density")
  tidy(axis)
  if len(densities) > 1:
    axis.legend(fontsize="small", frameon=False)
  return figure
