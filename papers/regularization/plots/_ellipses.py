"""The effect of L2 regularisation on every direction."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, new_figure
from papers.regularization.plots._plane import pair


def ellipses(
  before: ArrayLike,
  directions: ArrayLike,
  panels: Mapping[str, tuple[ArrayLike, ArrayLike]],
  *,
  title: str = "",
) -> Figure:
  """Draws minima on the unit circle and their move by regularisation, with factors along eigenvectors.

  Args:
    before: the minima without regularisation, `[n, 2]`, around the circle.
    directions: the Hessian's eigenvectors as columns, `[2, 2]`.
    panels: by title, the minima with regularisation, `[n, 2]`, and the remaining fraction of each
      eigenvector, `[2]`.
    title: above the figure.

  Returns:
    A figure with one axis per panel.

  Raises:
    ValueError: if there is no panel or a shape does not fit.

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, scaling eigenvalues.
  """
  if not panels:
    raise ValueError("panels must have at least one entry, got none")
  before, directions = pair(before, "before", (-1, 2)), pair(directions, "directions", (2, 2))
  figure = new_figure(WIDTH, 4.1, title)
  axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
  some = slice(None, None, max(1, len(before) // 24))
  for axis, (name, (after, factors)) in zip(axes, panels.items(), strict=True):
    after, factors = pair(after, f"{name}: after", before.shape), pair(factors, f"{name}: factors", (2,))
    axis.plot(*before.T, color="tab:gray", linestyle="--", label="$w^*$, no penalty")
    axis.plot(*after.T, color="tab:blue", label=r"$\tilde w$, L2 penalty")
    for number, (start, end) in enumerate(zip(before[some], after[some])):
      label = "move of a minimum" if number == 0 else "_"
      axis.plot(*np.stack([start, end]).T, color="tab:blue", linewidth=0.5, alpha=0.5, label=label)
    for number, (direction, factor) in enumerate(zip(directions.T, factors), 1):
      color = f"C{number}"
      axis.plot(*np.stack([np.zeros(2), direction]).T, color=color, linewidth=0.8, linestyle=":")
      end = factor * direction
      axis.plot(*np.stack([np.zeros(2), end]).T, color=color, linewidth=2.5, label=f"eigenvector {number}")
    axis.set(aspect="equal", xlabel="$w_1$", xlim=(-1.15, 1.15), ylim=(-1.15, 1.15))
    left = " and ".join(f"{factor:.2f}" for factor in factors)
    axis.set_title(f"{name}\ntimes {left}", loc="left", fontsize="small")
    axis.spines[["top", "right"]].set_visible(False)
  axes[0].set_ylabel("$w_2$")
  figure.legend(
    *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small", frameon=False
  )
  return figure
