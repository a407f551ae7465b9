"""Errors of networks of several sizes, and the losses at which their runs end."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, band, dot, new_figure, stroke, tidy


def network_sizes(
  units: ArrayLike,
  train_errors: ArrayLike,
  test_errors: ArrayLike,
  test_losses: ArrayLike,
  *,
  title: str = "",
) -> Figure:
  """Draws training and test error over the size of a network, and the losses at which its runs end.

  Args:
    units: the sizes, increasing, `[sizes]`.
    train_errors: in [0, 1], `[sizes, runs]`: a line for the mean over runs, a band of one standard deviation.
    test_errors: likewise, of the same shape.
    test_losses: of the same shape, positive; a dot for each run.
    title: above the figure.

  Returns:
    A figure of two axes.

  Raises:
    ValueError: if shapes do not fit.

  References:
    Neyshabur, Tomioka and Srebro, `In Search of the Real Inductive Bias`, 2015, figure 1.
    Choromanska et al., `The Loss Surfaces of Multilayer Networks`, 2015, figure 3.
  """
  units = np.asarray(units)
  errors = {"training images": np.asarray(train_errors, float), "test images": np.asarray(test_errors, float)}
  losses = np.asarray(test_losses, float)
  shapes = [*(error.shape for error in errors.values()), losses.shape]
  if units.ndim != 1 or losses.ndim != 2 or {*shapes} != {(len(units), losses.shape[-1])}:
    raise ValueError(
      "units must be [sizes], and train_errors, test_errors and test_losses [sizes, runs], "
      f"got {units.shape}, {', '.join(map(str, shapes))}"
    )
  figure = new_figure(WIDTH, 7.6, title)
  left, right = figure.subplots(2, 1)
  for number, (label, error) in enumerate(errors.items()):
    mean, std = 100 * error.mean(axis=1), 100 * error.std(axis=1, ddof=min(1, error.shape[1] - 1))
    left.plot(units, mean, "o-", color=f"C{number}", markersize=4, label=label)
    left.fill_between(units, mean - std, mean + std, color=f"C{number}", alpha=0.25, linewidth=0)
  left.set(xlabel="hidden units", ylabel="error, %", xscale="log", xticks=units, xticklabels=units)
  left.minorticks_off()
  left.set_ylim(bottom=0)
  handles, _ = left.get_legend_handles_labels()
  left.legend(handles=[*handles, band("one standard deviation")], fontsize="small", frameon=False)
  spread = np.linspace(-0.3, 0.3, losses.shape[1])  # so that runs that end alike do not hide each other
  for place, values in enumerate(losses):
    right.plot(values, place + spread, "o", color="C1", alpha=0.5, markersize=3, markeredgewidth=0)
    right.plot([values.mean()] * 2, [place - 0.4, place + 0.4], color="black")
  right.set(xlabel="test loss at the end (nats)", ylabel="hidden units", xscale="log")
  right.set_yticks(range(len(units)), units)
  ticks = [digit * 10.0**power for power in range(-9, 9) for digit in (1, 2, 5)]
  inside = [tick for tick in ticks if losses.min() <= tick <= losses.max()]
  right.set_xticks(inside, [f"{tick:g}" for tick in inside])
  right.minorticks_off()
  right.legend(handles=[dot("one run"), stroke("mean")], fontsize="small", frameon=False)
  for axis in (left, right):
    tidy(axis)
  return figure
