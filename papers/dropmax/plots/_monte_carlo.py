"""Distributions of class probabilities over sampled masks."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, band, bar, dot, new_figure


def monte_carlo(
  panels: Mapping[str, Mapping[str, ArrayLike]], *, title: str = "", xlabels: Sequence[str] = ()
) -> Figure:
  """Draws sampled probabilities of the target: density, mean, and 5th to 95th percentile.

  Args:
    panels: by title, then by label on the axis, samples `[S]` in [0, 1].
    title: above the figure.
    xlabels: label of each panel's axis.

  Returns:
    A figure with one axis per panel.

  Raises:
    ValueError: if there is no panel.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix, Fig. 2.
  """
  if not panels:
    raise ValueError("panels must have at least one entry, got none")
  figure = new_figure(WIDTH, 0.4 + 2.6 * len(panels), title)
  axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
  for number, (axis, (name, samples)) in enumerate(zip(axes, panels.items(), strict=True)):
    _violins(axis, samples)
    axis.set_title(name, loc="left", fontsize="medium")
    axis.set_xlabel(xlabels[number] if number < len(xlabels) else "")
    axis.set_ylabel("probability of the target")
  _key(figure)
  return figure


def predictive(examples: Mapping[str, ArrayLike], *, title: str = "") -> Figure:
  """Draws sampled class probabilities of single examples, class by class.

  Args:
    examples: by title, samples `[S, classes]` in [0, 1].
    title: above the figure.

  Returns:
    A figure with one axis per example.

  Raises:
    ValueError: if there is no example.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, its poster, the predictive distributions.
  """
  if not examples:
    raise ValueError("examples must have at least one entry, got none")
  figure = new_figure(WIDTH, 3.6, title)
  axes = np.atleast_1d(figure.subplots(1, len(examples), sharey=True))
  for axis, (name, samples) in zip(axes, examples.items(), strict=True):
    columns = np.asarray(samples).T
    _violins(axis, {str(k): column for k, column in enumerate(columns)})
    axis.set_title(name, loc="left", fontsize="medium")
    axis.set_xlabel("class")
  axes[0].set_ylabel("probability")
  _key(figure)
  return figure


def _key(figure: Figure) -> None:
  marks = (dot("mean"), bar("5th to 95th percentile"), band("density of the samples"))
  figure.legend(handles=marks, loc="outside lower center", ncols=3, fontsize="small", frameon=False)


def _violins(axis: Axes, samples: Mapping[str, ArrayLike]) -> None:
  for place, values in enumerate(samples.values()):
    values = np.asarray(values, float)
    density, edges = np.histogram(values, bins=40, range=(0, 1))
    middle, half = (edges[:-1] + edges[1:]) / 2, 0.42 * density / max(density.max(), 1)
    axis.fill_betweenx(middle, place - half, place + half, color="tab:blue", alpha=0.35, linewidth=0)
    low, high = np.percentile(values, [5, 95])
    axis.plot([place, place], [low, high], color="tab:blue", linewidth=1)
    axis.plot([place], [values.mean()], "o", color="tab:blue", markersize=4)
  axis.set_xticks(range(len(samples)), list(samples))
  axis.set_ylim(-0.02, 1.02)
  axis.grid(axis="y", alpha=0.3)
  axis.spines[["top", "right"]].set_visible(False)
