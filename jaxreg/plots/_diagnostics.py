"""Diagnostics of DropMax's training."""

from matplotlib.figure import Figure

from jaxreg.plots._axes import finish, log_scale, new_figure, note_averages
from jaxreg.plots._lines import line
from jaxreg.plots._series import Records

# sigmoid(a) for a = 1 + exp(-a): KL and entropy balance there if the posterior drops all other classes.
EQUILIBRIUM = 0.782188


def diagnostics(records: Records, *, title: str = "") -> Figure:
  """Draws DropMax's retain probabilities, masks and the gradient that they let through, over epochs.

  The dashed lines are the equilibrium for easy examples: 0.782 for the target and 0.218 for the others. If
  masks and gradient fall to 0 together while the error is still high, the run has stopped learning: every
  other class is dropped.

  Args:
    records: dicts with `epoch` and the means over a batch `train/retain_target`, `train/retain_nontarget`,
      `train/posterior_nontarget`, `train/kept_nontarget` and `train/logit_grad_norm`, as from
      `jaxreg.losses.dropmax_diagnostics`.
    title: above the figure.

  Returns:
    A figure of three axes: retain probabilities, posterior and masks of non-targets, gradient norm.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018; the equilibrium is derived from its objective,
    d(KL - H) / d rho = 0 where q is certain, and not printed there.
  """
  figure = new_figure(13, 4.2, title)
  retain, masks, gradient = figure.subplots(1, 3)
  blocks = [
    line(retain, records, "train/retain_target", label="target", color="tab:blue"),
    line(retain, records, "train/retain_nontarget", label="non-targets, mean", color="tab:orange"),
    line(
      masks, records, "train/kept_nontarget", label="masks kept (z > 1/2)", color="tab:purple", linewidth=1
    ),
    line(masks, records, "train/posterior_nontarget", label="posterior g", color="tab:green"),
    line(gradient, records, "train/logit_grad_norm", label="gradient", color="tab:red"),
  ]
  if retain.lines:
    for level, color in ((EQUILIBRIUM, "tab:blue"), (1 - EQUILIBRIUM, "tab:orange")):
      retain.axhline(level, color=color, linestyle="--", linewidth=1, label=f"equilibrium {level:.3f}")
    retain.set_ylim(0, 1)
  log_scale(masks)
  log_scale(gradient)
  finish(retain, "retain probability, p(z | x)")
  finish(masks, "non-targets in q(z | x, y)")
  finish(gradient, "gradient of the nll in the logits (L2 norm)", legend=False)
  note_averages(figure, blocks)
  return figure
