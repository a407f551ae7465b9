"""The curvature of every layer of a network."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jaxreg.plots._axes import new_figure, tidy


def layerwise(found: Any, *, title: str = "") -> Figure:
  """Draws the top eigenvalue, with its residual, the trace and the Frobenius norm of each layer.

  Args:
    found: the result of `flatness.layerwise`: its `names`, `top_eigenvalues`, `traces` and
      `frobenius_norms` are drawn, the last two with two standard errors.
    title: above the figure.

  Returns:
    A figure with a panel for each of the three that has finite values; layers stand from top to bottom.

  References:
    Yao et al., `PyHessian: Neural Networks Through the Lens of the Hessian`, 2020.
  """
  if not hasattr(found, "top_eigenvalues"):
    raise TypeError(f"found must be the result of flatness.layerwise, got {type(found).__name__}")
  values = np.asarray(found.top_eigenvalues, float)
  residuals = np.asarray(found.residuals, float)
  panels = [("top eigenvalue", values, residuals)]
  for label, estimate in (("trace", found.traces), ("Frobenius norm", found.frobenius_norms)):
    mean, error = (np.asarray(part, float) for part in estimate)
    panels.append((label, mean, 2 * error))
  panels = [panel for panel in panels if np.isfinite(panel[1]).any()]
  if not panels:
    raise ValueError(f"found must have finite values of at least one layer, got {len(found.names)} layers")
  figure = new_figure(3.6 * len(panels) + 1.4, 0.24 * len(found.names) + 1.4, title)
  axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  places = np.arange(len(found.names))
  for number, (axis, (label, numbers, spread)) in enumerate(zip(axes, panels, strict=True)):
    axis.barh(places, numbers, xerr=spread, color=f"C{number}", height=0.7, error_kw={"linewidth": 1})
    axis.axvline(0, color="black", linewidth=0.6)
    axis.set(xlabel=label)
    tidy(axis, grid="x")
  axes[0].set_yticks(places, found.names, fontsize="small")
  axes[0].invert_yaxis()
  return figure
