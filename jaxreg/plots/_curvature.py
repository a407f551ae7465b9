"""The curvature of a loss: the density of its eigenvalues, every layer's, and the spectrum of the noise."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, new_figure, tidy, verbatim


def density(densities: Mapping[str, Any], *, floor: float = 1e-7, title: str = "") -> Figure:
  """Draws densities of eigenvalues on a log scale, with a band of one standard error.

  Args:
    densities: by label, results of `flatness.spectral_density`: triples of the eigenvalues, the density and
      its standard error, each `[points]`.
    floor: the lowest density that is drawn, as a fraction of the highest.

  References:
    Ghorbani, Krishnan and Xiao, `An Investigation into Neural Net Optimization via Hessian Eigenvalue
    Density`, 2019.
  """
  if not isinstance(densities, Mapping):
    raise TypeError(f"densities must be a dict from labels to densities, got {type(densities).__name__}")
  if not densities:
    raise ValueError("densities must have at least one entry, got none")
  figure = new_figure(WIDTH, 3.8, title)
  axis = figure.subplots()
  top = 0.0
  for number, (label, density) in enumerate(densities.items()):
    grid, values, errors = (np.asarray(part, float) for part in density)
    if grid.ndim != 1 or not grid.shape == values.shape == errors.shape:
      raise ValueError(
        f"{label} must be three arrays [points], got {grid.shape}, {values.shape}, {errors.shape}"
      )
    top, color = max(top, float(values.max())), f"C{number}"
    axis.plot(grid, values, color=color, label=verbatim(label))
    low = np.maximum(values - errors, floor * values.max())
    axis.fill_between(grid, low, values + errors, color=color, alpha=0.25, linewidth=0)
  axis.set(yscale="log", ylim=(floor * top, 3 * top), xlabel="eigenvalue", ylabel="density")
  tidy(axis)
  if len(densities) > 1:
    axis.legend(fontsize="small", frameon=False)
  return figure


def layerwise(layers: Any, *, title: str = "") -> Figure:
  """Draws the top eigenvalue, with its residual, the trace and the Frobenius norm of each layer.

  Args:
    layers: the result of `flatness.layerwise`: its `names`, `top_eigenvalues`, `traces` and
      `frobenius_norms` are drawn, the last two with two standard errors.

  Returns:
    A figure with a panel for each of the three that has finite values; layers stand from top to bottom.

  References:
    Yao et al., `PyHessian: Neural Networks Through the Lens of the Hessian`, 2020.
  """
  if not hasattr(layers, "top_eigenvalues"):
    raise TypeError(f"layers must be the result of flatness.layerwise, got {type(layers).__name__}")
  panels = {"top eigenvalue": (layers.top_eigenvalues, layers.residuals, 1)}
  panels |= {"trace": (*layers.traces, 2), "Frobenius norm": (*layers.frobenius_norms, 2)}
  panels = {label: panel for label, panel in panels.items() if np.isfinite(panel[0]).any()}
  if not panels:
    raise ValueError(f"layers must have finite values of at least one layer, got {len(layers.names)} layers")
  figure = new_figure(3.6 * len(panels) + 1.4, 0.24 * len(layers.names) + 1.4, title)
  axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  places = np.arange(len(layers.names))
  for number, (axis, (label, panel)) in enumerate(zip(axes, panels.items(), strict=True)):
    values, error, times = (np.asarray(part, float) for part in panel)
    axis.barh(places, values, xerr=times * error, color=f"C{number}", height=0.7, error_kw={"linewidth": 1})
    axis.axvline(0, color="black", linewidth=0.6)
    axis.set(xlabel=label)
    tidy(axis, grid="x")
  axes[0].set_yticks(places, [*map(verbatim, layers.names)], fontsize="small")
  axes[0].invert_yaxis()
  return figure


def spectra(panels: Mapping[str, Mapping[str, ArrayLike]], *, title: str = "") -> Figure:
  """Draws eigenvalues of covariances over their index, two panels in a row.

  Args:
    panels: by title, and by label, eigenvalues `[k]`, the largest first; values up to 1e-8 of the largest are
      left out.
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
      axis.plot(np.arange(1, len(values) + 1), values, label=verbatim(label))
    axis.set(xscale="log", yscale="log", xlabel="index")
    tidy(axis, verbatim(name))
  figure.supylabel("eigenvalue of the covariance", fontsize="medium")
  axes[0].legend(fontsize="small", frameon=False)
  return figure
