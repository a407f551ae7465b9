"""Weights as functions of what is trained: `(parameters, ...) -> kernel`, and nothing is overwritten.

State that such a function needs is passed in and returned. The last axis of a kernel is that of its units, as
in Linen's dense and convolutional layers.
"""

from jaxreg.reparam._spectral_norm import spectral_norm, spectral_norm_init
from jaxreg.reparam._weight_norm import weight_norm, weight_norm_init

__all__ = ["spectral_norm", "spectral_norm_init", "weight_norm", "weight_norm_init"]


def __dir__() -> list[str]:
  return __all__
