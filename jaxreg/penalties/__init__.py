"""Penalties: `(params, *, mask=kernels_only, ...) -> scalar`, and on activations `[batch, ...] -> [batch]`.

A penalty does not include its weight: `objective.compose` adds weight times penalty to a loss. `mask`
selects parameters as `jaxreg.paths` says; None stands for the default, `kernels_only`.
"""

from jaxreg.penalties._activity import activity_covariance, activity_variance, kl_sparsity, l1_activity
from jaxreg.penalties._gradient import gradient_penalty, jacobian_penalty
from jaxreg.penalties._group_lasso import group_lasso
from jaxreg.penalties._hoyer import hoyer
from jaxreg.penalties._learned_dropout import learned_dropout
from jaxreg.penalties._orthogonality import orthogonality
from jaxreg.penalties._tying import l2_sp, lora_l2, tying
from jaxreg.penalties._weights import elastic_net, l1, l2

__all__ = [
  "activity_covariance",
  "activity_variance",
  "elastic_net",
  "gradient_penalty",
  "group_lasso",
  "hoyer",
  "jacobian_penalty",
  "kl_sparsity",
  "l1",
  "l1_activity",
  "l2",
  "l2_sp",
  "learned_dropout",
  "lora_l2",
  "orthogonality",
  "tying",
]
