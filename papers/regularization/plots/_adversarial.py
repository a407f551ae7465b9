"""Inputs beside their attacked versions."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, band, new_figure, tidy


def adversarial(
  images: ArrayLike,
  signs: ArrayLike,
  attacked: ArrayLike,
  captions: tuple[Sequence[str], Sequence[str]],
  eps: ArrayLike,
  errors: Mapping[str, ArrayLike],
  *,
  name: str,
  title: str = "",
) -> Figure:
  """Draws images, the added signs and the attacked images, and the error as the attack grows.

  Args:
    images: `[n, height, width]` in [0, 1].
    signs: -1, 0 or 1, same shape.
    attacked: same shape, in [0, 1].
    captions: the predictions before and after, `n` each.
    eps: lengths of the attack, `[k]`.
    errors: by label, in per cent, `[runs, k]`: a line for the mean, a band of one standard deviation.
    name: label of the perturbation, for instance `0.1 sign(gradient)`.
    title: above the figure.

  Returns:
    A figure of three rows of images and one axis.

  Raises:
    ValueError: if shapes do not fit or there are no images.

  References:
    Goodfellow, Shlens and Szegedy, `Explaining and Harnessing Adversarial Examples`, 2015, figure 1.
  """
  images, signs, attacked = (np.asarray(x) for x in (images, signs, attacked))
  if images.ndim != 3 or not len(images):
    raise ValueError(f"images must be [n, height, width] and not empty, got {images.shape}")
  for label, found, wanted in (
    ("signs", signs.shape, images.shape),
    ("attacked", attacked.shape, images.shape),
    ("captions", tuple(map(len, captions)), (len(images),) * 2),
  ):
    if found != wanted:
      raise ValueError(f"{label} must fit images: {wanted}, got {found}")
  figure = new_figure(WIDTH, 7, title)
  parts: Any = figure.subfigures(2, 1, height_ratios=[4, 3])
  upper, lower = parts
  rows = upper.subplots(3, len(images), squeeze=False)
  before, after = captions
  for row, pictures, texts, label in (
    (rows[0], images, before, "image"),
    (rows[1], signs, ("",) * len(images), name),
    (rows[2], attacked, after, "their sum, in [0, 1]"),
  ):
    row[0].set_ylabel(textwrap.fill(label, 14), fontsize="small")
    for axis, picture, text in zip(row, pictures, texts):
      _picture(axis, picture, text, low=-1 if row is rows[1] else 0)
  _errors(lower.subplots(), np.asarray(eps, float), errors)
  return figure


def _picture(axis: Axes, picture: np.ndarray, text: str, *, low: float) -> None:
  axis.imshow(picture, cmap="gray", vmin=low, vmax=1, interpolation="nearest")
  axis.set_title(text, fontsize="small")
  axis.set(xticks=[], yticks=[])


def _errors(axis: Axes, eps: np.ndarray, errors: Mapping[str, ArrayLike]) -> None:
  for number, (label, values) in enumerate(errors.items()):
    values = np.asarray(values, float)
    if values.ndim != 2 or values.shape[1:] != eps.shape:
      raise ValueError(f"{label} must be [runs, {len(eps)}], got {values.shape}")
    mean, std = values.mean(axis=0), values.std(axis=0, ddof=min(1, len(values) - 1))
    axis.plot(eps, mean, "o-", color=f"C{number}", markersize=3, label=f"{label}, {len(values)} runs")
    axis.fill_between(eps, mean - std, mean + std, color=f"C{number}", alpha=0.25, linewidth=0)
  axis.set(xlabel=r"$\epsilon$", ylabel="test error, %", ylim=(0, 100))
  handles, _ = axis.get_legend_handles_labels()
  axis.legend(handles=[*handles, band("one standard deviation")], fontsize="small", frameon=False)
  tidy(axis)
