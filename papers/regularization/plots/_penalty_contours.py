"""The move of a quadratic's minimum by a norm penalty."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, new_figure
from papers.regularization.plots._plane import loss_at, pair, quadratic


def penalty_contours(
  hessian: ArrayLike,
  w_star: ArrayLike,
  panels: Mapping[str, tuple[Literal[1, 2], ArrayLike]],
  *,
  title: str = "",
) -> Figure:
  """Draws contours of the loss, the ball of the penalty's norm that touches them, and the path there.

  Args:
    hessian: Hessian of the loss, `[2, 2]`.
    w_star: minimiser of the loss, `[2]`.
    panels: by title, the order of the norm and the solutions as the penalty grows, `[n, 2]`; the last one is
      marked, and the ball and a contour go through it.
    title: above the figure.

  Returns:
    A figure with one axis per panel.

  Raises:
    ValueError: if there is no panel, a shape does not fit or an order is neither 1 nor 2.

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, L1 and L2 regularization.
  """
  if not panels:
    raise ValueError("panels must have at least one entry, got none")
  figure = new_figure(WIDTH, 5.2, title)
  axes = figure.subplots(1, len(panels), squeeze=False)[0]
  for axis, (name, (order, path)) in zip(axes, panels.items(), strict=True):
    path = pair(path, f"{name}: the path", (-1, 2))
    if order not in (1, 2):
      raise ValueError(f"{name}: the order must be 1 or 2, got {order!r}")
    outline, touching = ball(order, path[-1]), loss_at(hessian, w_star, path[-1])
    seen = np.concatenate([outline, path])
    margin = 0.1 * np.ptp(seen, axis=0).max()
    low, high = seen.min(axis=0) - margin, seen.max(axis=0) + 2 * margin
    levels = touching * np.array([0.1, 0.4, 1, 2, 4, 7, 11])
    quadratic(axis, hessian, w_star, low=low, high=high, levels=levels)
    axis.plot(*outline.T, color="tab:orange", label=f"$\\|w\\|_{order}$ of the solution")
    axis.plot(*path.T, color="tab:blue", linewidth=1.5, label="solutions as the penalty grows")
    axis.plot(*path[-1], "o", color="tab:blue", label="({:.2f}, {:.2f})".format(*path[-1] + 0.0), zorder=5)
    axis.set_title(name, loc="left", fontsize="medium")
    axis.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
  return figure


def ball(order: int, through: np.ndarray) -> np.ndarray:
  """Returns the outline of the ball of a norm through a point: a diamond or a circle."""
  angle = np.linspace(0, 2 * np.pi, 361)
  unit = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
  return unit * np.linalg.norm(through, order) / np.linalg.norm(unit, order, axis=-1, keepdims=True)
