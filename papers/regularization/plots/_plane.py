"""A quadratic of two weights, as the background of paths and solutions."""

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike


def quadratic(
  axis: Axes, hessian: ArrayLike, w_star: ArrayLike, *, low: ArrayLike, high: ArrayLike, levels: ArrayLike
) -> None:
  """Draws contours of `(w - w*)' H (w - w*) / 2` between two corners `[2]`, with equal axis scales."""
  low, high = pair(low, "low", (2,)), pair(high, "high", (2,))
  x, y = np.meshgrid(*np.linspace(low, high, 200).T)
  axis.contour(
    x,
    y,
    loss_at(hessian, w_star, np.stack([x, y], axis=-1)),
    levels=np.unique(levels),
    colors="tab:gray",
    linewidths=0.8,
    alpha=0.7,
  )
  axis.plot([], [], color="tab:gray", linewidth=0.8, alpha=0.7, label="contour of the loss")
  axis.plot(
    *pair(w_star, "w_star", (2,)), "*", color="black", markersize=11, label="$w^*$, no penalty", zorder=4
  )
  axis.axhline(0, color="black", linewidth=0.6)
  axis.axvline(0, color="black", linewidth=0.6)
  axis.set(xlabel="$w_1$", ylabel="$w_2$", aspect="equal", xlim=(low[0], high[0]), ylim=(low[1], high[1]))
  axis.spines[["top", "right"]].set_visible(False)


def loss_at(hessian: ArrayLike, w_star: ArrayLike, w: ArrayLike) -> np.ndarray:
  """The quadratic at points `[..., 2]`."""
  hessian, w_star = pair(hessian, "hessian", (2, 2)), pair(w_star, "w_star", (2,))
  away = np.asarray(w, float) - w_star
  return np.einsum("...i,ij,...j", away, hessian, away) / 2


def pair(x: ArrayLike, name: str, shape: tuple[int, ...]) -> np.ndarray:
  """Returns `x` as floats of the given shape, in which -1 is any length."""
  x = np.asarray(x, float)
  if x.ndim != len(shape) or any(want not in (-1, got) for want, got in zip(shape, x.shape)):
    raise ValueError(f"{name} must have shape {shape}, got {x.shape}")
  return x
