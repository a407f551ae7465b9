"""Penalties: `(params, *, mask=kernels_only, ...) -> scalar`, and on activations `[batch, ...] -> [batch]`.

A penalty does not include its weight: the objective is the loss plus weight times penalty, as `penalized`
builds it. `mask` selects parameters as `jaxreg.paths` says; None stands for the default, `kernels_only`.
These files import JAX, Optax, NumPy and the core only.
"""

from jaxreg._names import suggest_names
from jaxreg.penalties._activity import kl_sparsity, l1_activity, sparsity
from jaxreg.penalties._coadaptation import coadaptation
from jaxreg.penalties._elastic_net import elastic_net
from jaxreg.penalties._gradient import gradient_penalty, jacobian_penalty
from jaxreg.penalties._group_lasso import group_lasso
from jaxreg.penalties._hoyer import hoyer
from jaxreg.penalties._l1 import l1
from jaxreg.penalties._l2 import l2
from jaxreg.penalties._learned_dropout import learned_dropout
from jaxreg.penalties._orthogonality import orthogonality
from jaxreg.penalties._penalized import penalized
from jaxreg.penalties._priors import gaussian_prior, laplace_prior
from jaxreg.penalties._tying import l2_sp, tying

__all__ = [
  "coadaptation",
  "elastic_net",
  "gaussian_prior",
  "gradient_penalty",
  "group_lasso",
  "hoyer",
  "jacobian_penalty",
  "kl_sparsity",
  "l1",
  "l1_activity",
  "l2",
  "l2_sp",
  "laplace_prior",
  "learned_dropout",
  "orthogonality",
  "penalized",
  "sparsity",
  "tying",
]

suggest_names(globals())
