"""The flatness of trained minima, and of the training before them."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, band, new_figure, stroke, tidy


def flat_minima(
  alphas: ArrayLike,
  profiles: Mapping[str, ArrayLike],
  losses: Mapping[str, ArrayLike],
  traces: Mapping[str, ArrayLike],
  *,
  title: str = "",
) -> Figure:
  """Draws the loss around trained networks, and the Hessian's trace against the loss during training.

  Args:
    alphas: distances in units of the parameters' own norm, `[points]`.
    profiles: by label, the rise of the loss at these distances, `[runs, points]`: a line for the mean over
      runs, a band of one standard deviation.
    losses: by label, `[runs, times]`, positive.
    traces: by the same labels, at the same times, `[runs, times]`; each run is a line that ends in a dot.
    title: above the figure.

  Returns:
    A figure of two axes.

  Raises:
    ValueError: if labels or shapes do not fit.
  """
  alphas = np.asarray(alphas, float)
  if not profiles.keys() == losses.keys() == traces.keys():
    raise ValueError(
      f"profiles, losses and traces must have equal labels, got {[*profiles]}, {[*losses]} and {[*traces]}"
    )
  figure = new_figure(WIDTH, 7.6, title)
  left, right = figure.subplots(2, 1)
  for number, label in enumerate(profiles):
    rise, loss, trace = (np.asarray(x[label], float) for x in (profiles, losses, traces))
    if rise.shape[1:] != alphas.shape or trace.shape != loss.shape or loss.shape[:1] != rise.shape[:1]:
      raise ValueError(
        f"{label} must be [runs, {len(alphas)}], [runs, times] and [runs, times], "
        f"got {rise.shape}, {loss.shape} and {trace.shape}"
      )
    color, mean, std = f"C{number}", rise.mean(axis=0), rise.std(axis=0, ddof=min(1, len(rise) - 1))
    left.plot(alphas, mean, color=color, label=f"{label}, {len(rise)} runs")
    left.fill_between(alphas, mean - std, mean + std, color=color, alpha=0.25, linewidth=0)
    right.plot(loss.T, trace.T, color=color, linewidth=0.8)
    right.plot(loss[:, -1], trace[:, -1], "o", color=color, markersize=4, label=label)
  left.set(xlabel=r"$\alpha$", ylabel=r"rise of the loss at $\theta + \alpha d$")
  right.set(xlabel="training loss, without noise", ylabel="trace of its Hessian", xscale="log")
  right.set_ylim(bottom=0)
  handles, _ = left.get_legend_handles_labels()
  left.legend(handles=[*handles, band("one standard deviation")], fontsize="small", frameon=False)
  handles, _ = right.get_legend_handles_labels()
  path = stroke("a run on its way", width=0.8)
  right.legend(handles=[*handles, path], fontsize="small", frameon=False, title="end of training")
  for axis in (left, right):
    tidy(axis)
  return figure
