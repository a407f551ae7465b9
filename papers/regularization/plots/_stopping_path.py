"""Early-stopped gradient descent beside the minima of an L2 penalty."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, new_figure, tidy
from papers.regularization.plots._plane import loss_at, pair, quadratic

MAX_MATCHED = 12


def stopping_path(
  hessian: ArrayLike,
  w_star: ArrayLike,
  descent: ArrayLike,
  ridge: ArrayLike,
  ratios: ArrayLike,
  kept: Mapping[str, ArrayLike],
  *,
  title: str = "",
) -> Figure:
  """Draws the paths of gradient descent and of the L2 penalty, and what both keep of each component.

  Args:
    hessian: Hessian of the loss, `[2, 2]`.
    w_star: minimiser of the loss, `[2]`.
    descent: gradient descent after growing numbers of steps, `[n, 2]`.
    ridge: the minima under the penalties equivalent to these numbers, `[n, 2]`; lines join some to their
      step.
    ratios: eigenvalue over penalty, `[m]`, positive.
    kept: by label, the fraction of a component kept at these ratios, `[m]`.
    title: above the figure.

  Returns:
    A figure of two axes.

  Raises:
    ValueError: if a shape does not fit.

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, early stopping acts as a
    regularizer.
  """
  descent = pair(descent, "descent", (-1, 2))
  ridge, ratios = pair(ridge, "ridge", descent.shape), pair(ratios, "ratios", (-1,))
  figure = new_figure(WIDTH, 8, title)
  left, right = figure.subplots(2, 1, height_ratios=[1.4, 1])
  top = loss_at(hessian, w_star, np.zeros(2))
  margin = 0.2 * np.abs(np.asarray(w_star)).max()
  seen = np.concatenate([descent, ridge, np.asarray(w_star)[None]])
  levels = top * np.array([0.01, 0.1, 0.25, 0.5, 1, 1.6])
  quadratic(left, hessian, w_star, low=seen.min(0) - margin, high=seen.max(0) + margin, levels=levels)
  matched = np.unique(np.linspace(0, len(descent) - 1, MAX_MATCHED).round().astype(int))
  for number in matched:
    label = "_" if number else "steps and their penalty"
    left.plot(*np.stack([descent[number], ridge[number]]).T, color="gray", linewidth=0.8, label=label)
  for path, color, marker, name in (
    (descent, "tab:blue", "o", "gradient descent, stopped"),
    (ridge, "tab:orange", "s", r"L2 penalty, $\alpha = 1 / (\tau \epsilon)$"),
  ):
    left.plot(*path.T, color=color)
    left.plot(*path[matched].T, marker, color=color, markersize=4, label=name, zorder=3)
  left.legend(fontsize="small", loc="lower right")
  for number, (name, values) in enumerate(kept.items()):
    values = pair(values, name, ratios.shape)
    right.plot(ratios, values, color=f"C{number}", label=name)
  right.set(xscale="log", xlabel=r"$\lambda / \alpha$", ylabel="fraction of the component that is kept")
  right.legend(fontsize="small", frameon=False)
  tidy(right)
  return figure
