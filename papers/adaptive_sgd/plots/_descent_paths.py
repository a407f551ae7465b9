"""Paths of descent over the contours of a function on the plane."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, new_figure


def descent_paths(
  planes: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike, Mapping[str, ArrayLike]]],
  *,
  labels: Mapping[str, tuple[str, str]] | None = None,
  title: str = "",
) -> Figure:
  """Draws contours and the paths of several descents, side by side in several coordinates.

  Args:
    planes: by title, the coordinates `[m]` and `[n]`, the values `[n, m]`, by label the paths `[steps, 2]`.
    labels: by the same title, the names of the axes.
    title: above the figure.

  Returns:
    A figure with one axis per plane; paths of one label have one colour.

  Raises:
    ValueError: if there is nothing to draw.

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Gradient Descent under
    Reparameterization.
  """
  if not planes:
    raise ValueError("planes must have at least one entry, got none")
  figure = new_figure(WIDTH, 3.9, title)
  axes = np.atleast_1d(figure.subplots(1, len(planes)))
  for axis, (name, (x, y, values, paths)) in zip(axes, planes.items(), strict=True):
    x, y, values = np.asarray(x), np.asarray(y), np.asarray(values)
    levels = values.min() + np.ptp(values) * np.linspace(0.03, 1, 12) ** 2
    axis.contour(x, y, values, levels=levels, colors="gray", linewidths=0.6)
    for number, (label, path) in enumerate(paths.items()):
      path = np.asarray(path)
      axis.plot(*path.T, "o-", color=f"C{number}", markersize=3, linewidth=1, label=label)
    axis.set(xlim=(x.min(), x.max()), ylim=(y.min(), y.max()), aspect="equal")
    if labels and name in labels:
      axis.set_xlabel(labels[name][0])
      axis.set_ylabel(labels[name][1])
    axis.set_title(name, loc="left", fontsize="medium")
    axis.spines[["top", "right"]].set_visible(False)
  handles, names = axes[0].get_legend_handles_labels()
  figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize="small", frameon=False)
  return figure
