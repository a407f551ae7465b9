"""Proximal operators `(params, step, *, ...) -> params` and projections `(params, *, ...) -> params`.

`proximal` and `project` make Optax transforms of them, which come last in a chain. `dual_init`, `dual_step`
and `lagrangian` find the multiplier that keeps a penalty within a bound. `fista` solves a problem without
noise. These files import JAX, Optax, NumPy
and the core only.
"""

from jaxreg._names import suggest_names
from jaxreg.constraints._fista import FistaResult, fista
from jaxreg.constraints._lagrangian import DualState, dual_init, dual_step, lagrangian
from jaxreg.constraints._norms import max_norm, min_max_norm, unit_norm
from jaxreg.constraints._project import apply_updates_and_project, project
from jaxreg.constraints._prox import (
  ProximalState,
  prox_elastic_net,
  prox_group_lasso,
  prox_l0,
  prox_l1,
  prox_non_negative,
  proximal,
  soft_threshold,
)

__all__ = [
  "DualState",
  "FistaResult",
  "ProximalState",
  "apply_updates_and_project",
  "dual_init",
  "dual_step",
  "fista",
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
  "soft_threshold",
  "unit_norm",
]

suggest_names(globals())
