"""Calibration as sums that merge by addition: over batches, devices and processes, exactly.

`nll` and `brier` give `(sum, count)`, `ece_bins` the three sums of each bin; add them up with
`jax.tree.map(jnp.add, ...)` or `psum`, and divide at the end (`ece` for the bins).
"""

from jaxreg.calibration._brier import brier
from jaxreg.calibration._ece import ece, ece_bins
from jaxreg.calibration._nll import nll

__all__ = ["brier", "ece", "ece_bins", "nll"]
