"""Calibration as sums that merge exactly: `(log_probs, labels, *, weights, ...) -> sums`.

The sums merge by addition over batches, devices and processes: `nll` and `brier` return `(sum, count)`,
`ece_bins` and `classwise_bins` three sums per bin, `Bins`. Add those of batches with `merge`, in compiled
code those of a few parts with `jax.tree.map(jnp.add, ...)` or `psum`, and divide at the end, for instance by
`ece` or `mce`. `adaptive_bins`, `fit_temperature`, `conformal_threshold`, `auroc` and `fpr_at_tpr` take
the whole set. `conformal_scores` and `aps_scores` are `[..., classes]`; `least_confidence` and `energy`,
scores of examples from elsewhere, `[...]`. Every function refuses a known label out of range, and gives NaN
for a traced one. These files import JAX, Optax, NumPy and the core only.
"""

from jaxreg._names import suggest_names
from jaxreg.calibration._adaptive import adaptive_bins
from jaxreg.calibration._brier import brier
from jaxreg.calibration._classwise import classwise_bins
from jaxreg.calibration._conformal import aps_scores, conformal_scores, conformal_threshold
from jaxreg.calibration._ece import Bins, ece, ece_bins
from jaxreg.calibration._mce import mce
from jaxreg.calibration._merge import merge
from jaxreg.calibration._nll import nll
from jaxreg.calibration._out_of_distribution import auroc, energy, fpr_at_tpr, least_confidence
from jaxreg.calibration._temperature import fit_temperature, temper

__all__ = [
  "Bins",
  "adaptive_bins",
  "aps_scores",
  "auroc",
  "brier",
  "classwise_bins",
  "conformal_scores",
  "conformal_threshold",
  "ece",
  "ece_bins",
  "energy",
  "fit_temperature",
  "fpr_at_tpr",
  "least_confidence",
  "mce",
  "merge",
  "nll",
  "temper",
]

suggest_names(globals())
