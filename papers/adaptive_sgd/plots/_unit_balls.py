"""Unit balls of norms, and the steps of steepest descent in them."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, new_figure, tidy


def unit_balls(
  balls: Mapping[str, tuple[ArrayLike, ArrayLike]], gradient: ArrayLike, *, title: str = ""
) -> Figure:
  """Draws norms' unit balls on the plane, the least linearised loss in each, and minus the gradient.

  Args:
    balls: by title, points on the edge of the ball `[n, 2]` and the step `[2]`.
    gradient: `[2]`.
    title: above the figure.

  Returns:
    A figure with one axis per ball.

  Raises:
    ValueError: if there is nothing to draw.

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Proximal Problem and Trust
    Region Problem.
  """
  if not balls:
    raise ValueError("balls must have at least one entry, got none")
  gradient = np.asarray(gradient)
  downhill = -gradient / np.linalg.norm(gradient)
  across = np.array([-downhill[1], downhill[0]])
  columns = min(3, len(balls))
  rows = -(-len(balls) // columns)
  figure = new_figure(WIDTH, 1 + 2.1 * rows, title)
  axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
  for axis in axes[len(balls) :]:
    axis.remove()
  reach = 1.15 * max(np.abs(np.asarray(edge)).max() for edge, _ in balls.values())
  for axis, (name, (edge, step)) in zip(axes, balls.items()):
    edge, step = np.asarray(edge), np.asarray(step)
    axis.fill(*edge.T, color="C0", alpha=0.15, linewidth=0)
    axis.plot(*edge.T, color="C0", linewidth=1, label="unit ball")
    level = step + np.outer([-4 * reach, 4 * reach], across)
    axis.plot(
      *level.T, color="gray", linewidth=0.8, linestyle=":", label="equal linearised loss, through the step"
    )
    for vector, color, label in ((downhill, "gray", "minus the gradient"), (step, "C3", "step")):
      axis.annotate(
        "", vector, (0, 0), arrowprops={"arrowstyle": "->", "color": color, "shrinkA": 0, "shrinkB": 0}
      )
      axis.plot([], [], color=color, label=label)
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    tidy(axis, name)
  handles, labels = axes[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small", frameon=False)
  return figure
