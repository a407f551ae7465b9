"""Na, `Regularization for Deep Learning`, lecture: closed forms and figures."""

from papers.regularization._early_stopping import early_stopping_alpha, early_stopping_steps, gd_filter
from papers.regularization._noise_terms import input_noise_terms, weight_noise_terms
from papers.regularization._priors import gaussian_prior, laplace_prior
from papers.regularization._ridge import (
  effective_dof,
  l2_shrinkage,
  l2_solution,
  pinv_limit,
  ridge,
  ridge_bias_variance,
)
from papers.regularization._soft_threshold import l1_solution
from papers.regularization._sparse_codes import omp, topk_code

__all__ = [
  "early_stopping_alpha",
  "early_stopping_steps",
  "effective_dof",
  "gaussian_prior",
  "gd_filter",
  "input_noise_terms",
  "l1_solution",
  "l2_shrinkage",
  "l2_solution",
  "laplace_prior",
  "omp",
  "pinv_limit",
  "ridge",
  "ridge_bias_variance",
  "topk_code",
  "weight_noise_terms",
]
