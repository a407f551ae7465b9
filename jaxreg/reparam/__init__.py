"""Kernels as functions of the trained parameters: `(parameters, ...) -> kernel`; nothing is overwritten.

A function that needs state takes it and returns it. For a single kernel the units are on the last axis, as in
Linen's dense and convolutional layers; for another layout give `axis`, or a tree with names.
"""

from jaxreg._names import suggest_names
from jaxreg.reparam._spectral_norm import spectral_norm as spectral_norm
from jaxreg.reparam._weight_norm import weight_norm as weight_norm
from jaxreg.reparam._weight_norm import weight_norm_init as weight_norm_init
from jaxreg.reparam._weight_standardization import weight_standardization as weight_standardization

suggest_names(globals())
