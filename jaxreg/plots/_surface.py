"""The loss in a plane, with the path of a training on it."""

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg.plots._axes import new_figure


def surface(
  alphas: ArrayLike,
  betas: ArrayLike,
  losses: ArrayLike,
  *,
  path: ArrayLike | None = None,
  explained: ArrayLike | None = None,
  levels: int = 16,
  title: str = "",
) -> Figure:
  """Draws contours of the loss in a plane; positive losses get levels of equal ratios.

  Args:
    alphas: `[rows]`, the first coordinate.
    betas: `[columns]`, the second.
    losses: `[rows, columns]`, as from `flatness.loss_surface`.
    path: `[num, 2]`, as the coordinates of `flatness.trajectory_plane`; its last point is marked.
    explained: `[2]`, the parts of the path's variance, for the labels of the axes.
    levels: number of contours.
    title: above the figure.

  Returns:
    A figure of one axis and a colour bar.

  References:
    Li et al., `Visualizing the Loss Landscape of Neural Nets`, 2018, sections 6 and 7.
  """
  x, y, z = (np.asarray(values, float) for values in (alphas, betas, losses))
  if x.ndim != 1 or y.ndim != 1 or z.shape != (x.size, y.size):
    raise ValueError(f"losses must be [rows, columns] = [{x.size}, {y.size}], got {z.shape}")
  finite = z[np.isfinite(z)]
  if not finite.size:
    raise ValueError("losses must have finite values, got none")
  low, high = finite.min(), finite.max()
  ratios = low > 0 and high > 3 * low
  space, norm = (np.geomspace, LogNorm(low, high)) if ratios else (np.linspace, None)
  edges = np.unique(space(low, high if high > low else low + 1, levels))
  figure = new_figure(5.2, 4.2, title)
  axis = figure.subplots()
  lines = axis.contour(x, y, np.ma.masked_invalid(z).T, levels=edges, cmap="viridis", norm=norm, linewidths=1)
  bar = figure.colorbar(lines, ax=axis, label="loss", format="%.3g")
  bar.minorticks_off()
  if path is not None:
    points = np.asarray(path, float)
    if points.ndim != 2 or points.shape[1] != 2:
      raise ValueError(f"path must be [num, 2], got {points.shape}")
    axis.plot(*points.T, ".-", color="C3", linewidth=1, markersize=4)
    axis.plot(*points[-1], "*", color="black", markersize=10)
  shares = [""] * 2 if explained is None else [f", {part:.0%} of the path" for part in np.asarray(explained)]
  axis.set(xlabel=f"first direction{shares[0]}", ylabel=f"second direction{shares[1]}")
  return figure
