"""Predictions of many models combined: `(log_probs [members, ..., classes], *, weights) -> [..., classes]`.

`uncertainty` splits the entropy of a mean prediction into the part within the members and the part between
them. `dropout_masks` and `mask_probs` enumerate the ensemble that dropout trains, `mc_predict` samples it,
and `noise.scale_weights` scales the weights for it at test time. `ensemble_init` and `ensemble_apply` make
and train stacked members; `sweep` trains a grid of strengths and seeds. `laplace_curvature`,
`laplace_posterior` and `laplace_variance` replace the members by a Gaussian over the last layer's weights,
`laplace` over any or all of a network's; `probit_log_probs` gives the prediction.
"""

from jaxreg._names import suggest_names
from jaxreg.ensembles._bagging import bootstrap_indices as bootstrap_indices
from jaxreg.ensembles._deep import ensemble_apply as ensemble_apply
from jaxreg.ensembles._deep import ensemble_init as ensemble_init
from jaxreg.ensembles._laplace import laplace_curvature as laplace_curvature
from jaxreg.ensembles._laplace import laplace_posterior as laplace_posterior
from jaxreg.ensembles._laplace import laplace_variance as laplace_variance
from jaxreg.ensembles._laplace import probit_log_probs as probit_log_probs
from jaxreg.ensembles._masks import dropout_masks as dropout_masks
from jaxreg.ensembles._masks import mask_probs as mask_probs
from jaxreg.ensembles._mc_predict import mc_predict as mc_predict
from jaxreg.ensembles._mc_predict import mc_regress as mc_regress
from jaxreg.ensembles._means import arithmetic as arithmetic
from jaxreg.ensembles._means import geometric as geometric
from jaxreg.ensembles._network_laplace import Laplace as Laplace
from jaxreg.ensembles._network_laplace import laplace as laplace
from jaxreg.ensembles._sweep import sweep as sweep
from jaxreg.ensembles._uncertainty import uncertainty as uncertainty

suggest_names(globals())
