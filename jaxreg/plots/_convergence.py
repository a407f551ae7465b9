"""How fast methods learn, side by side."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from jaxreg.plots._axes import finish, log_scale, new_figure, note_averages
from jaxreg.plots._lines import line
from jaxreg.plots._series import Records, masked


def convergence(runs: Mapping[str, Records], *, title: str = "") -> Figure:
  """Likelihood of training (thin) and validation, and the error of validation, of several runs over epochs.

  Args:
    runs: by label, records as for `curves`.
    title: above the figure.

  Returns:
    A figure of two axes: nll, error in %.

  Raises:
    ValueError: if there is no run, or a record has no epoch.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, Fig. 3 (a).
  """
  if not runs:
    raise ValueError("runs must have at least one, got none")
  figure = new_figure(12, 4.5, title)
  nll, error = figure.subplots(1, 2)
  blocks = []
  for number, (label, records) in enumerate(runs.items()):
    color = f"C{number % 10}"
    train = {"color": color, "linewidth": 0.8, "alpha": 0.6, "band": False, "label": "_train"}
    blocks += [
      line(nll, records, "train/nll", **train),
      line(nll, records, "val/nll", color=color, band=False, label="_val"),
      line(error, records, "val/error", color=color, band=False, label=label, convert=lambda x: 100 * x),
    ]
  for axis in (nll, error):
    log_scale(axis)
  # One legend for both axes, beside them: eight methods would cover what they name.
  note = "\nDropMax's training likelihood is under sampled masks" if any(map(masked, runs.values())) else ""
  finish(nll, f"NLL (nats): thin, training; thick, validation{note}", legend=False)
  finish(error, "validation error (%)", legend=False)
  figure.legend(
    *error.get_legend_handles_labels(), loc="outside right upper", fontsize="small", frameon=False
  )
  note_averages(figure, blocks)
  return figure
