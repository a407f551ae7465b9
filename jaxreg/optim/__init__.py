"""Optimizers: `(learning_rate, *, ...)` returns an Optax transform.

All are `optax.GradientTransformationExtraArgs`, so they chain, mask, accumulate and take schedules like
Optax's own. A learning rate of -1 gives the direction alone, as Optax's `scale_by_*` do. The `exact_*` are
the formulas without an epsilon, with 0/0 = 0; the usual ones are `optax.adagrad`, `optax.rmsprop` and
`optax.adam`. `mask` and `trained` select parameters as `jaxreg.paths` says. An `update` that needs `params`
or `grad_fn` raises a ValueError without them.
"""

from jaxreg._names import suggest_names
from jaxreg.optim._adaptive import adaptive as adaptive
from jaxreg.optim._adaptive import exact_adagrad as exact_adagrad
from jaxreg.optim._adaptive import exact_adam as exact_adam
from jaxreg.optim._adaptive import exact_rmsprop as exact_rmsprop
from jaxreg.optim._asam import asam as asam
from jaxreg.optim._fista import fista as fista
from jaxreg.optim._gradient_noise import gradient_noise as gradient_noise
from jaxreg.optim._gsam import gsam as gsam
from jaxreg.optim._layer_decay import layer_decay as layer_decay
from jaxreg.optim._mahalanobis import mahalanobis as mahalanobis
from jaxreg.optim._p_norm import p_norm_sgd as p_norm_sgd
from jaxreg.optim._path_sgd import path_sgd as path_sgd
from jaxreg.optim._reparameterize import reparameterize as reparameterize
from jaxreg.optim._sam import sam as sam
from jaxreg.optim._sgld import sgld as sgld
from jaxreg.optim._trust_region import trust_region as trust_region

suggest_names(globals())
