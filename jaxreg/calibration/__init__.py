"""Calibration as sums that merge exactly: `(log_probs, labels, *, weights, ...) -> sums`.

The sums merge by addition over batches, devices and processes: `nll` and `brier` return `(sum, count)`,
`ece_bins` and `classwise_bins` three sums per bin, `Bins`. Add the sums of batches with `merge`. In compiled
code, add the sums of a few parts with `jax.tree.map(jnp.add, ...)` or `psum`. Divide at the end, for instance
by `ece` or `mce`. `adaptive_bins`, `fit_temperature`, `conformal_threshold`, `conformal_risk_threshold`,
`auroc`, `fpr_at_tpr` and `risk_coverage` take the whole set. `conformal_scores` and `aps_scores` are
`[..., classes]`; `least_confidence` and `energy` are scores `[...]` of out-of-distribution examples. Every
function refuses a known label out of range, and gives NaN for a traced one. `interval_coverage` returns sums
over real targets, and `interval_scores` returns their scores for `conformal_threshold`. `conformal_sets` and
`conformal_intervals` apply such a threshold to new examples.
`where` says which examples count, as in `losses`.
"""

from jaxreg._names import suggest_names
from jaxreg.calibration._conformal import aps_scores as aps_scores
from jaxreg.calibration._conformal import conformal_risk_threshold as conformal_risk_threshold
from jaxreg.calibration._conformal import conformal_scores as conformal_scores
from jaxreg.calibration._conformal import conformal_sets as conformal_sets
from jaxreg.calibration._conformal import conformal_threshold as conformal_threshold
from jaxreg.calibration._ece import Bins as Bins
from jaxreg.calibration._ece import adaptive_bins as adaptive_bins
from jaxreg.calibration._ece import classwise_bins as classwise_bins
from jaxreg.calibration._ece import ece as ece
from jaxreg.calibration._ece import ece_bins as ece_bins
from jaxreg.calibration._ece import mce as mce
from jaxreg.calibration._intervals import conformal_intervals as conformal_intervals
from jaxreg.calibration._intervals import interval_coverage as interval_coverage
from jaxreg.calibration._intervals import interval_scores as interval_scores
from jaxreg.calibration._proper_scores import brier as brier
from jaxreg.calibration._proper_scores import merge as merge
from jaxreg.calibration._proper_scores import nll as nll
from jaxreg.calibration._scores import auroc as auroc
from jaxreg.calibration._scores import energy as energy
from jaxreg.calibration._scores import fpr_at_tpr as fpr_at_tpr
from jaxreg.calibration._scores import least_confidence as least_confidence
from jaxreg.calibration._scores import risk_coverage as risk_coverage
from jaxreg.calibration._temperature import fit_temperature as fit_temperature
from jaxreg.calibration._temperature import temper as temper

suggest_names(globals())
