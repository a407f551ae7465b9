"""Where the wall time of runs went."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from jaxreg._figures import WIDTH, legend_below, new_figure, tidy, verbatim
from jaxreg._paper_names import paper_name

# What a kind of time is called, and its color: the steps that count are blue.
KINDS = {
  "steps": ("steps that count", "tab:blue"),
  "start": ("start", "lightgray"),
  "compile": ("compile", "tab:purple"),
  "restore": ("restore", "tab:olive"),
  "input": ("wait for input", "tab:orange"),
  "evaluate": ("evaluate", "tab:green"),
  "save": ("save", "tab:cyan"),
  "profile": ("profile", "tab:brown"),
  "repeated": ("repeated steps", "tab:red"),
  "stopped": ("stopped", "black"),
}
MOST_LABELLED = 0.06  # a narrower part of a bar has no number


def goodput(runs: Mapping[str, Mapping[str, Any]], *, title: str = "") -> Figure:
  """Draws a bar for each run: the shares of its wall time by kind, and its goodput.

  Args:
    runs: by label, the `goodput` of a run's `results.json`: `share`, `starts`, `wall_seconds`, `seconds`.
  """
  if not runs:
    raise ValueError("runs must have at least one entry, got none")
  figure = new_figure(WIDTH, 1.6 + 0.5 * len(runs), title)
  axis = figure.subplots()
  shown = {name for run in runs.values() for name, seconds in run["seconds"].items() if seconds > 0}
  for place, run in enumerate(runs.values()):
    total, left = max(run["wall_seconds"], 1e-9), 0.0
    for name, (_, color) in KINDS.items():
      share = 100 * run["seconds"].get(name, 0.0) / total
      axis.barh(place, share, left=left, color=color, height=0.7)
      if share >= 100 * MOST_LABELLED:
        text = "black" if name in ("start", "save", "input", "restore") else "white"
        axis.text(
          left + share / 2, place, f"{share:.0f}", ha="center", va="center", color=text, fontsize="small"
        )
      left += share
  axis.set_yticks(
    np.arange(len(runs)), [f"{verbatim(paper_name(label))}\n{_described(run)}" for label, run in runs.items()]
  )
  axis.tick_params(axis="y", labelsize="small")
  axis.invert_yaxis()
  axis.set_xlim(0, 100)
  tidy(axis, "wall time since the first start (%)", grid="x")
  axis.set_axisbelow(True)
  handles = [Patch(color=color, label=label) for name, (label, color) in KINDS.items() if name in shown]
  legend_below(figure, handles, columns=5)
  return figure


def _described(run: Mapping[str, Any]) -> str:
  """Returns the wall time of a run, its starts if there are several, and its goodput."""
  seconds, starts = run["wall_seconds"], run["starts"]
  time = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
  return f"{time}{f', {starts} starts' if starts > 1 else ''}\ngoodput {run['share']:.0%}"
