"""The metrics by name: their titles, how people read them, and the values that they can have."""

import math
from typing import NamedTuple


class Metric(NamedTuple):
  """A metric for people.

  Attributes:
    title: its name in tables, figures and lines.
    form: the format of a value; a fraction is read in per cent.
    low, high: the smallest and the largest value, where confidence intervals end.
    unit: the unit on an axis.
  """

  title: str
  form: str = ".4f"
  low: float = -math.inf
  high: float = math.inf
  unit: str = ""

  @property
  def percent(self) -> bool:
    return self.form.endswith("%")

  @property
  def factor(self) -> int:
    """The factor from a value to the number that people read."""
    return 100 if self.percent else 1


def _share(title: str) -> Metric:
  return Metric(title, ".2%", 0.0, 1.0, "%")


METRICS: dict[str, Metric] = {
  "loss": Metric("loss"),
  "examples_per_second": Metric("examples/s", ".0f", 0.0),
  "mfu": _share("MFU"),
  "error": _share("error"),
  "accuracy": _share("accuracy"),
  "nll": Metric("NLL", low=0.0, unit="nats"),
  "nll_refined": Metric("NLL at the best temperature", low=0.0, unit="nats"),
  "gaussian_nll": Metric("Gaussian NLL", unit="nats"),
  "student_t_nll": Metric("Student's t NLL", unit="nats"),
  "brier": Metric("Brier score", low=0.0, high=2.0),
  "ece": _share("ECE"),
  "mce": _share("MCE"),
  "adaptive_ece": _share("adaptive ECE"),
  "classwise_ece": _share("classwise ECE"),
  "smooth_ece": _share("SmoothECE"),
  "debiased_ece": _share("debiased ECE"),
  "aurc": Metric("AURC", low=0.0),
  "augrc": Metric("AUGRC", low=0.0),
  "auroc": _share("AUROC"),
  "fpr95": _share("FPR at 95 %"),
  "average_precision": _share("average precision"),
  "f1": _share("F1"),
  "tuned_f1": _share("F1, tuned"),
  "temperature": Metric("temperature", low=0.0),
  "coverage": _share("coverage"),
  "size": Metric("size", low=0.0),
  "width": Metric("width", ".4g", 0.0),
  "squared_error": Metric("squared error", low=0.0),
  "rmse": Metric("RMSE", ".4g", 0.0),
  "mae": Metric("MAE", ".4g", 0.0),
  "r2": Metric("R2", high=1.0),
  "nlpd": Metric("NLPD"),
  "pinball": Metric("pinball loss", ".4g", 0.0),
}
# The metrics that compare runs on the test split, first for classes, then for numbers.
COMPARED = ("test/error", "test/nll", "test/ece", "test/rmse", "test/mae", "test/r2")


def metric(name: str) -> Metric:
  """Returns the metric of a name such as `test/error`; `laplace_nll` is an NLL, `f1_macro` an F1."""
  last = name.rpartition("/")[2].removesuffix("_macro").removesuffix("_micro")
  while last not in METRICS and "_" in last:
    last = last.partition("_")[2]
  return METRICS.get(last, Metric(last))


def heading(name: str) -> str:
  """Returns the title of a compared metric; the one that leads a table says that it is of the test split."""
  title = metric(name).title
  return f"test {title}" if name in ("test/error", "test/rmse") else title
