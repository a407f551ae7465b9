"""Decision boundaries of classifiers on the plane."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, dot, new_figure, stroke


def contours(
  grid: tuple[ArrayLike, ArrayLike],
  probs: Mapping[str, ArrayLike],
  points: ArrayLike,
  labels: ArrayLike,
  *,
  title: str = "",
) -> Figure:
  """Draws the largest class probability over the plane, and where the predicted class changes.

  Args:
    grid: the coordinates, `[m]` and `[n]`.
    probs: by title, class probabilities `[n, m, classes]`.
    points: training examples, `[k, 2]`.
    labels: their classes, `[k]`.
    title: above the figure.

  Returns:
    A figure with one axis per entry of `probs`.

  Raises:
    ValueError: if there is nothing to draw.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix, Fig. 1.
  """
  if not probs:
    raise ValueError("probs must have at least one entry, got none")
  x, y = (np.asarray(axis) for axis in grid)
  points, labels = np.asarray(points), np.asarray(labels)
  columns = min(2, len(probs))
  rows = -(-len(probs) // columns)
  figure = new_figure(WIDTH, 0.9 + 2.6 * rows, title)
  axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
  for axis in axes[len(probs) :]:
    axis.remove()
  filled: Any = None
  for axis, (name, values) in zip(axes, probs.items()):
    values = np.asarray(values)
    classes = values.shape[-1]
    levels = np.arange(20 // classes, 21) / 20
    filled = axis.contourf(x, y, values.max(-1), levels=levels, cmap="Greys_r", alpha=0.8)
    for k in range(classes):
      color = f"C{k}"
      others = np.delete(values, k, axis=-1).max(-1)
      axis.contour(x, y, values[..., k] - others, levels=[0], colors=color, linewidths=1)
      chosen = labels == k
      axis.plot(points[chosen, 0], points[chosen, 1], "o", color=color, markersize=2.5, markeredgewidth=0)
    axis.set_title(name, loc="left", fontsize="medium")
  # Every second edge of the grey bands, downward from 1.
  ticks = levels[::-2]
  figure.colorbar(
    filled, ax=axes[: len(probs)], ticks=ticks, label="largest class probability", shrink=0.8, pad=0.01
  )
  marks = (dot("training example, in the colour of its class"), stroke("border of the class of its colour"))
  figure.legend(handles=marks, loc="outside lower center", fontsize="small", frameon=False)
  return figure
