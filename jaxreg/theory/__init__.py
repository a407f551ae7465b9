"""Closed forms and exact enumerations of quantities that the other subpackages sample or approximate.

These functions serve analysis and test oracles; none is meant for the inside of a training step. They take
arrays, or a loss function and its arguments, and have keyword-only options. These files import JAX, Optax,
NumPy and the core only.
"""

from jaxreg._names import suggest_names
from jaxreg.theory._dropmax import dropmax_equilibrium, dropmax_expected_nll, dropmax_masks
from jaxreg.theory._dropmax_gradient import (
  dropmax_condition_1,
  dropmax_gradient_norms,
  dropmax_regularizer,
  dropmax_target_gradients,
)
from jaxreg.theory._dropmax_nontarget import dropmax_nontarget_gradients
from jaxreg.theory._dropmax_posterior import (
  dropmax_marginal_logits,
  dropmax_mask_posterior,
  dropmax_mean_field,
)
from jaxreg.theory._dropmax_target import dropmax_learn_posterior, dropmax_optimal_target_logit
from jaxreg.theory._dropout_ridge import dropout_ridge, dropout_ridge_loss
from jaxreg.theory._early_stopping import early_stopping_alpha, early_stopping_steps, gd_filter
from jaxreg.theory._group_softmax import (
  effective_rank,
  equal_partitions,
  group_relaxation,
  grouping_losses,
  search_grouping,
  update_rank,
)
from jaxreg.theory._ridge import (
  effective_dof,
  l2_shrinkage,
  l2_solution,
  pinv_limit,
  ridge,
  ridge_bias_variance,
)
from jaxreg.theory._running_averages import adagrad_regret_bound, ewa_weights, ewa_window
from jaxreg.theory._soft_threshold import l1_solution
from jaxreg.theory._stationary_points import (
  HessianIndex,
  LandscapeConstants,
  hessian_index,
  landscape_constants,
  pl_ratio,
)
from jaxreg.theory._weight_noise import input_noise_terms, weight_noise_terms

__all__ = [
  "HessianIndex",
  "LandscapeConstants",
  "adagrad_regret_bound",
  "dropmax_condition_1",
  "dropmax_equilibrium",
  "dropmax_expected_nll",
  "dropmax_gradient_norms",
  "dropmax_learn_posterior",
  "dropmax_marginal_logits",
  "dropmax_mask_posterior",
  "dropmax_masks",
  "dropmax_mean_field",
  "dropmax_nontarget_gradients",
  "dropmax_optimal_target_logit",
  "dropmax_regularizer",
  "dropmax_target_gradients",
  "dropout_ridge",
  "dropout_ridge_loss",
  "early_stopping_alpha",
  "early_stopping_steps",
  "effective_dof",
  "effective_rank",
  "equal_partitions",
  "ewa_weights",
  "ewa_window",
  "gd_filter",
  "group_relaxation",
  "grouping_losses",
  "hessian_index",
  "input_noise_terms",
  "l1_solution",
  "l2_shrinkage",
  "l2_solution",
  "landscape_constants",
  "pinv_limit",
  "pl_ratio",
  "ridge",
  "ridge_bias_variance",
  "search_grouping",
  "update_rank",
  "weight_noise_terms",
]

suggest_names(globals())
