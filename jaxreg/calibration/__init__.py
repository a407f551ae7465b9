"""Calibration as sums that merge exactly: `(log_probs, labels, *, weights, ...) -> sums`.

The sums merge by addition over batches, devices and processes: `nll` and `brier` return `(sum, count)`,
`ece_bins` three sums per bin, `Bins`. Add the sums of batches with `merge`. In compiled code, add the sums of
a few parts with `jax.tree.map(jnp.add, ...)` or `psum`. Divide at the end, for instance by `ece`.
`ece_bins(kind="mass")`, `smooth_ece`, `fit_temperature`, `conformal_threshold`, `conformal_risk_threshold`,
`auroc`, `fpr_at_tpr` and `risk_coverage` take the whole set. `conformal_scores` and `aps_scores` are
`[..., classes]`; `least_confidence` and `energy` are scores `[...]` of out-of-distribution examples, and
`fit_detector` fits such a score to features. Every function refuses a known label out of range, and gives NaN
for a traced one. `interval_coverage` returns sums over real targets, and `interval_scores` returns their
scores for `conformal_threshold`. `conformal_sets` and `conformal_intervals` apply such a threshold to new
examples. `where` says which examples count, as in `losses`.
"""

from jaxreg.calibration._conformal import (
  aps_scores,
  conformal_risk_threshold,
  conformal_scores,
  conformal_sets,
  conformal_threshold,
)
from jaxreg.calibration._detectors import fit_detector
from jaxreg.calibration._ece import Bins, ece, ece_bins, smooth_ece
from jaxreg.calibration._intervals import conformal_intervals, interval_coverage, interval_scores
from jaxreg.calibration._proper_scores import brier, merge, nll
from jaxreg.calibration._scores import auroc, energy, fpr_at_tpr, least_confidence, risk_coverage
from jaxreg.calibration._temperature import fit_temperature, temper

__all__ = [
  "Bins",
  "aps_scores",
  "auroc",
  "brier",
  "conformal_intervals",
  "conformal_risk_threshold",
  "conformal_scores",
  "conformal_sets",
  "conformal_threshold",
  "ece",
  "ece_bins",
  "energy",
  "fit_detector",
  "fit_temperature",
  "fpr_at_tpr",
  "interval_coverage",
  "interval_scores",
  "least_confidence",
  "merge",
  "nll",
  "risk_coverage",
  "smooth_ece",
  "temper",
]
