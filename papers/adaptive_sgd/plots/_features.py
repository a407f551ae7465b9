"""The features of hidden units, and how alike and how active the units are."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, new_figure


def features(
  panels: Mapping[str, ArrayLike],
  histograms: Mapping[str, Mapping[str, ArrayLike]],
  *,
  columns: int = 8,
  title: str = "",
) -> Figure:
  """Draws the incoming weights of units as images, each on its own scale, and distributions below them.

  Args:
    panels: by title, weights `[units, height, width]`; grey is 0.
    histograms: by the axis's label, and by label, values of any shape, drawn with their mean.
    columns: number of image columns.
    title: above the figure.

  Returns:
    A figure of the panels in a row, and the histograms in a row below them.

  Raises:
    ValueError: if there is no panel or histogram, or weights are not images.

  References:
    Srivastava et al., `Dropout: A Simple Way to Prevent Neural Networks from Overfitting`, 2014, figures 7
    and 8.
  """
  for name, given in (("panels", panels), ("histograms", histograms)):
    if not given:
      raise ValueError(f"{name} must have at least one entry, got none")
  figure = new_figure(WIDTH, 6.2, title)
  parts: Any = figure.subfigures(2, 1, height_ratios=[3.2, 3])
  axes = parts[0].subplot_mosaic([[*panels]])
  below = parts[1].subplots(1, len(histograms), squeeze=False)[0]
  for name, weights in panels.items():
    axes[name].imshow(mosaic(np.asarray(weights, float), columns), cmap="gray", vmin=-1, vmax=1)
    axes[name].set_title(name, loc="left", fontsize="medium")
    axes[name].set(xticks=[], yticks=[])
  for axis, (label, series) in zip(below, histograms.items(), strict=True):
    _histogram(axis, label, series)
  return figure


def mosaic(weights: np.ndarray, columns: int) -> np.ndarray:
  """Joins images in rows with white lines between them, each divided by its largest absolute value."""
  if weights.ndim != 3 or not weights.size:
    raise ValueError(f"weights must be [units, height, width] and not empty, got {weights.shape}")
  largest = np.abs(weights).max(axis=(1, 2), keepdims=True)
  images = weights / np.where(largest > 0, largest, 1)
  missing = -len(images) % columns
  images = np.pad(images, ((0, missing), (0, 0), (0, 0)), constant_values=1)
  images = np.pad(images, ((0, 0), (0, 1), (0, 1)), constant_values=1)
  rows, (height, width) = len(images) // columns, images.shape[1:]
  return images.reshape(rows, columns, height, width).swapaxes(1, 2).reshape(rows * height, columns * width)


def _histogram(axis: Axes, label: str, series: Mapping[str, ArrayLike]) -> None:
  values = {name: np.asarray(x, float).ravel() for name, x in series.items()}
  edges = np.histogram_bin_edges(np.concatenate(list(values.values())), bins=40)
  for number, (name, x) in enumerate(values.items()):
    axis.hist(
      x,
      bins=edges.tolist(),
      density=True,
      alpha=0.45,
      color=f"C{number}",
      label=f"{name}: mean {x.mean():.3g}",
    )
    axis.axvline(x.mean(), color=f"C{number}", linewidth=1)
  axis.set(xlabel=label, ylabel="density")
  axis.legend(fontsize="small", frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
  axis.spines[["top", "right"]].set_visible(False)
