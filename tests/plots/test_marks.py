"""Dots, bars, bands and dashes have an entry in a legend."""

import numpy as np
import pytest

from jaxreg import plots
from papers.adaptive_sgd import plots as adaptive_sgd
from papers.dropmax import plots as dropmax
from papers.group_softmax._sweep import sweep
from papers.regularization import plots as regularization

TWO, LINE = np.ones((2, 2)), np.array([1.0, 2.0])
SAMPLES = np.linspace(0, 1, 9)
VIOLINS = {"mean", "5th to 95th percentile", "density of the samples"}
BALL = ([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]], [0.0, 2.0])
SPREAD = {"one standard deviation"}
TRACES = {"steps": LINE, "trace": LINE, "isotropic": LINE, "ratio": LINE}


def keys(figure):
  legends = [*figure.legends, *(axis.get_legend() for axis in figure.axes)]
  return {text.get_text() for legend in legends if legend is not None for text in legend.get_texts()}


FIGURES = [
  (lambda: dropmax.monte_carlo({"a": {"0": SAMPLES}}), VIOLINS),
  (lambda: dropmax.predictive({"a": np.stack([SAMPLES, 1 - SAMPLES], -1)}), VIOLINS),
  (
    lambda: dropmax.contours((LINE, LINE), {"a": np.eye(2)[None].repeat(2, 0)}, TWO, np.array([0, 1])),
    {"training example, in the colour of its class", "border of the class of its colour"},
  ),
  (lambda: plots.profiles(LINE, {"a": TWO}), {"a", "mean", "one direction"} | SPREAD),
  (
    lambda: plots.alignment({"a": TRACES}),
    {"a: ratio at least 1.0", r"Tr$(H \Sigma)$, the noise", r"Tr$(H \bar\Sigma)$, isotropic noise"},
  ),
  (lambda: adaptive_sgd.sample_error(LINE, {"error": (TWO, LINE)}), SPREAD),
  (
    lambda: regularization.adversarial(
      TWO[None], TWO[None], TWO[None], (["a"], ["b"]), LINE, {"a": TWO}, name="signs"
    ),
    SPREAD,
  ),
  (
    lambda: regularization.flat_minima(LINE, {"a": TWO}, {"a": TWO}, {"a": TWO}),
    {"a run on its way"} | SPREAD,
  ),
  (
    lambda: adaptive_sgd.network_sizes([1, 2], TWO, TWO, 1 + TWO),
    {"training images", "test images", "one standard deviation", "one run", "mean"},
  ),
  (
    lambda: adaptive_sgd.unit_balls({"a": BALL}, [0.0, -1.0]),
    {"unit ball", "step", "minus the gradient", "equal linearised loss, through the step"},
  ),
  (lambda: regularization.ellipses(TWO, np.eye(2), {"a": (TWO, LINE)}), {"move of a minimum"}),
  (
    lambda: regularization.stopping_path(np.eye(2), LINE, TWO, TWO, LINE, {"a": LINE}),
    {"steps and their penalty", "contour of the loss"},
  ),
  (
    lambda: sweep({"a": {1: {"e": LINE}}}, ("none", {"e": LINE}), {"e": ("e", 1)}, xlabel="x"),
    {"95 % interval", "95 % interval of none"},
  ),
]


@pytest.mark.parametrize(("draw", "expected"), FIGURES)
def test_every_mark_has_a_key(draw, expected):
  assert expected <= keys(draw())
