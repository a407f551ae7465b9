"""Draws the figures of the lecture on noise and adaptive SGD, one by its name or all, into docs/figures.

    python -m papers.adaptive_sgd.figures unit_balls
    python -m papers.adaptive_sgd.figures all --data DIR     # DIR: the four idx files of MNIST

The numbers that the page quotes go into benchmarks/records/adaptive_sgd_NAME.json.
"""

from papers._small_networks import draw
from papers.adaptive_sgd import _geometry as geometry
from papers.adaptive_sgd._gradient_variance import gradient_variance
from papers.adaptive_sgd._networks import autoencoder, ensemble, mc_samples
from papers.adaptive_sgd._sizes import network_sizes

FIGURES = {
  "unit_balls": geometry.draw_balls,
  "coordinates": geometry.draw_coordinates,
  "index": geometry.draw_index,
  "widths": geometry.draw_widths,
  "gradient_variance": gradient_variance,
  "ensemble": ensemble,
}
ON_MNIST = {"autoencoder": autoencoder, "mc_samples": mc_samples, "network_sizes": network_sizes}

if __name__ == "__main__":
  draw(__doc__, "adaptive_sgd", FIGURES, ON_MNIST)
