"""Lee et al., `DropMax: Adaptive Variational Softmax`, 2018: closed forms, enumerations, figures."""

from papers.dropmax._gradient import (
  dropmax_condition_1,
  dropmax_gradient_norms,
  dropmax_regularizer,
  dropmax_target_gradients,
)
from papers.dropmax._masks import dropmax_equilibrium, dropmax_expected_nll, dropmax_masks
from papers.dropmax._nontarget import dropmax_nontarget_gradients
from papers.dropmax._posterior import dropmax_marginal_logits, dropmax_mask_posterior, dropmax_mean_field
from papers.dropmax._target import dropmax_learn_posterior, dropmax_optimal_target_logit

__all__ = [
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
]
