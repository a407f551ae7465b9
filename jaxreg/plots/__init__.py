"""Figures: `(data, *, title) -> matplotlib.figure.Figure`; no pyplot, so headless and without global state.

`records` are the lines of a run's `metrics.jsonl`, as dicts. Non-finite values leave a gap and a red cross at
the bottom of the axis. More than 200 records are averaged in blocks, and the figure says so. Nothing to draw
and a record without an epoch raise a ValueError. These files import NumPy, SciPy and matplotlib, and nothing
of the trainer.
"""

from jaxreg.plots._alignment import alignment
from jaxreg.plots._comparison import comparison
from jaxreg.plots._convergence import convergence
from jaxreg.plots._curves import curves
from jaxreg.plots._density import density
from jaxreg.plots._diagnostics import diagnostics
from jaxreg.plots._layerwise import layerwise
from jaxreg.plots._power_laws import power_law_table, power_laws
from jaxreg.plots._profiles import profiles
from jaxreg.plots._reliability import reliability
from jaxreg.plots._retain_maps import retain_maps
from jaxreg.plots._spectra import spectra
from jaxreg.plots._surface import surface
from jaxreg.plots._terms import terms

__all__ = [
  "alignment",
  "comparison",
  "convergence",
  "curves",
  "density",
  "diagnostics",
  "layerwise",
  "power_law_table",
  "power_laws",
  "profiles",
  "reliability",
  "retain_maps",
  "spectra",
  "surface",
  "terms",
]


def __dir__() -> list[str]:
  return __all__
