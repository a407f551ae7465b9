"""Report cards: calibration, robustness, uncertainty and curvature of one trained model on one page.

`report(predict_fn, data, ...)`, which is also `jaxreg.report`, measures any model: a function, or predictions
alone. `compare(cards, out=...)` puts several models and their seeds side by side. Both need
`jaxreg[report]`.
"""

from jaxreg.reports._compare import compare
from jaxreg.reports._report import report

__all__ = [
  "compare",
  "report",
]
