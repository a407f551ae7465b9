"""The first steps of runs, side by side: what is drawn where."""

import numpy as np
import pytest

from papers.dropmax import plots as dropmax_plots


def records(offset, *parts):
  names = ("nll", "kl", "neg_entropy", "auxiliary", "loss", "retain_target", "retain_nontarget")
  names += ("kept_nontarget", *(f"grad_norm_{part}" for part in parts))
  return [
    {
      "step": step,
      "train/accuracy": step / 100,
      **{f"train/{n}": offset + i + step for i, n in enumerate(names)},
    }
    for step in range(1, 11)
  ]


def test_a_column_for_each_recipe_and_a_row_for_each_question():
  dropmax, softmax = records(1, "backbone", "classifier", "prior", "residual"), records(50, "backbone")
  figure = dropmax_plots.first_steps(
    {"old": {"DropMax": dropmax, "softmax": softmax}, "new": {"DropMax": dropmax}}
  )
  axes = np.array(figure.axes).reshape(4, 2)
  drawn = [[line.get_label() for line in axis.lines] for axis in axes[:, 0]]
  assert drawn[0] == ["likelihood", "KL", "negative entropy", "auxiliary", "sum"]
  assert drawn[1] == ["DropMax", "softmax"]
  assert drawn[2] == ["target retained", "wrong classes retained", "wrong classes kept by the mask"]
  assert drawn[3] == ["backbone", "classifier", "prior", "residual", "softmax: backbone"]
  assert [len(axis.lines) for axis in axes[:, 1]] == [5, 1, 3, 4]
  assert [axis.get_title() for axis in axes[0]] == ["old", "new"]
  # The auxiliary term is the fourth name: 1 + 3 + step.
  np.testing.assert_allclose(axes[0, 0].lines[3].get_ydata(), 4 + np.arange(1, 11))
  # Means of five steps, at their middles, in per cent.
  np.testing.assert_allclose(axes[1, 0].lines[0].get_xdata(), np.arange(3, 9))
  np.testing.assert_allclose(axes[1, 0].lines[0].get_ydata(), np.arange(3, 9))


def test_a_recipe_without_dropmax_is_refused():
  with pytest.raises(ValueError, match=r"'new'.*must have a run of 'DropMax', got softmax"):
    dropmax_plots.first_steps({"new": {"softmax": []}})
