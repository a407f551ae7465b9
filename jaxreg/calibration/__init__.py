"""Calibration as sums that merge exactly: `(log_probs, labels, *, weights, ...) -> sums`.

The sums merge by addition over batches, devices and processes: `nll` and `brier` return `(sum, count)`,
`ece_bins` and `classwise_bins` three sums per bin. Add them with `jax.tree.map(jnp.add, ...)` or `psum`, and
divide at the end (`ece`, `mce`, `reliability` or `classwise_ece`). `adaptive_bins`, `fit_temperature`,
`conformal_threshold`, `auroc` and `fpr_at_tpr` take the whole set. `conformal_scores` and `aps_scores`
are `[..., classes]`; `least_confidence` and `energy`, scores of examples from elsewhere, `[...]`. These files
import JAX, Optax, NumPy and the core only.
"""

from jaxreg._names import suggest_names
from jaxreg.calibration._adaptive import adaptive_bins
from jaxreg.calibration._brier import brier
from jaxreg.calibration._classwise import classwise_bins, classwise_ece
from jaxreg.calibration._conformal import aps_scores, conformal_scores, conformal_threshold
from jaxreg.calibration._ece import ece, ece_bins
from jaxreg.calibration._mce import mce, reliability
from jaxreg.calibration._nll import nll
from jaxreg.calibration._out_of_distribution import auroc, energy, fpr_at_tpr, least_confidence
from jaxreg.calibration._temperature import fit_temperature, temper

__all__ = [
  "adaptive_bins",
  "aps_scores",
  "auroc",
  "brier",
  "classwise_bins",
  "classwise_ece",
  "conformal_scores",
  "conformal_threshold",
  "ece",
  "ece_bins",
  "energy",
  "fit_temperature",
  "fpr_at_tpr",
  "least_confidence",
  "mce",
  "nll",
  "reliability",
  "temper",
]

suggest_names(globals())
