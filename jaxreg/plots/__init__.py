"""Figures: `(data, *, title) -> matplotlib.figure.Figure`; no pyplot, so headless and without global state.

`records` are the lines of a run's `metrics.jsonl`, as dicts. Non-finite values leave a gap and a red cross at
the bottom of the axis. More than 200 records are averaged in blocks, and the figure says so. These files
import NumPy, SciPy and matplotlib, and nothing of the trainer.
"""

from jaxreg.plots._adversarial import adversarial
from jaxreg.plots._alignment import alignment
from jaxreg.plots._comparison import comparison
from jaxreg.plots._contours import contours
from jaxreg.plots._convergence import convergence
from jaxreg.plots._curves import curves
from jaxreg.plots._density import density
from jaxreg.plots._descent_paths import descent_paths
from jaxreg.plots._diagnostics import diagnostics
from jaxreg.plots._ellipses import ellipses
from jaxreg.plots._equilibrium import equilibrium
from jaxreg.plots._features import features
from jaxreg.plots._first_steps import first_steps
from jaxreg.plots._flat_minima import flat_minima
from jaxreg.plots._gradients import gradients
from jaxreg.plots._landscape import final_losses, stationary_points
from jaxreg.plots._layerwise import layerwise
from jaxreg.plots._monte_carlo import monte_carlo, predictive
from jaxreg.plots._names import paper_name
from jaxreg.plots._network_sizes import network_sizes
from jaxreg.plots._penalty_contours import penalty_contours
from jaxreg.plots._power_laws import power_laws
from jaxreg.plots._profiles import profiles
from jaxreg.plots._regression_band import regression_band
from jaxreg.plots._reliability import reliability
from jaxreg.plots._retain_maps import retain_maps
from jaxreg.plots._sample_error import sample_error
from jaxreg.plots._seed_curves import seed_curves
from jaxreg.plots._spectra import spectra
from jaxreg.plots._stopping_path import stopping_path
from jaxreg.plots._surface import surface
from jaxreg.plots._sweep import sweep
from jaxreg.plots._terms import terms
from jaxreg.plots._unit_balls import unit_balls

__all__ = [
  "adversarial",
  "alignment",
  "comparison",
  "contours",
  "convergence",
  "curves",
  "density",
  "descent_paths",
  "diagnostics",
  "ellipses",
  "equilibrium",
  "features",
  "final_losses",
  "first_steps",
  "flat_minima",
  "gradients",
  "layerwise",
  "monte_carlo",
  "network_sizes",
  "paper_name",
  "penalty_contours",
  "power_laws",
  "predictive",
  "profiles",
  "regression_band",
  "reliability",
  "retain_maps",
  "sample_error",
  "seed_curves",
  "spectra",
  "stationary_points",
  "stopping_path",
  "surface",
  "sweep",
  "terms",
  "unit_balls",
]


def __dir__() -> list[str]:
  return __all__
