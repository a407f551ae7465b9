"""Zhang, Zhou & Xu, `Dropout in training neural networks`, 2021: theorems."""

from papers.flatness._theorems import (
  dropout_covariance,
  dropout_covariance_exact,
  dropout_hessian,
  expected_dropout_loss,
  loewner_bounds,
)

__all__ = [
  "dropout_covariance",
  "dropout_covariance_exact",
  "dropout_hessian",
  "expected_dropout_loss",
  "loewner_bounds",
]
