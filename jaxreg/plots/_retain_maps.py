"""The classes that DropMax retains, by example and by class."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from jaxreg._checks import check_log_probs, check_range
from jaxreg._figures import WIDTH, new_figure, verbatim

MAX_PRINTED = 10
MAX_NAMED = 25
GREY = colormaps["gray"].with_extremes(bad="lightcoral")


def retain_maps(
  retain: ArrayLike,
  posterior: ArrayLike,
  labels: ArrayLike,
  log_probs: ArrayLike,
  *,
  class_names: Sequence[str] | None = None,
  rows: int = 10,
  title: str = "",
) -> Figure:
  """Draws DropMax's retain probabilities for the easiest and most difficult examples, and by class.

  The easiest examples are, per class, the correctly classified example with the highest confidence. The most
  difficult examples are the misclassified ones, then the others, with the least probable truth first.

  Args:
    retain: `rho` of p(z | x), `[n, classes]`.
    posterior: `g` of q(z | x, y), `[n, classes]`; the target's value is taken as 1, as the model fixes it.
    labels: `[n]`, integer.
    log_probs: predictions, `[n, classes]`.
    class_names: `[classes]`, default the numbers.
    rows: largest number of examples per panel.

  Returns:
    A figure of four grey maps from 0 (black) to 1 (white) and a colour bar: p(z | x) for the easiest, p(z |
    x) for the most difficult, the mean p(z | x) for each true class, q(z | x, y) for the most difficult. In
    the second and the last map, `o` is the truth and `x` the prediction. Values are printed for at most 10
    classes.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, and its poster, the maps for MNIST.
  """
  retain, posterior, labels, log_probs = _check(retain, posterior, labels, log_probs)
  n, classes = retain.shape
  names = [str(k) for k in range(classes)] if class_names is None else list(class_names)
  if len(names) != classes:
    raise ValueError(f"class_names must have one name for each of {classes} classes, got {len(names)}")
  check_range(rows, "rows", low=1)
  posterior[np.arange(n), labels] = 1
  predicted = log_probs.argmax(axis=-1)
  right = predicted == labels
  easy = _easiest(labels, log_probs, right, rows)
  truth_probs = log_probs[np.arange(n), labels]
  hard = np.lexsort((truth_probs, right))[:rows]  # the wrong examples before the right ones

  easy_names = [names[labels[i]] for i in easy]
  hard_names = [names[labels[i]] if right[i] else f"{names[labels[i]]} → {names[predicted[i]]}" for i in hard]
  height = max(3.2, 0.3 * len(hard)) + 0.075 * _upright(names) * max(map(len, names))
  figure = new_figure(WIDTH, 4 * height, title)
  axes = figure.subplots(4, 1)
  marks = (labels[hard], predicted[hard])
  _map(axes[0], retain[easy], easy_names, names, "p(z | x), easiest", "true class of the example")
  difficult = "p(z | x), most difficult (o truth, x prediction)"
  arrow = "example: its class → prediction"
  _map(axes[1], retain[hard], hard_names, names, difficult, arrow, marks)
  _map(axes[2], _class_means(retain, labels), names, names, "p(z | x), mean of each true class", "true class")
  _map(axes[3], posterior[hard], hard_names, names, "q(z | x, y), the same examples", arrow, marks)
  label = "probability that the class is retained"
  bar = {"orientation": "horizontal", "fraction": 0.015, "pad": 0.01, "aspect": 50}
  figure.colorbar(axes[3].images[0], ax=axes, label=label, **bar)
  return figure


def _easiest(labels: np.ndarray, log_probs: np.ndarray, right: np.ndarray, rows: int) -> np.ndarray:
  """Finds the most confident right example of each class, or of the most confident classes, by class."""
  places = np.flatnonzero(right)
  places = places[np.argsort(-log_probs[places, labels[places]], kind="stable")]
  _, first = np.unique(labels[places], return_index=True)
  chosen = places[np.sort(first)[:rows]]
  return chosen[np.argsort(labels[chosen])]


def _class_means(retain: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Averages `retain` over each class's examples, `[classes, classes]`; NaN without examples."""
  sums = np.zeros((retain.shape[-1],) * 2)
  np.add.at(sums, labels, retain)
  counts = np.bincount(labels, minlength=len(sums))[:, None]
  return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _check(retain, posterior, labels, log_probs):
  labels = np.asarray(labels)
  if not np.issubdtype(labels.dtype, np.integer):
    raise TypeError(f"labels must be integers, got {labels.dtype}")
  retain, posterior, log_probs = (np.array(x, dtype=float) for x in (retain, posterior, log_probs))
  if retain.ndim != 2 or not retain.size:
    raise ValueError(f"retain must be [n, classes] and not empty, got shape {retain.shape}")
  for name, x in (("posterior", posterior), ("log_probs", log_probs)):
    if x.shape != retain.shape:
      raise ValueError(f"{name} must have the shape of retain {retain.shape}, got {x.shape}")
  if labels.shape != retain.shape[:1]:
    raise ValueError(f"labels must have shape {retain.shape[:1]}, got {labels.shape}")
  if labels.min() < 0 or labels.max() >= retain.shape[1]:
    raise ValueError(f"labels must lie in [0, {retain.shape[1]}), got {labels.min()} to {labels.max()}")
  check_log_probs(log_probs, "log_probs")
  # A NaN would win every argmax.
  return retain, posterior, labels, np.where(np.isnan(log_probs), -np.inf, log_probs)


def _map(
  axis: Axes,
  values: np.ndarray,
  row_names: Sequence[str],
  column_names: Sequence[str],
  title: str,
  ylabel: str,
  marks: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
  missing = " (red: no value)" if np.isnan(values).any() else ""
  axis.set_title(title + missing, loc="left", fontsize="medium")
  if not len(values):
    nothing = {"ha": "center", "color": "gray", "transform": axis.transAxes}
    axis.text(0.5, 0.5, "no example is classified rightly", **nothing)
    axis.set(xticks=[], yticks=[])
    return
  axis.imshow(values, cmap=GREY, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
  axis.set(xlabel="retained class", ylabel=ylabel)
  _name(axis.xaxis, column_names)
  _name(axis.yaxis, row_names)
  printed = len(column_names) <= MAX_PRINTED
  if printed:
    below = 0.25 if marks else 0
    for (row, column), value in np.ndenumerate(values):
      if np.isfinite(value):
        style = {"color": "white" if value < 0.5 else "black", "fontsize": 7}
        axis.text(column, row + below, f"{value:.2f}".removeprefix("0"), ha="center", va="center", **style)
  if marks:
    truth, predicted = marks
    rows = np.arange(len(truth)) - (0.2 if printed else 0)
    outline = [withStroke(linewidth=3, foreground="white")]
    style = {"linestyle": "", "markeredgewidth": 1.5, "path_effects": outline}
    circle = {"marker": "o", "color": "tab:blue", "markersize": 6, "fillstyle": "none"}
    axis.plot(truth, rows, label="truth", **circle, **style)
    axis.plot(predicted, rows, label="prediction", marker="x", color="tab:red", markersize=5, **style)


def _upright(names: Sequence[str]) -> bool:
  return len(names) <= MAX_NAMED and len(names) * max(map(len, names)) > 60


def _name(axis, names: Sequence[str]) -> None:
  if len(names) > MAX_NAMED:
    axis.set_major_locator(MaxNLocator(10, integer=True))
    return
  upright = axis.axis_name == "x" and _upright(names)
  axis.set_ticks(range(len(names)), [*map(verbatim, names)], fontsize="small", rotation=90 if upright else 0)
