"""Optimizers: `([inner,] [learning_rate,] *, ...)` returns an Optax transform.

`inner` is the optimizer that a transform changes. All are `optax.GradientTransformationExtraArgs`, so they
chain, mask, accumulate and take schedules like Optax's own. A learning rate of -1 gives the direction
alone, as Optax's `scale_by_*` do. The `exact_*` are the formulas without an epsilon, with 0/0 = 0; the
usual ones are `optax.adagrad`, `optax.rmsprop` and `optax.adam`. `mask` and `trained` select parameters as
`jaxreg.paths` says. An `update` that needs `params` or `grad_fn` raises a ValueError without them. What
skips or collects steps, as `optax.MultiSteps`, `optax.apply_every` and `optax.conditionally_transform` do,
goes inside an optimizer that needs `grad_fn`, not around or before it; `sam` shows how.
"""

from jaxreg.optim._adaptive import adaptive, exact_adagrad, exact_adam
from jaxreg.optim._asam import asam
from jaxreg.optim._decay import decay
from jaxreg.optim._fista import fista
from jaxreg.optim._gradient_noise import gradient_noise
from jaxreg.optim._gsam import gsam
from jaxreg.optim._layer_decay import layer_decay
from jaxreg.optim._mahalanobis import mahalanobis
from jaxreg.optim._p_norm import p_norm_sgd
from jaxreg.optim._path_sgd import path_sgd
from jaxreg.optim._reparameterize import reparameterize
from jaxreg.optim._sam import sam
from jaxreg.optim._sgld import sgld
from jaxreg.optim._trust_region import trust_region

__all__ = [
  "adaptive",
  "asam",
  "decay",
  "exact_adagrad",
  "exact_adam",
  "fista",
  "gradient_noise",
  "gsam",
  "layer_decay",
  "mahalanobis",
  "p_norm_sgd",
  "path_sgd",
  "reparameterize",
  "sam",
  "sgld",
  "trust_region",
]
