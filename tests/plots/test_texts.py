"""Texts that users give are shown as they are, though Matplotlib takes text between dollars for formulas."""

import types

import matplotlib.text
import numpy as np
import pytest

import jaxreg
from jaxreg import plots, reports
from jaxreg.calibration import Bins

TEXTS = ("a $x_{$ b", r"$\nothing$", "_hidden", "100 $", r"\$1 and $2", "$a$ {b} ^c %")
LINE, TWO = np.array([1.0, 2.0]), np.ones((2, 2))
BINS = Bins(*np.full((3, 5), 30.0))
RECORDS = [{"epoch": epoch, "val/nll": 1.0, "val/error": 0.5, "train/loss": 1.0} for epoch in (1, 2)]
FIT = types.SimpleNamespace(slope_interval=(1.0, 2.0), slope=1.5, intercept=0.0)
TRACES = {"steps": LINE, "trace": LINE, "isotropic": LINE, "ratio": LINE}
ESTIMATE = (LINE, LINE)
GOODPUT = {"seconds": {"step": 1.0}, "wall_seconds": 2.0, "share": 0.5, "starts": 1}
ROW = {"test/error": [0.1, 0.2], "test/nll": [0.1, 0.2], "test/ece": [0.1, 0.2]}
LOG_PROBS = np.log(np.full((4, 2), 0.5))


def layers(text):
  parts = {"traces": ESTIMATE, "frobenius_norms": ESTIMATE}
  return types.SimpleNamespace(names=[text, "b"], top_eigenvalues=LINE, residuals=LINE, **parts)


DRAW = {
  "reliability": lambda text: plots.reliability({text: BINS}, title=text),
  "predicted": lambda text: plots.predicted(LINE, LINE, title=text),
  "curves": lambda text: plots.curves(RECORDS, title=text),
  "terms": lambda text: plots.terms([{**each, f"train/{text}": 1.0} for each in RECORDS], (text,)),
  "convergence": lambda text: plots.convergence({text: RECORDS}),
  "comparison": lambda text: plots.comparison({text: ROW, "other": ROW}),
  "goodput": lambda text: plots.goodput({text: GOODPUT}),
  "profiles": lambda text: plots.profiles(LINE, {text: TWO}),
  "power_laws": lambda text: plots.power_laws({text: {text: (LINE, LINE, FIT)}}, xlabel="x", ylabel="y"),
  "alignment": lambda text: plots.alignment({text: TRACES}),
  "density": lambda text: plots.density({text: (LINE, LINE, LINE), "b": (LINE, LINE, LINE)}),
  "layerwise": lambda text: plots.layerwise(layers(text)),
  "spectra": lambda text: plots.spectra({text: {text: LINE}}),
  "retain_maps": lambda text: plots.retain_maps(
    np.exp(LOG_PROBS), np.exp(LOG_PROBS), np.array([0, 1, 0, 1]), LOG_PROBS, class_names=[text, "b"]
  ),
}


def shown(figure):
  """Draws a figure; returns its texts as Matplotlib shows them, of those that are no formulas."""
  figure.canvas.draw()
  texts = [each for each in figure.findobj(matplotlib.text.Text) if each.get_visible()]
  plain = [
    text for text, formula in (each._preprocess_math(each.get_text()) for each in texts) if not formula
  ]
  return [text.replace("\u200b", "") for text in plain]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", DRAW)
def test_a_text_is_shown_as_it_is(name, text):
  assert any(text in each for each in shown(DRAW[name](text)))


def test_a_label_is_in_the_legend_even_with_an_underscore():
  (legend,) = plots.reliability({"_mine": BINS}).legends
  assert any("_mine" in each.get_text() for each in legend.get_texts())


@pytest.mark.thorough
def test_cards_and_comparisons_of_models_with_such_names(tmp_path):
  rng = np.random.default_rng(0)
  labels, classes = rng.integers(0, 2, 40), TEXTS[:2]
  log_probs = np.log(rng.dirichlet(np.ones(2), 40))
  cards = {}
  for number, text in enumerate(TEXTS):
    cards[text] = tmp_path / str(number)
    sections = ("errors", "calibration", "selective", "conformal", "ood")
    inputs = rng.uniform(size=(40, 4, 4, 1)).astype(np.float32)
    card = jaxreg.report(
      lambda x: np.resize(log_probs, (len(x), 2)),
      {"inputs": inputs, "labels": labels},
      out=cards[text],
      sections=sections,
      others={each: inputs for each in TEXTS},
      title=text,
      class_names=classes,
    )
    assert {each["status"] for each in card["sections"].values()} == {"done"}
  reports.compare(cards, out=tmp_path / "all", title=TEXTS[0])
  assert "a $x_{$ b" in (tmp_path / "all" / "report.html").read_text()
