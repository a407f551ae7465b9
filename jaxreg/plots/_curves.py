"""Learning curves."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxreg.plots._axes import finish, log_scale, new_figure, note_averages
from jaxreg.plots._lines import line, stars
from jaxreg.plots._series import Records, masked, of_numbers, read


def curves(records: Records, *, title: str = "") -> Figure:
  """Draws likelihood and error of training and validation over epochs, with the learning rate below.

  It shows the likelihood instead of the objective, which may be negative (see `terms`). Axes are logarithmic
  if the values allow it; a star is the test result. DropMax's training likelihood is under sampled masks that
  keep the target, so it is higher than the likelihood of a prediction. The label says so, and the gap between
  the lines is not only overfitting. Where the labels are numbers, it draws RMSE and MAE.

  Args:
    records: dicts with `epoch` and any of `train/nll`, `val/nll`, `test/nll` (nats), `train/accuracy`,
      `val/error`, `test/error` (fractions) and `train/learning_rate`; `train/neg_entropy` marks DropMax. For
      numbers `val/rmse`, `test/rmse`, `train/mae`, `val/mae` and `test/mae`.
    title: above the figure.

  Returns:
    A figure of three axes: nll, error in %, learning rate; or RMSE, MAE, learning rate.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, Fig. 3 (a), has the first for MNIST.
  """
  figure = new_figure(11, 5.5, title)
  grid = figure.add_gridspec(2, 2, height_ratios=[4, 1])
  left, right = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
  percent = lambda fraction: 100 * fraction
  train: dict[str, Any] = {"label": "train", "color": "tab:blue", "linewidth": 1}
  val: dict[str, Any] = {"label": "val", "color": "tab:orange"}
  sampled: dict[str, Any] = {"label": "train (sampled mask)"} if masked(records) else {}
  if of_numbers(records):
    names = "root mean squared error", "mean absolute error"
    blocks = [
      line(left, records, "val/rmse", **val),
      line(right, records, "train/mae", **train),
      line(right, records, "val/mae", **val),
    ]
    stars(left, records, "test/rmse")
    stars(right, records, "test/mae")
  else:
    names = "negative log-likelihood (nats)", "error (%)"
    blocks = [
      line(left, records, "train/nll", **train | sampled),
      line(left, records, "val/nll", **val),
      # No band: a batch has few errors, often none, so the percentiles would jump between two values.
      line(right, records, "train/accuracy", convert=lambda x: percent(1 - x), band=False, **train),
      line(right, records, "val/error", convert=percent, band=False, **val),
    ]
    stars(left, records, "test/nll")
    stars(right, records, "test/error", scale=100, unit=" %")
  for axis, name in zip((left, right), names, strict=True):
    log_scale(axis)
    finish(axis, name)
  _learning_rate(figure.add_subplot(grid[1, :]), records)
  note_averages(figure, blocks)
  return figure


def _learning_rate(axis: Axes, records: Records) -> None:
  epochs, rates = read(records, "train/learning_rate")
  if len(rates):
    marker = "o" if len(rates) == 1 else ""
    axis.plot(epochs, np.where(np.isfinite(rates), rates, np.nan), color="tab:green", marker=marker)
    # A record is a mean over steps: a record across a switch has a rate that was never used. It occurs once.
    levels, times = np.unique(rates, return_counts=True)
    levels = levels[times > 1]
    # A log axis for a rate that falls in steps; a linear axis for a smooth decay to 0.
    if 1 < len(levels) <= min(5, len(rates) / 2) and levels.min() > 0:
      axis.set_yscale("log")
      axis.set_yticks(levels, [f"{level:g}" for level in levels])
      axis.set_yticks([], minor=True)
    elif len(rates) > 1:
      axis.set_ylim(bottom=0)
  finish(axis, "learning rate", legend=False)
