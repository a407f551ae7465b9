"""Kernels as functions of the trained parameters: `(parameters, ...) -> kernel`; nothing is overwritten.

A function that needs state takes it and returns it. For a single kernel the units are on the last axis, as in
Linen's dense and convolutional layers; for another layout give `axis`, or a tree with names.
"""

from jaxreg.reparam._spectral_norm import spectral_norm
from jaxreg.reparam._weight_norm import weight_norm, weight_norm_init
from jaxreg.reparam._weight_standardization import weight_standardization

__all__ = [
  "spectral_norm",
  "weight_norm",
  "weight_norm_init",
  "weight_standardization",
]
