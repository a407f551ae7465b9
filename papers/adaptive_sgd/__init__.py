"""Lecture 8 of `Deep Learning (BEV033DLE)`, Prague: injected noise, adaptive SGD, figures."""

from papers.adaptive_sgd._dropout_ridge import dropout_ridge, dropout_ridge_loss
from papers.adaptive_sgd._running_averages import adagrad_regret_bound, ewa_weights, ewa_window
from papers.adaptive_sgd._strong_convexity import landscape_constants, pl_ratio

__all__ = [
  "adagrad_regret_bound",
  "dropout_ridge",
  "dropout_ridge_loss",
  "ewa_weights",
  "ewa_window",
  "landscape_constants",
  "pl_ratio",
]
