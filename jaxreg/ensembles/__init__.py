"""Predictions of many models as one: means of log-probabilities `[members, ..., classes]`, and their spread.

`dropout_masks` and `mask_probs` with a mean enumerate the ensemble that dropout trains; `mc_predict` samples
it; `bag_predict` is for members of their own, with their parameters stacked, which `ensemble_init` and
`ensemble_apply` make and train. What the test-time weights of dropout stand for is `noise.scale_weights`.
"""

from jaxreg.ensembles._bagging import bag_predict, bootstrap_indices
from jaxreg.ensembles._deep import ensemble_apply, ensemble_init
from jaxreg.ensembles._masks import dropout_masks, mask_probs
from jaxreg.ensembles._mc_predict import MCMoments, MCResult, mc_predict, mc_regress
from jaxreg.ensembles._means import arithmetic, geometric

__all__ = [
  "MCMoments",
  "MCResult",
  "arithmetic",
  "bag_predict",
  "bootstrap_indices",
  "dropout_masks",
  "ensemble_apply",
  "ensemble_init",
  "geometric",
  "mask_probs",
  "mc_predict",
  "mc_regress",
]


def __dir__() -> list[str]:
  return __all__
