"""Figures of this source: `(data, *, title) -> matplotlib.figure.Figure`, as in `jaxreg.plots`."""

from papers.adaptive_sgd.plots._descent_paths import descent_paths
from papers.adaptive_sgd.plots._features import features, mosaic
from papers.adaptive_sgd.plots._landscape import final_losses, stationary_points
from papers.adaptive_sgd.plots._network_sizes import network_sizes
from papers.adaptive_sgd.plots._regression_band import regression_band
from papers.adaptive_sgd.plots._sample_error import sample_error
from papers.adaptive_sgd.plots._unit_balls import unit_balls

__all__ = [
  "descent_paths",
  "features",
  "final_losses",
  "mosaic",
  "network_sizes",
  "regression_band",
  "sample_error",
  "stationary_points",
  "unit_balls",
]
