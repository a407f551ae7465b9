"""The speed of learning of several methods, side by side."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxreg.plots._axes import WIDTH, colors, finish, log_scale, new_figure, note_averages
from jaxreg.plots._lines import line
from jaxreg.plots._names import paper_name
from jaxreg.plots._series import Records, masked


def convergence(runs: Mapping[str, Records], *, title: str = "") -> Figure:
  """Draws training (thin) and validation likelihood, and validation error, of several runs over epochs.

  Args:
    runs: by label, records as for `curves`.
    title: above the figure.

  Returns:
    A figure of two axes: nll, error in %.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, Fig. 3 (a).
  """
  if not runs:
    raise ValueError("runs must have at least one entry, got none")
  figure = new_figure(WIDTH, 7.5, title)
  nll, error = figure.subplots(2, 1)
  blocks = []
  for number, (label, records) in enumerate(runs.items()):
    color = colors(len(runs))[number]
    train = {"color": color, "linewidth": 0.8, "alpha": 0.6, "band": False, "label": "_train"}
    blocks += [
      line(nll, records, "train/nll", **train),
      line(nll, records, "val/nll", color=color, band=False, label="_val"),
      line(
        error,
        records,
        "val/error",
        color=color,
        band=False,
        label=paper_name(label),
        convert=lambda x: 100 * x,
      ),
    ]
  for axis in (nll, error):
    log_scale(axis)
  # One legend below both axes: on them, eight entries would cover the curves.
  note = "\nDropMax's training likelihood is under sampled masks" if any(map(masked, runs.values())) else ""
  finish(nll, f"NLL (nats){note}", legend=False)
  finish(error, "validation error (%)", legend=False)
  handles, labels = error.get_legend_handles_labels()
  handles += [Line2D([], [], color="gray"), Line2D([], [], color="gray", linewidth=0.8, alpha=0.6)]
  labels += ["validation", "training"]
  figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small", frameon=False)
  note_averages(figure, blocks)
  return figure
