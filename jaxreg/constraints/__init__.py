"""Proximal operators `(params, step, *, ...) -> params` and projections `(params, *, ...) -> params`.

Both keep the tree and the dtypes of `params`.

`proximal` and `project` make Optax transforms of them, which come last in a chain and need `params`.
`dual_init`, `dual_step` and `lagrangian` find the multiplier that keeps a penalty within a bound.
`proximal_gradient` solves a problem without noise. `mask` selects parameters as `jaxreg.paths` says; None
stands for the default, `kernels_only`.
"""

from jaxreg.constraints._lagrangian import dual_init, dual_step, lagrangian
from jaxreg.constraints._norms import max_norm, min_max_norm, unit_norm
from jaxreg.constraints._project import project
from jaxreg.constraints._prox import (
  prox_elastic_net,
  prox_group_lasso,
  prox_l0,
  prox_l1,
  prox_non_negative,
  proximal,
  soft_threshold,
)
from jaxreg.constraints._proximal_gradient import proximal_gradient

__all__ = [
  "dual_init",
  "dual_step",
  "lagrangian",
  "max_norm",
  "min_max_norm",
  "project",
  "prox_elastic_net",
  "prox_group_lasso",
  "prox_l0",
  "prox_l1",
  "prox_non_negative",
  "proximal",
  "proximal_gradient",
  "soft_threshold",
  "unit_norm",
]
