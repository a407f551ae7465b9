"""Predictions of many models combined: `(log_probs [members, ..., classes], *, weights) -> [..., classes]`.

`uncertainty` splits the entropy of a mean prediction into the part within the members and the part between
them. `dropout_masks` and `mask_probs` enumerate the ensemble that dropout trains, `mc_predict` samples it,
and `noise.scale_weights` scales the weights for it at test time. `ensemble_init` and `ensemble_apply` make
and train stacked members. `laplace_curvature`, `laplace_posterior` and `laplace_variance` replace the members
by a Gaussian over the last layer's weights; `probit_log_probs` gives its prediction. These files import JAX,
Optax, NumPy and the core only.
"""

from jaxreg._names import suggest_names
from jaxreg.ensembles._bagging import bootstrap_indices
from jaxreg.ensembles._deep import ensemble_apply, ensemble_init
from jaxreg.ensembles._laplace import laplace_curvature, laplace_posterior, laplace_variance, probit_log_probs
from jaxreg.ensembles._masks import dropout_masks, mask_probs
from jaxreg.ensembles._mc_predict import mc_predict, mc_regress
from jaxreg.ensembles._means import arithmetic, geometric
from jaxreg.ensembles._uncertainty import MCResult, uncertainty

__all__ = [
  "MCResult",
  "arithmetic",
  "bootstrap_indices",
  "dropout_masks",
  "ensemble_apply",
  "ensemble_init",
  "geometric",
  "laplace_curvature",
  "laplace_posterior",
  "laplace_variance",
  "mask_probs",
  "mc_predict",
  "mc_regress",
  "probit_log_probs",
  "uncertainty",
]

suggest_names(globals())
