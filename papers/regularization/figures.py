"""Draws the figures of the lecture on regularization, one by its name or all, into docs/figures.

    python -m papers.regularization.figures penalties
    python -m papers.regularization.figures all --data DIR     # DIR: the four idx files of MNIST

The numbers that the page quotes go into benchmarks/records/regularization_NAME.json.
"""

from papers._small_networks import draw
from papers.regularization._fgsm import fgsm
from papers.regularization._flat_minima import weight_noise
from papers.regularization._learning_curves import learning_curves
from papers.regularization._quadratics import early_stopping, ellipses, penalties

FIGURES = {f.__name__: f for f in (penalties, early_stopping, ellipses, learning_curves)}
ON_MNIST = {f.__name__: f for f in (fgsm, weight_noise)}

if __name__ == "__main__":
  draw(__doc__, "regularization", FIGURES, ON_MNIST)
