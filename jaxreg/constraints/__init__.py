"""Proximal operators `(params, step, *, ...) -> params` and projections `(params, *, ...) -> params`.

Both keep the tree and the dtypes of `params`.

`proximal` and `project` make Optax transforms of them, which come last in a chain and need `params`.
`dual_init`, `dual_step` and `lagrangian` find the multiplier that keeps a penalty within a bound.
`proximal_gradient` solves a problem without noise. `mask` selects parameters as `jaxreg.paths` says; None
stands for the default, `kernels_only`.
"""

from jaxreg._names import suggest_names
from jaxreg.constraints._lagrangian import dual_init as dual_init
from jaxreg.constraints._lagrangian import dual_step as dual_step
from jaxreg.constraints._lagrangian import lagrangian as lagrangian
from jaxreg.constraints._norms import max_norm as max_norm
from jaxreg.constraints._norms import min_max_norm as min_max_norm
from jaxreg.constraints._norms import unit_norm as unit_norm
from jaxreg.constraints._project import project as project
from jaxreg.constraints._prox import prox_elastic_net as prox_elastic_net
from jaxreg.constraints._prox import prox_group_lasso as prox_group_lasso
from jaxreg.constraints._prox import prox_l0 as prox_l0
from jaxreg.constraints._prox import prox_l1 as prox_l1
from jaxreg.constraints._prox import prox_non_negative as prox_non_negative
from jaxreg.constraints._prox import proximal as proximal
from jaxreg.constraints._prox import soft_threshold as soft_threshold
from jaxreg.constraints._proximal_gradient import proximal_gradient as proximal_gradient

suggest_names(globals())
