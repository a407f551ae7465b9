"""The figures of a section, of the arrays of one model, or of several models and their seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from jaxreg import plots
from jaxreg._figures import WIDTH, band, legend_below, new_figure, percent_ticks, tidy, verbatim
from jaxreg.calibration import Bins

Arrays = Mapping[str, np.ndarray]
# The arrays of each model's seeds; the label of a single model is "".
ByLabel = Mapping[str, Sequence[Arrays]]
Figures = dict[str, Figure]


def pooled(seeds: Sequence[Arrays], label: str = "") -> Arrays:
  """Concatenates the arrays of all seeds, by the model's label and their own name."""
  return {f"{label} {name}".lstrip(): np.concatenate([each[name] for each in seeds]) for name in seeds[0]}


class Panel(NamedTuple):
  """A panel of lines: the names of both arrays, and which of them are shares."""

  x: str
  y: str
  shares: str = ""  # of "x" and "y"


def lines(by_label: ByLabel, panels: Mapping[str, Panel], *, columns: int = 2) -> Figure:
  """Draws the mean over the seeds and a band from minimum to maximum."""
  models, seeded = len(by_label) > 1, any(len(seeds) > 1 for seeds in by_label.values())
  rows = -(-len(panels) // columns)
  figure = new_figure(WIDTH, 2.3 * rows + 0.5 + 0.2 * (models or seeded), "")
  axes: Any = figure.subplots(rows, columns, squeeze=False).ravel()
  for axis, (title, (x, y, shares)) in zip(axes, panels.items()):
    for number, (label, seeds) in enumerate(by_label.items()):
      grid, values = seeds[0][x], np.stack([arrays[y] for arrays in seeds])
      marker = "o" if len(grid) < 20 else ""
      axis.plot(
        grid, values.mean(axis=0), marker=marker, markersize=3.5, color=f"C{number}", label=verbatim(label)
      )
      low, high = values.min(axis=0), values.max(axis=0)
      axis.fill_between(grid, low, high, color=f"C{number}", alpha=0.2, linewidth=0)
    tidy(axis, verbatim(title))
    axis.set_xlabel(verbatim(x))
    axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
    for name in shares:
      percent_ticks({"x": axis.xaxis, "y": axis.yaxis}[name])
  for axis in axes[len(panels) :]:
    axis.set_visible(False)
  if models or seeded:
    handles = [*(axes[0].lines if models else ()), *([band("all seeds")] if seeded else ())]
    legend_below(figure, handles, columns=3)
  return figure


def histograms(
  by_label: Mapping[str, np.ndarray], xlabel: str, *, bins: Any = 30, shares: bool = False, title: str = ""
) -> Figure:
  """Draws the distribution of each array, in percent; the values themselves may be `shares`."""
  figure = new_figure(WIDTH, 3.2, title)
  axis = figure.subplots()
  some = {label: values for label, values in by_label.items() if len(values)}
  edges: Any = np.histogram_bin_edges(np.concatenate([*some.values()]), bins)
  for label, values in some.items():
    weights = np.full(len(values), 1 / len(values))
    axis.hist(values, edges, weights=weights, histtype="step", linewidth=1.5, label=verbatim(label))
  axis.set(xlabel=xlabel, yscale="log")
  tidy(axis, "share of the examples")
  percent_ticks(axis.yaxis)
  if shares:
    percent_ticks(axis.xaxis)
  axis.legend(fontsize="small", frameon=False)
  return figure


def _for_each(by_label: ByLabel, draw: Callable[[Sequence[Arrays], str], Figures]) -> Figures:
  """Draws the figures of one model alone, for each model."""
  figures: Figures = {}
  for label, seeds in by_label.items():
    figures |= {f"{name} {label}".rstrip(): figure for name, figure in draw(seeds, label).items()}
  return figures


def _errors(seeds: Sequence[Arrays], title: str) -> Figures:
  counts: Any = np.sum([arrays["confusion"] for arrays in seeds], axis=0)
  figures = {"confusion": new_figure(WIDTH, 0.72 * WIDTH, title)}
  axis: Any = figures["confusion"].subplots()
  shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
  axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
  for (row, column), count in np.ndenumerate(counts if len(counts) <= 20 else np.zeros((0, 0))):
    if count:
      color = "white" if shares[row, column] > 0.5 else "black"
      axis.text(column, row, str(count), ha="center", va="center", fontsize=7, color=color)
  axis.set(xlabel="answer", ylabel="true class")
  arrays = seeds[0]
  if not len(arrays.get("pictures", ())):
    return figures
  rows = -(-len(arrays["pictures"]) // 4)
  figures["mistakes"] = new_figure(WIDTH, 1.7 * rows, title)
  axes: Any = figures["mistakes"].subplots(rows, 4, squeeze=False).ravel()
  pictures = arrays["pictures"].astype(float)
  pictures = (pictures - pictures.min()) / max(np.ptp(pictures), 1e-12)
  for axis in axes:
    axis.axis("off")
  for axis, picture, *words in zip(axes, pictures, arrays["labels"], arrays["guessed"], 100 * arrays["sure"]):
    axis.imshow(picture if picture.shape[-1] == 3 else picture[..., 0], cmap="gray", vmin=0, vmax=1)
    axis.set_title("{} taken for {},\n{:.1f} % sure".format(*words), fontsize="small")
  return figures


def _calibration(by_label: ByLabel) -> Figures:
  def bins(name: str) -> dict[str, Bins]:
    def summed(seeds: Sequence[Arrays]) -> Bins:
      parts: list[Any] = [np.sum([arrays[name + part] for arrays in seeds], axis=0) for part in Bins._fields]
      return Bins(*parts)

    return {label: summed(seeds) for label, seeds in by_label.items()}

  curves = bins("")
  if len(by_label) == 1:
    curves = {"as it is": curves.popitem()[1], "at the temperature": bins("tempered_").popitem()[1]}
  return {"reliability": plots.reliability(curves)}


def _conformal(by_label: ByLabel) -> Figures:
  if "targets" in next(iter(by_label.values()))[0]:
    return _for_each(by_label, _intervals)
  sizes: dict[str, np.ndarray] = {}
  for label, seeds in by_label.items():
    sizes |= pooled(seeds, label)
  bins = np.arange(max(map(np.max, sizes.values())) + 2) - 0.5
  return {"sizes": histograms(sizes, "classes in the set", bins=bins)}


def _intervals(seeds: Sequence[Arrays], title: str) -> Figures:
  arrays, figure = seeds[0], new_figure(WIDTH, 3.2, title)
  axis, place = figure.subplots(), np.arange(len(seeds[0]["targets"]))
  axis.fill_between(place, arrays["low"], arrays["high"], alpha=0.25, linewidth=0, label="conformal interval")
  axis.plot(place, arrays["targets"], "o", markersize=2.5, color="C1", label="target")
  tidy(axis, "examples in the order of the prediction")
  axis.legend(fontsize="small", frameon=False)
  return {"intervals": figure}


def _flatness(by_label: ByLabel) -> Figures:
  named = {label or "the model": seeds for label, seeds in by_label.items()}
  profiles = {label: np.concatenate([each["profile"] for each in seeds]) for label, seeds in named.items()}
  parts = ("grid", "density", "standard_error")
  densities = {label: [seeds[0][part] for part in parts] for label, seeds in named.items()}
  alphas = next(iter(named.values()))[0]["alphas"]
  return {"profile": plots.profiles(alphas, profiles), "density": plots.density(densities)}


def _corruptions(by_label: ByLabel) -> Figures:
  names = [name for name in next(iter(by_label.values()))[0] if name != "strengths"]
  return {"corruptions": lines(by_label, {f"error, {name}": Panel("strengths", name, "y") for name in names})}


def _residuals(seeds: Sequence[Arrays], title: str) -> Figures:
  arrays = seeds[0]
  levels: Any = arrays.get("levels", ())
  predicted = arrays["targets"], arrays["outputs"], arrays.get("quantiles")
  return {"predicted": plots.predicted(*predicted, levels=levels, title=title)}


def _noise(by_label: ByLabel) -> Figures:
  parts: dict[str, np.ndarray] = {}
  for label, seeds in by_label.items():
    parts |= pooled(seeds, label)
  return {"disagreement": histograms(parts, "disagreement of the draws, nats")}


def _ood(seeds: Sequence[Arrays], title: str) -> Figures:
  return {"confidence": histograms(pooled(seeds), "confidence", shares=True, title=title)}


DRAWN: dict[str, Callable[[ByLabel], Figures]] = {
  "errors": lambda by_label: _for_each(by_label, _errors),
  "residuals": lambda by_label: _for_each(by_label, _residuals),
  "calibration": _calibration,
  "selective": lambda by_label: {
    "risk and coverage": lines(by_label, {"error of the answers": Panel("coverage", "risk", "xy")}, columns=1)
  },
  "conformal": _conformal,
  "ood": lambda by_label: _for_each(by_label, _ood),
  "corruptions": _corruptions,
  "adversarial": lambda by_label: {
    "attack": lines(
      by_label, {"error": Panel("eps", "error", "y"), "loss at the largest eps": Panel("steps", "loss")}
    )
  },
  "flatness": _flatness,
  "noise": _noise,
}
