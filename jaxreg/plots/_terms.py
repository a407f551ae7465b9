"""The terms of an objective."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxreg.plots._axes import finish, log_scale, new_figure, note_averages
from jaxreg.plots._lines import line
from jaxreg.plots._series import Records


def terms(records: Records, names: Sequence[str], *, title: str = "") -> Figure:
  """Draws the terms of the training objective and their sum over epochs, on one axis and separately.

  The first axis shows which term dominates the sum. The others show how each term moves, on a log axis if it
  is positive and falls far. DropMax's sum is negative late in training, because its entropy term is.

  Args:
    records: dicts with `epoch`, `train/loss` (the sum) and `train/<name>` for each term.
    names: the terms, such as `("nll", "kl", "neg_entropy", "auxiliary")`.
    title: above the figure.

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
  colors = {name: f"C{i % 10}" for i, name in enumerate(names)}
  for name in names:
    line(shared, records, f"train/{name}", label=name, cross=False, color=colors[name])
  # Dashed, so that a single term is visible beneath its sum.
  line(shared, records, "train/loss", label="loss (sum)", cross=False, color="black", linestyle="--")
  _finish_shared(shared)
  blocks = [_alone(total, records, "loss", "black")]
  cells = right.subgridspec(rows, columns)
  for i, name in enumerate(names):
    blocks.append(_alone(figure.add_subplot(cells[i // columns, i % columns]), records, name, colors[name]))
  note_averages(figure, blocks)
  return figure


def _finish_shared(axis: Axes) -> None:
  finish(axis, "all terms (nats)", legend=False)
  if axis.lines:
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize="small", frameon=False)
    axis.axhline(0, color="gray", linewidth=0.8, zorder=0)


def _alone(axis: Axes, records: Records, name: str, color: str) -> int:
  block = line(axis, records, f"train/{name}", label=name, color=color)
  log_scale(axis, min_ratio=30)
  finish(axis, name, legend=False)
  return block
