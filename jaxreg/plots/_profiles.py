"""The loss around trained networks: along random directions, and in a plane with the path of a training."""

from collections.abc import Mapping

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from jaxreg._figures import (
  WIDTH,
  band,
  legend_below,
  log_scale,
  log_ticks,
  new_figure,
  stroke,
  tidy,
  verbatim,
)


def profiles(alphas: ArrayLike, losses: Mapping[str, ArrayLike], *, title: str = "") -> Figure:
  """Draws the mean loss over directions, a band of one standard deviation, and thin lines per direction.

  The second axis has a log scale. Not all losses may be positive: then it shows how far each label's losses
  lie above their minimum, linear near 0.

  Args:
    alphas: `[points]`, distances in units of the parameters' own norm.
    losses: by label, `[directions, points]`.

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, figure 1.
  """
  alphas = np.asarray(alphas)
  shown = {label: np.asarray(values) for label, values in losses.items()}
  for label, values in shown.items():
    if values.ndim != 2 or values.shape[1:] != alphas.shape:
      raise ValueError(f"{label} must be [directions, {len(alphas)}], got {values.shape}")
  positive = all((values[np.isfinite(values)] > 0).all() for values in shown.values())
  figure = new_figure(WIDTH, 3.8, title)
  axes = figure.subplots(1, 2)
  for number, (label, values) in enumerate(shown.items()):
    heights = values if positive else values - values[np.isfinite(values)].min(initial=np.inf)
    for axis, curves in zip(axes, (values, heights), strict=True):
      mean, spread = curves.mean(axis=0), curves.std(axis=0)
      low = mean - spread
      if axis is axes[1]:  # a band that reaches below 0 ends at the minimum
        low = np.minimum(mean, np.maximum(low, curves.min(axis=0)))
      axis.plot(alphas, curves.T, color=f"C{number}", linewidth=0.5, alpha=0.3)
      axis.fill_between(alphas, low, mean + spread, color=f"C{number}", alpha=0.2, linewidth=0)
      axis.plot(alphas, mean, color=f"C{number}", label=verbatim(label))
  if positive:
    axes[1].set_yscale("log")
    log_ticks(axes[1].yaxis, *axes[1].get_ylim())
  else:
    log_scale(axes[1])
  logarithmic = "log scale" if positive else "height above the minimum, log scale"
  for axis, name in zip(axes, ("linear scale", logarithmic), strict=True):
    axis.xaxis.set_major_locator(MaxNLocator(4))
    axis.set_xlabel(r"$\alpha$")
    tidy(axis, name)
  axes[0].set_ylabel(r"loss at $\theta + \alpha d$")
  handles, _ = axes[0].get_legend_handles_labels()
  marks = (stroke("mean"), band("one standard deviation"), stroke("one direction", width=0.5))
  legend_below(figure, [*handles, *marks], columns=3)
  return figure


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
