"""Penalties: `(params, *, mask=kernels_only, ...) -> scalar`, and on activations `[batch, ...] -> [batch]`.

A penalty does not include its weight: `objective.compose` adds weight times penalty to a loss. `mask`
selects parameters as `jaxreg.paths` says; None stands for the default, `kernels_only`.
"""

from jaxreg.penalties._activity import kl_sparsity, l1_activity, sparsity
from jaxreg.penalties._gradient import gradient_penalty, jacobian_penalty
from jaxreg.penalties._group_lasso import group_lasso
from jaxreg.penalties._hoyer import hoyer
from jaxreg.penalties._learned_dropout import learned_dropout
from jaxreg.penalties._orthogonality import orthogonality
from jaxreg.penalties._tying import l2_sp, tying
from jaxreg.penalties._weights import elastic_net, gaussian_prior, l1, l2, laplace_prior

__all__ = [
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
  "sparsity",
  "tying",
]
