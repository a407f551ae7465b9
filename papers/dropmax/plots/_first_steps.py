"""The first steps of runs, side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxreg._figures import WIDTH, new_figure, tidy

Records = Sequence[Mapping[str, Any]]
# The metrics of a panel by label; each panel is one row of the figure.
TERMS = {"likelihood": "nll", "KL": "kl", "negative entropy": "neg_entropy", "auxiliary": "auxiliary"}
PROBABILITIES = {
  "target retained": "retain_target",
  "wrong classes retained": "retain_nontarget",
  "wrong classes kept by the mask": "kept_nontarget",
}
PARTS = {"backbone": "backbone", "classifier": "classifier", "prior": "prior", "residual": "residual"}


def first_steps(columns: Mapping[str, Mapping[str, Records]], *, window: int = 5, title: str = "") -> Figure:
  """Draws the first steps of DropMax and softmax under several recipes, one column per recipe.

  The rows are: DropMax's four terms, with their sum in black; the training accuracy of every method;
  DropMax's retain probabilities and masks; the gradient norm of the backbone and of each layer of the head,
  before any clipping, with softmax's dashed. If a run of DropMax collapses, its retain probabilities meet,
  its masks keep no wrong class, and the gradient of its backbone vanishes.

  Args:
    columns: recipe to method (`"DropMax"`, `"softmax"`) to its records, one per step: dicts with `step` and
      `train/...`, as in `metrics.jsonl` with `log_every=1`.
    window: number of steps in the mean of each point of the accuracy.
    title: above the figure.

  Returns:
    A figure of four rows and one column per recipe.

  Raises:
    ValueError: if a recipe has no run of `"DropMax"`.
  """
  for recipe, methods in columns.items():
    if "DropMax" not in methods:
      raise ValueError(
        f"columns[{recipe!r}] must have a run of 'DropMax', got {', '.join(methods) or 'none'}"
      )
  figure = new_figure(WIDTH, 11, title)
  grid = figure.subplots(4, len(columns), sharex=True, sharey="row", squeeze=False)
  for axes, (recipe, methods) in zip(grid.T, columns.items()):
    terms, accuracy, probabilities, gradients = axes
    terms.set_title(recipe, fontsize="medium")
    dropmax = methods["DropMax"]
    _lines(terms, dropmax, TERMS)
    _lines(terms, dropmax, {"sum": "loss"}, color="black", linestyle="--")
    for method, records in methods.items():
      _lines(accuracy, records, {method: "accuracy"}, window=window, scale=100)
    _lines(probabilities, dropmax, PROBABILITIES)
    probabilities.set_ylim(0, 1)
    names = {label: f"grad_norm_{part}" for label, part in PARTS.items()}
    _lines(gradients, dropmax, names)
    gradients.set_prop_cycle(None)
    others = {method: records for method, records in methods.items() if method != "DropMax"}
    for method, records in others.items():
      named = {f"{method}: {label}": name for label, name in names.items()}
      _lines(gradients, records, named, linestyle="--", linewidth=1)
    gradients.set_yscale("log")
    gradients.set_xlabel("step")
  labels = ("terms (nats)", "training accuracy (%)", "DropMax, probability", "gradient norm")
  for axis, label in zip(grid[:, 0], labels):
    axis.set_ylabel(label)
  grid[-1, -1].set_ylim(top=300 * grid[-1, -1].get_ylim()[1])  # for the legend
  for axis, place in zip(grid[:, -1], ("upper right", "upper left", "upper right", "upper right")):
    axis.legend(fontsize="small", loc=place, frameon=False)
  for axis in grid.flat:
    tidy(axis)
  return figure


def _lines(
  axis: Axes, records: Records, names: Mapping[str, str], *, window: int = 1, scale: float = 1.0, **style
) -> None:
  for label, name in names.items():
    found = [record for record in records if f"train/{name}" in record]
    if not found:
      continue
    steps, values = (np.array([record[key] for record in found], float) for key in ("step", f"train/{name}"))
    size = min(window, len(values))
    # Means over whole windows, each drawn at its middle.
    mean = lambda x, size=size: np.convolve(x, np.full(size, 1 / size), "valid")
    axis.plot(mean(steps), scale * mean(values), label=label, **{"linewidth": 1.5, **style})
