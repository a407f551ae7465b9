"""Figures of the records of a training: learning curves, terms, DropMax's diagnostics, several runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxreg._figures import (
  WIDTH,
  colors,
  finish,
  legend_below,
  log_scale,
  new_figure,
  verbatim,
)
from jaxreg._paper_names import paper_name
from jaxreg.plots._lines import Records, averages, has_numbers, line, masked, note_averages, read, stars

# sigmoid(a) for a = 1 + exp(-a): KL and entropy balance there if the posterior drops all other classes.
EQUILIBRIUM = 0.782188


def _percent(fraction: np.ndarray) -> np.ndarray:
  return 100 * fraction


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

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, Fig. 3 (a), has the first for MNIST.
  """
  figure = new_figure(11, 5.5, title)
  grid = figure.add_gridspec(2, 2, height_ratios=[4, 1])
  left, right = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
  train: dict[str, Any] = {"label": "train", "color": "tab:blue", "linewidth": 1}
  val: dict[str, Any] = {"label": "val", "color": "tab:orange"}
  sampled: dict[str, Any] = {"label": "train (sampled mask)"} if masked(records) else {}
  if has_numbers(records):
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
      line(right, records, "train/accuracy", convert=lambda x: _percent(1 - x), band=False, **train),
      line(right, records, "val/error", convert=_percent, band=False, **val),
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


def terms(records: Records, names: Sequence[str], *, title: str = "") -> Figure:
  """Draws the terms of the training objective and their sum over epochs, on one axis and separately.

  The first axis shows which term dominates the sum. The others show how each term moves, on a log axis if it
  is positive and falls far. DropMax's sum is negative late in training, because its entropy term is.

  Args:
    records: dicts with `epoch`, `train/loss` (the sum) and `train/<name>` for each term.
    names: the terms, such as `("nll", "kl", "neg_entropy", "auxiliary")`.

  Returns:
    A figure of `2 + len(names)` axes: all, the sum, then the terms in the given order.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018: the auxiliary term Eq. 11, the entropy Eq. 13.
  """
  if isinstance(names, str):
    raise TypeError(f"names must be a sequence of names, got the string {names!r}")
  columns = 2 if len(names) > 2 else 1
  rows = max(1, -(-len(names) // columns))
  figure = new_figure(12, 2.9 * max(2, rows), title)
  left, right = figure.add_gridspec(1, 2, width_ratios=[1, 1.25])
  upper, lower = left.subgridspec(2, 1, height_ratios=[3, 2])
  shared, total = figure.add_subplot(upper), figure.add_subplot(lower)
  for number, name in enumerate(names):
    line(shared, records, f"train/{name}", label=verbatim(name), cross=False, color=f"C{number % 10}")
  # Dashed, so that a single term is visible beneath its sum.
  line(shared, records, "train/loss", label="loss (sum)", cross=False, color="black", linestyle="--")
  finish(shared, "all terms (nats)", legend=False)
  if shared.lines:
    shared.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize="small", frameon=False)
    shared.axhline(0, color="gray", linewidth=0.8, zorder=0)
  blocks = [_term(total, records, "loss", "black")]
  cells = right.subgridspec(rows, columns)
  for number, name in enumerate(names):
    axis = figure.add_subplot(cells[number // columns, number % columns])
    blocks.append(_term(axis, records, name, f"C{number % 10}"))
  note_averages(figure, blocks)
  return figure


def _term(axis: Axes, records: Records, name: str, color: str) -> int:
  block = line(axis, records, f"train/{name}", label=verbatim(name), color=color)
  log_scale(axis, min_ratio=30)
  finish(axis, verbatim(name), legend=False)
  return block


def diagnostics(records: Records, *, title: str = "") -> Figure:
  """Draws DropMax's retain probabilities, masks and the gradient that they let through, over epochs.

  The dashed lines are the equilibrium for easy examples: 0.782 for the target and 0.218 for the others. If
  masks and gradient fall to 0 together while the error is still high, the run has stopped learning: every
  other class is dropped.

  Args:
    records: dicts with `epoch` and the means over a batch `train/retain_target`, `train/retain_nontarget`,
      `train/posterior_nontarget`, `train/kept_nontarget` and `train/logit_grad_norm`, as from
      `jaxreg.losses.dropmax_diagnostics`.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018; the equilibrium is derived from its objective,
    d(KL - H) / d rho = 0 where q is certain, and not printed there.
  """
  figure = new_figure(13, 4.2, title)
  retain, masks, gradient = figure.subplots(1, 3)
  kept = {"label": "masks kept (z > 1/2)", "color": "tab:purple", "linewidth": 1}
  blocks = [
    line(retain, records, "train/retain_target", label="target", color="tab:blue"),
    line(retain, records, "train/retain_nontarget", label="non-targets, mean", color="tab:orange"),
    line(masks, records, "train/kept_nontarget", **kept),
    line(masks, records, "train/posterior_nontarget", label="posterior g", color="tab:green"),
    line(gradient, records, "train/logit_grad_norm", label="gradient", color="tab:red"),
  ]
  if retain.lines:
    for level, color in ((EQUILIBRIUM, "tab:blue"), (1 - EQUILIBRIUM, "tab:orange")):
      retain.axhline(level, color=color, linestyle="--", linewidth=1, label=f"equilibrium {level:.3f}")
    retain.set_ylim(0, 1)
  log_scale(masks)
  log_scale(gradient)
  finish(retain, "retain probability, p(z | x)")
  finish(masks, "non-targets in q(z | x, y)")
  finish(gradient, "gradient of the nll in the logits (L2 norm)", legend=False)
  note_averages(figure, blocks)
  return figure


def convergence(runs: Mapping[str, Records], *, title: str = "") -> Figure:
  """Draws training (thin) and validation likelihood, and validation error, of several runs over epochs.

  Where the labels are numbers, it draws the RMSE of the validation split, and the MAE of both.

  Args:
    runs: by label, records as for `curves`.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, Fig. 3 (a).
  """
  if not runs:
    raise ValueError("runs must have at least one entry, got none")
  figure = new_figure(WIDTH, 7.5, title)
  upper, lower = figure.subplots(2, 1)
  numbers = any(map(has_numbers, runs.values()))
  both, alone, convert = ("mae", "rmse", np.asarray) if numbers else ("nll", "error", _percent)
  blocks = []
  for color, (label, records) in zip(colors(len(runs)), runs.items(), strict=True):
    style: dict[str, Any] = {"color": color, "band": False}
    thin = {**style, "linewidth": 0.8, "alpha": 0.6}
    blocks += [
      line(upper, records, f"train/{both}", label="_train", **thin),
      line(upper, records, f"val/{both}", label="_val", **style),
      line(lower, records, f"val/{alone}", label=verbatim(paper_name(label)), convert=convert, **style),
    ]
  for axis in (upper, lower):
    log_scale(axis)
  note = "\nDropMax's training likelihood is under sampled masks" if any(map(masked, runs.values())) else ""
  finish(upper, "mean absolute error" if numbers else f"NLL (nats){note}", legend=False)
  finish(lower, "validation RMSE" if numbers else "validation error (%)", legend=False)
  handles = [
    *lower.get_legend_handles_labels()[0],
    Line2D([], [], color="gray", label="validation"),
    Line2D([], [], color="gray", linewidth=0.8, alpha=0.6, label="training"),
  ]
  legend = legend_below(figure, handles, columns=4)
  # A note of the figure would lie on the legend.
  legend.set_title(averages(blocks))
  legend.get_title().set(fontsize="small", color="dimgray")
  return figure
