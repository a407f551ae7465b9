"""Figures of this source: `(data, *, title) -> matplotlib.figure.Figure`, as in `jaxreg.plots`."""

from papers.dropmax.plots._contours import contours
from papers.dropmax.plots._equilibrium import equilibrium
from papers.dropmax.plots._first_steps import first_steps
from papers.dropmax.plots._gradients import gradients
from papers.dropmax.plots._monte_carlo import monte_carlo, predictive

__all__ = [
  "contours",
  "equilibrium",
  "first_steps",
  "gradients",
  "monte_carlo",
  "predictive",
]
