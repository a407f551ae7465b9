"""Figures: `(data, *, title) -> matplotlib.figure.Figure`; no pyplot, so headless and without global state.

The `title` stands above the figure. `records` are the lines of a run's `metrics.jsonl`, as dicts. Non-finite
values leave a gap and a red cross at the bottom of the axis. More than 200 records are averaged in blocks,
and the figure says so. Nothing to draw and a record without an epoch raise a ValueError. These files import
nothing of the trainer.
"""

from jaxreg.plots._alignment import alignment
from jaxreg.plots._comparison import comparison
from jaxreg.plots._curvature import density, layerwise, spectra
from jaxreg.plots._curves import convergence, curves, diagnostics, terms
from jaxreg.plots._goodput import goodput
from jaxreg.plots._power_laws import power_laws
from jaxreg.plots._profiles import profiles, surface
from jaxreg.plots._reliability import predicted, reliability
from jaxreg.plots._retain_maps import retain_maps

__all__ = [
  "alignment",
  "comparison",
  "convergence",
  "curves",
  "density",
  "diagnostics",
  "goodput",
  "layerwise",
  "power_laws",
  "predicted",
  "profiles",
  "reliability",
  "retain_maps",
  "spectra",
  "surface",
  "terms",
]
