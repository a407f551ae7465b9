"""Figures: `(data, *, title) -> matplotlib.figure.Figure`; no pyplot, so headless and without global state.

The `title` stands above the figure. `records` are the lines of a run's `metrics.jsonl`, as dicts. Non-finite
values leave a gap and a red cross at the bottom of the axis. More than 200 records are averaged in blocks,
and the figure says so. Nothing to draw and a record without an epoch raise a ValueError. These files import
NumPy, SciPy and matplotlib, and nothing of the trainer.
"""

from jaxreg._names import suggest_names
from jaxreg.plots._alignment import alignment as alignment
from jaxreg.plots._comparison import comparison as comparison
from jaxreg.plots._curvature import density as density
from jaxreg.plots._curvature import layerwise as layerwise
from jaxreg.plots._curvature import spectra as spectra
from jaxreg.plots._curves import convergence as convergence
from jaxreg.plots._curves import curves as curves
from jaxreg.plots._curves import diagnostics as diagnostics
from jaxreg.plots._curves import terms as terms
from jaxreg.plots._power_laws import power_laws as power_laws
from jaxreg.plots._profiles import profiles as profiles
from jaxreg.plots._profiles import surface as surface
from jaxreg.plots._reliability import predicted as predicted
from jaxreg.plots._reliability import reliability as reliability
from jaxreg.plots._retain_maps import retain_maps as retain_maps

suggest_names(globals())
