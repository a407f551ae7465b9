"""Figures of this source: `(data, *, title) -> matplotlib.figure.Figure`, as in `jaxreg.plots`."""

from papers.regularization.plots._adversarial import adversarial
from papers.regularization.plots._ellipses import ellipses
from papers.regularization.plots._flat_minima import flat_minima
from papers.regularization.plots._penalty_contours import ball, penalty_contours
from papers.regularization.plots._seed_curves import seed_curves
from papers.regularization.plots._stopping_path import stopping_path

__all__ = [
  "adversarial",
  "ball",
  "ellipses",
  "flat_minima",
  "penalty_contours",
  "seed_curves",
  "stopping_path",
]
