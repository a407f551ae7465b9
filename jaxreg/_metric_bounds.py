"""The values that a metric can have, where the confidence intervals of few runs end."""

import math
import re

# By patterns of the last part of a name. Fractions are not per cent.
_BOUNDS = {
  r"(.*_)?(error|accuracy|ece|coverage|auroc|fpr95)|mce": (0.0, 1.0),
  r"(auroc|average_precision|(tuned_)?f1)_(macro|micro)": (0.0, 1.0),
  r"(.*_)?(nll|size)|temperature": (0.0, math.inf),
  r"rmse|mae|(.*_)?width|pinball": (0.0, math.inf),
  r"r2": (-math.inf, 1.0),
  r"brier": (0.0, 2.0),
}


def metric_bounds(name: str) -> tuple[float, float]:
  """The least and the largest value of a metric, by its name, such as `test/error`."""
  last = name.rpartition("/")[2]
  matching = (bounds for pattern, bounds in _BOUNDS.items() if re.fullmatch(pattern, last))
  return next(matching, (-math.inf, math.inf))
