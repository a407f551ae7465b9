"""Penalties: `(params, *, mask=kernels_only, ...) -> scalar`, and on activations `[batch, ...] -> [batch]`.

A penalty does not include its weight: `objective.compose` adds weight times penalty to a loss. `mask`
selects parameters as `jaxreg.paths` says; None stands for the default, `kernels_only`.
"""

from jaxreg._names import suggest_names
from jaxreg.penalties._activity import kl_sparsity as kl_sparsity
from jaxreg.penalties._activity import l1_activity as l1_activity
from jaxreg.penalties._activity import sparsity as sparsity
from jaxreg.penalties._gradient import gradient_penalty as gradient_penalty
from jaxreg.penalties._gradient import jacobian_penalty as jacobian_penalty
from jaxreg.penalties._group_lasso import group_lasso as group_lasso
from jaxreg.penalties._hoyer import hoyer as hoyer
from jaxreg.penalties._learned_dropout import learned_dropout as learned_dropout
from jaxreg.penalties._orthogonality import orthogonality as orthogonality
from jaxreg.penalties._tying import l2_sp as l2_sp
from jaxreg.penalties._tying import tying as tying
from jaxreg.penalties._weights import elastic_net as elastic_net
from jaxreg.penalties._weights import gaussian_prior as gaussian_prior
from jaxreg.penalties._weights import l1 as l1
from jaxreg.penalties._weights import l2 as l2
from jaxreg.penalties._weights import laplace_prior as laplace_prior

suggest_names(globals())
