"""Grey entries of a legend, which say what dots, bars, bands and dashes mean."""

from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

GREY: Any = "dimgray"


def dot(label: str) -> Line2D:
  """A single point."""
  return Line2D([], [], color=GREY, linestyle="", marker="o", markersize=4, label=label)


def bar(label: str) -> Line2D:
  """An upright interval."""
  return Line2D([], [], color=GREY, linestyle="", marker="|", markersize=9, label=label)


def band(label: str) -> Patch:
  """A filled area."""
  return Patch(color=GREY, alpha=0.25, linewidth=0, label=label)


def stroke(label: str, style: Any = "-", *, width: float = 1.5) -> Line2D:
  """A line, solid or dashed."""
  return Line2D([], [], color=GREY, linestyle=style, linewidth=width, label=label)
