"""Figures: plain data in, a `matplotlib.figure.Figure` out; no pyplot, so headless and without global state.

`records` are the lines of a run's `metrics.jsonl`, as dicts. Values that are not finite leave a gap and a red
cross at the bottom of the axis; more than 200 records are averaged in blocks, and the figure says so.
"""

from jaxreg.plots._alignment import alignment
from jaxreg.plots._comparison import comparison
from jaxreg.plots._contours import contours
from jaxreg.plots._convergence import convergence
from jaxreg.plots._curves import curves
from jaxreg.plots._descent_paths import descent_paths
from jaxreg.plots._diagnostics import diagnostics
from jaxreg.plots._equilibrium import equilibrium
from jaxreg.plots._gradients import gradients
from jaxreg.plots._landscape import final_losses, stationary_points
from jaxreg.plots._monte_carlo import monte_carlo, predictive
from jaxreg.plots._power_laws import power_laws
from jaxreg.plots._profiles import profiles
from jaxreg.plots._reliability import reliability
from jaxreg.plots._retain_maps import retain_maps
from jaxreg.plots._spectra import spectra
from jaxreg.plots._sweep import sweep
from jaxreg.plots._terms import terms
from jaxreg.plots._unit_balls import unit_balls

__all__ = [
  "alignment",
  "comparison",
  "contours",
  "convergence",
  "curves",
  "descent_paths",
  "diagnostics",
  "equilibrium",
  "final_losses",
  "gradients",
  "monte_carlo",
  "power_laws",
  "predictive",
  "profiles",
  "reliability",
  "retain_maps",
  "spectra",
  "stationary_points",
  "sweep",
  "terms",
  "unit_balls",
]
