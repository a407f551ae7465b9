"""Predictions of many models combined: `(log_probs [members, ..., classes], *, weights) -> [..., classes]`.

`uncertainty` splits the entropy of a mean prediction into the part within the members and the part between
them. Stacked members, whose leaves are `[members, ...]`, are made, trained and evaluated by `jax.vmap`, as
`examples/ensemble.py` shows. `mc_predict` samples the ensemble that dropout trains, and `noise.scale_weights`
scales the weights for it at test time. `laplace` replaces the members by a Gaussian over the weights of a
network or of some of its layers, and `probit_log_probs` gives its predictions.
"""

from jaxreg.ensembles._laplace import laplace, probit_log_probs
from jaxreg.ensembles._mc_predict import mc_predict, mc_regress
from jaxreg.ensembles._means import arithmetic, geometric
from jaxreg.ensembles._uncertainty import uncertainty

__all__ = [
  "arithmetic",
  "geometric",
  "laplace",
  "mc_predict",
  "mc_regress",
  "probit_log_probs",
  "uncertainty",
]
