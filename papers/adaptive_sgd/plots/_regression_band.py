"""A regression with its uncertainty."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, new_figure, tidy


def regression_band(
  x: ArrayLike,
  mean: ArrayLike,
  std: ArrayLike,
  *,
  truth: ArrayLike,
  points: tuple[ArrayLike, ArrayLike],
  draws: ArrayLike = (),
  title: str = "",
) -> Figure:
  """Draws the mean of an ensemble on a line, bands of one and two standard deviations, and some members.

  Args:
    x: the inputs, `[n]`, increasing.
    mean: `[n]`.
    std: `[n]`, not negative.
    truth: the true function, `[n]`.
    points: inputs and targets of the fit.
    draws: members of the ensemble, `[m, n]`.
    title: above the figure.

  Returns:
    A figure of one axis.

  Raises:
    ValueError: if a shape does not fit or a standard deviation is negative.

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, testing: the true function,
    the mean and the scatter of the ensemble.
  """
  x, mean, std, truth = (np.asarray(values, float) for values in (x, mean, std, truth))
  members = np.asarray(draws, float)
  for name, values in (("mean", mean), ("std", std), ("truth", truth)):
    if values.shape != x.shape:
      raise ValueError(f"{name} must have the shape of x, {x.shape}, got {values.shape}")
  if members.size and members.shape[1:] != x.shape:
    raise ValueError(f"draws must be [m, {len(x)}], got {members.shape}")
  if (std < 0).any():
    raise ValueError(f"std must not be negative, got {std.min()}")
  figure = new_figure(WIDTH, 4.4, title)
  axis = figure.subplots()
  for width, alpha in ((2, 0.15), (1, 0.25)):
    axis.fill_between(
      x,
      mean - width * std,
      mean + width * std,
      color="tab:blue",
      alpha=alpha,
      linewidth=0,
      label=f"mean ± {width} standard deviation{'s' * (width > 1)}",
    )
  for number, row in enumerate(members):
    label = "members" if number == 0 else "_"
    axis.plot(x, row, color="tab:blue", linewidth=0.5, alpha=0.6, label=label)
  axis.plot(x, mean, color="tab:blue", linewidth=2, label="mean of the ensemble")
  axis.plot(x, truth, color="black", linestyle="--", label="true function")
  axis.plot(*points, "o", color="tab:red", markersize=4, label="training points", zorder=4)
  axis.set(xlabel="x", ylabel="y", xlim=(x[0], x[-1]))
  axis.legend(fontsize="small", frameon=False)
  tidy(axis)
  return figure
