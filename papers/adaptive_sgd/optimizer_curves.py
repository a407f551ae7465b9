"""Training loss against the step, balanced and unbalanced starts, from a finished comparison of optimizers.

    python -m papers.adaptive_sgd.optimizer_curves runs/compare_optimizers_mnist5k-HASH

Writes `figures/optimizers.png` into the folder.
"""

import argparse

import numpy as np
from etils.epath import Path
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxreg._figures import WIDTH, new_figure, tidy
from jaxreg.train import RunError
from jaxreg.train.run.metrics_file import read_records
from papers._command import one_line_errors, read_comparison, row_folder

STARTS = {"balanced": "", "unbalanced": " unbalanced"}
STYLES = {"balanced": {"color": "tab:blue"}, "unbalanced": {"color": "tab:orange", "linestyle": "--"}}


@one_line_errors()
def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("folder", type=Path)
  folder = parser.parse_args().folder
  found = read_comparison(folder)
  names = [name for name in found["rows"] if not name.endswith(STARTS["unbalanced"])]
  figure = draw(
    {name: {start: _curve(folder, name + suffix) for start, suffix in STARTS.items()} for name in names},
    found["seeds"],
    title="5000 images of MNIST, MLP 784-1024-1024-10",
  )
  (folder / "figures").mkdir(exist_ok=True)
  figure.savefig(folder / "figures/optimizers.png", dpi=100)


def draw(
  curves: dict[str, dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]], seeds: int, *, title: str = ""
) -> Figure:
  """Draws a panel for each optimizer: `(steps, loss, half width)` of both starts, the others in grey."""
  columns = 3
  rows = -(-len(curves) // columns)
  figure = new_figure(WIDTH, 0.9 + 1.8 * rows, title)
  axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
  for axis in axes[len(curves) :]:
    axis.set_axis_off()
  for axis, (name, starts) in zip(axes, curves.items()):
    for others in curves.values():
      for steps, loss, _ in others.values():
        axis.plot(steps, loss, color="lightgray", linewidth=0.6)
    for start, style in STYLES.items():
      steps, loss, half = starts[start]
      axis.plot(steps, loss, linewidth=1.6, label=f"{start} start", **style)
      # A mean that is not larger than its interval has no lower end on a logarithmic axis.
      low = np.maximum(loss - half, loss / 10)
      axis.fill_between(steps, low, loss + half, color=style["color"], alpha=0.2, linewidth=0)
    axis.set_title(name, loc="left", fontsize="small")
    axis.set_yscale("log")
    tidy(axis)
  for axis in axes[len(curves) - columns : len(curves)]:  # the lowest panel of each column
    axis.tick_params(labelbottom=True)
    axis.set_xlabel("step")
  figure.supylabel(f"training loss (nats), mean of {seeds} seeds and its 95 % interval", fontsize="medium")
  figure.legend(
    [*axes[0].get_legend_handles_labels()[0], Line2D([], [], color="lightgray", linewidth=0.8)],
    [*axes[0].get_legend_handles_labels()[1], "the other optimizers"],
    loc="outside lower center",
    ncols=3,
    fontsize="small",
    frameon=False,
  )
  return figure


def _curve(folder: Path, label: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  records = [record for record in read_records(row_folder(folder, label)) if "train/loss" in record]
  if not records:
    raise RunError(f"folder: the row {label!r} of {folder} has no recorded training loss")
  steps, loss = np.array([[record["step"], record["train/loss"]] for record in records]).T
  return steps, loss, np.array([record.get("train/loss_ci95", 0.0) for record in records])


if __name__ == "__main__":
  main()
