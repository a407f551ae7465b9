"""Landscapes of losses: stationary points by index and loss, and the final losses of many trials."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import new_figure, tidy


def stationary_points(
  losses: ArrayLike,
  indices: ArrayLike,
  *,
  bins: int = 8,
  fits: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
  title: str = "",
) -> Figure:
  """Draws the index of stationary points against their loss, with the mean over bins of equal size.

  Args:
    losses: `[n]`.
    indices: `[n]`, the fractions of negative eigenvalues.
    bins: largest number of bins.
    fits: curves by label, losses and indices, such as a relation that was fitted.
    title: above the figure.

  Returns:
    A figure of one axis.

  Raises:
    ValueError: if there is nothing to draw, or not one index for each loss.

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Stationary Points in High
    Dimensions.
  """
  losses, indices = np.asarray(losses), np.asarray(indices)
  if losses.ndim != 1 or losses.shape != indices.shape or not losses.size:
    raise ValueError(f"losses and indices must be [n] alike, got {losses.shape} and {indices.shape}")
  figure = new_figure(5.4, 3.8, title)
  axis = figure.subplots()
  axis.plot(losses, indices, "o", color="C0", alpha=0.35, markersize=4, markeredgewidth=0, label="one point")
  groups = [group for group in np.array_split(np.argsort(losses), bins) if group.size]
  means = np.array([(losses[group].mean(), indices[group].mean()) for group in groups])
  axis.plot(*means.T, "s-", color="C3", markersize=5, label=f"means of {len(groups)} groups")
  for number, (label, curve) in enumerate((fits or {}).items()):
    axis.plot(*curve, color="black", linestyle=("-", "--", ":")[number % 3], linewidth=1.2, label=label)
  axis.set(xlabel="loss at the stationary point", ylabel="index")
  axis.set_ylim(bottom=-0.01)
  tidy(axis)
  axis.legend(fontsize="small")
  return figure


def final_losses(
  losses: Mapping[str, ArrayLike], errors: Mapping[str, ArrayLike], *, title: str = ""
) -> Figure:
  """Draws histograms of the final losses of trials, with the part that ended without a training error.

  Args:
    losses: by label, `[trials]`.
    errors: by the same label, training errors, `[trials]`.
    title: above the figure.

  Returns:
    A figure with one axis per label, one below the other on a common scale, with the part at error 0.

  Raises:
    ValueError: if there is nothing to draw, or the labels differ.

  References:
    Choromanska et al., `The Loss Surfaces of Multilayer Networks`, 2015.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Stationary Points in High
    Dimensions.
  """
  if not losses or list(losses) != list(errors):
    raise ValueError(f"losses and errors must have the same labels, got {list(losses)} and {list(errors)}")
  figure = new_figure(5.4, 0.95 * len(losses) + 1, title)
  axes = np.atleast_1d(figure.subplots(len(losses), 1, sharex=True))
  edges = np.linspace(0, max(np.asarray(x).max() for x in losses.values()), 41)
  for axis, (label, values) in zip(axes, losses.items(), strict=True):
    values, failed = np.asarray(values), np.asarray(errors[label])
    axis.hist(values, edges, weights=np.full(values.size, 1 / values.size), color="C0", alpha=0.8)
    spread = f"std {values.std():.2g}, without error {100 * np.mean(failed == 0):.0f} %"
    axis.set_title(f"{label}: {spread}", loc="left", fontsize="small")
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_ylim(0, 1)
  axes[-1].set_xlabel("training loss at the end (nats)")
  figure.supylabel("part of the trials", fontsize="medium")
  return figure
