"""The equilibrium of DropMax's prior, predicted and measured."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import new_figure, tidy


def equilibrium(
  posterior: ArrayLike,
  retain: ArrayLike,
  *,
  measured: tuple[ArrayLike, ArrayLike] | None = None,
  title: str = "",
) -> Figure:
  """Draws the retain probability at which KL and entropy balance, as a function of the posterior's.

  Args:
    posterior: `g`, `[n]`, increasing.
    retain: `rho(g)`, `[n]`.
    measured: posterior and retain probabilities of wrong classes, as points, of any shape.
    title: above the figure.

  Returns:
    A figure of one axis.

  Raises:
    ValueError: if shapes differ.
  """
  posterior, retain = np.asarray(posterior), np.asarray(retain)
  if posterior.shape != retain.shape:
    raise ValueError(f"retain must have the shape of posterior, {posterior.shape}, got {retain.shape}")
  figure = new_figure(5, 4.5, title)
  axis = figure.subplots()
  if measured is not None:
    g, rho = (np.asarray(x).ravel() for x in measured)
    axis.plot(
      g,
      rho,
      ".",
      color="tab:orange",
      markersize=2,
      alpha=0.3,
      label="measured: one example and class",
      zorder=1,
    )
  axis.plot(posterior, retain, color="tab:blue", label="equilibrium of KL and entropy")
  for end, where in ((retain[0], "left"), (retain[-1], "right")):
    axis.axhline(end, color="gray", linewidth=0.8, linestyle=":")
    axis.text(
      0.02 if where == "right" else 0.98,
      end,
      f"{end:.3f}",
      va="bottom",
      ha="left" if where == "right" else "right",
      color="gray",
    )
  axis.set_xlim(0, 1)
  axis.set_ylim(0, 1)
  axis.set_xlabel("retain probability $g$ of the posterior $q(z | x, y)$")
  axis.set_ylabel(r"retain probability $\rho$ of the prior $p(z | x)$")
  tidy(axis)
  axis.legend(frameon=False, loc="upper left")
  return figure
