"""The speed of learning of several methods, side by side."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxreg.plots._axes import WIDTH, averages, colors, finish, log_scale, new_figure
from jaxreg.plots._lines import line
from jaxreg.plots._names import paper_name
from jaxreg.plots._series import Records, masked, of_numbers


def convergence(runs: Mapping[str, Records], *, title: str = "") -> Figure:
  """Draws training (thin) and validation likelihood, and validation error, of several runs over epochs.

  Where the labels are numbers, it draws the RMSE of the validation split, and the MAE of both.

  Args:
    runs: by label, records as for `curves`.
    title: above the figure.

  Returns:
    A figure of two axes: nll, error in %; or MAE, RMSE.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, Fig. 3 (a).
  """
  if not runs:
    raise ValueError("runs must have at least one entry, got none")
  figure = new_figure(WIDTH, 7.5, title)
  upper, lower = figure.subplots(2, 1)
  numbers = any(map(of_numbers, runs.values()))
  both, alone, factor = ("mae", "rmse", 1) if numbers else ("nll", "error", 100)
  blocks = []
  for number, (label, records) in enumerate(runs.items()):
    color = colors(len(runs))[number]
    train = {"color": color, "linewidth": 0.8, "alpha": 0.6, "band": False, "label": "_train"}
    blocks += [
      line(upper, records, f"train/{both}", **train),
      line(upper, records, f"val/{both}", color=color, band=False, label="_val"),
      line(
        lower,
        records,
        f"val/{alone}",
        color=color,
        band=False,
        label=paper_name(label),
        convert=lambda x: factor * x,
      ),
    ]
  for axis in (upper, lower):
    log_scale(axis)
  # One legend below both axes: on them, eight entries would cover the curves.
  note = "\nDropMax's training likelihood is under sampled masks" if any(map(masked, runs.values())) else ""
  finish(upper, "mean absolute error" if numbers else f"NLL (nats){note}", legend=False)
  finish(lower, "validation RMSE" if numbers else "validation error (%)", legend=False)
  handles, labels = lower.get_legend_handles_labels()
  handles += [Line2D([], [], color="gray"), Line2D([], [], color="gray", linewidth=0.8, alpha=0.6)]
  labels += ["validation", "training"]
  legend = {"loc": "outside lower center", "ncols": 4, "fontsize": "small", "frameon": False}
  # A note of the figure would lie on the legend.
  note = figure.legend(handles, labels, title=averages(blocks), **legend).get_title()
  note.set(fontsize="small", color="dimgray")
  return figure
