"""The verdict of a card: sentences from the numbers, and none on sections that are missing."""

import copy
import html
import re

import numpy as np
import pytest

import jaxreg
from jaxreg import reports
from jaxreg.reports._verdict import verdict


def number(title, value, low=None, high=None, percent=False):
  return {"title": title, "value": value, "low": low, "high": high, "percent": percent}


def share(value, low, high):
  return number("", value, low, high, percent=True)


CLASSES = {
  "errors": {"error": share(0.02, 0.01, 0.04)},
  "calibration": {
    "ece": share(0.05, 0.03, 0.07),
    "temperature": number("", 1.5),
    "tempered_ece": share(0.01, 0.0, 0.02),
  },
  "conformal": {"conformal_coverage": share(0.91, 0.88, 0.94), "conformal_size": number("", 1.25)},
  "ood": {"noise/auroc": share(0.99, 0.9, 1.0), "rotated/auroc": share(0.6, 0.5, 0.7)},
  "corruptions": {"all": share(0.25, 0.2, 0.3)},
  "adversarial": {
    "clean": share(0.02, 0.01, 0.04),
    "eps 0.01": share(0.1, 0.0, 0.2),
    "eps 0.2": share(0.95, 0.9, 1.0),
    "no_gradient": share(0.0, 0.0, 0.01),
  },
  "flatness": {
    "loss": number("", -2.5),
    "rise": number("", 1.5, 1.0, 2.0),
    "eigenvalue/1": number("", 20.0, 19.0, 21.0),
    "eigenvalue/2": number("", -0.5, -1.0, 0.1),
  },
}
NUMBERS = {
  "residuals": {"rmse": number("RMSE", 50.0, 45.0, 55.0), "r2": number("R2", 0.5, 0.4, 0.6)},
  "conformal": {
    "predicted_coverage": share(0.7, 0.6, 0.8),
    "predicted_width": number("", 100.0),
    "conformal_coverage": share(0.9, 0.85, 0.95),
    "conformal_width": number("", 170.0),
  },
}


def card(sections, **head):
  done = {name: {"status": "done", "numbers": copy.deepcopy(each)} for name, each in sections.items()}
  return {"title": "a", "examples": 300, "alpha": 0.1, "levels": [], "sections": done, **head}


def test_a_classifier():
  assert verdict(card(CLASSES)) == [
    "The error of “a” is 2.00 % (95 % interval 1.00 % to 4.00 %) on 300 examples.",
    "It is not calibrated: the ECE is 5.00 % (3.00 % to 7.00 %). The best temperature is 1.5, so it is "
    "overconfident; at this temperature the ECE is 1.00 %.",
    "Conformal sets that are to hold the label in 90 % of the examples hold it in 91.00 % "
    "(88.00 % to 94.00 %), with 1.25 classes on average.",
    "Its confidence tells inputs of no class from the data with an AUROC of 99.00 % for noise and 60.00 % "
    "for rotated; 50 % is guessing.",
    "The error is 25.00 % on corrupted images, 10.00 % under attacks at eps 0.01 and 95.00 % under attacks "
    "at eps 0.2.",
    "The loss of -2.5 changes by 1.5 (1 to 2) along random directions as long as the layers, and the largest "
    "eigenvalue of its Hessian is 20.",
  ]


def test_a_regression():
  assert verdict(card(NUMBERS)) == [
    "The RMSE of “a” is 50 (95 % interval 45 to 55) on 300 examples, and R2 is 0.5 (0.4 to 0.6).",
    "Its own intervals are too narrow: they are to hold 90 % of the targets, and hold 70.00 % "
    "(60.00 % to 80.00 %). Conformal intervals that are to hold 90 % hold 90.00 % (85.00 % to 95.00 %), "
    "with a mean width of 170.",
  ]


@pytest.mark.parametrize(
  ("section", "changed", "words"),
  [
    ("calibration", {"ece": share(0.02, 0.0, 0.04)}, "No miscalibration can be seen"),
    ("calibration", {"temperature": number("", 0.5)}, "so it is underconfident"),
    ("adversarial", {"no_gradient": share(0.5, 0.4, 0.6)}, "because 50.00 % of the gradients are 0"),
    ("flatness", {"eigenvalue/2": number("", -0.5, -0.6, -0.4)}, "and -0.5 is one, so this is no minimum"),
  ],
)
def test_other_numbers_of_a_classifier(section, changed, words):
  assert words in " ".join(verdict(card({**CLASSES, section: {**CLASSES[section], **changed}})))


@pytest.mark.parametrize(
  ("coverage", "levels", "words"),
  [
    (share(0.95, 0.92, 0.97), [], "too wide"),
    (share(0.88, 0.8, 0.95), [], "not seen to be wrong"),
    # Outer quantiles of 25 and 75 % hold half of the targets.
    (share(0.7, 0.6, 0.8), [0.25, 0.5, 0.75], "too wide: they are to hold 50 % of the targets"),
  ],
)
def test_other_intervals_of_a_regression(coverage, levels, words):
  conformal = {**NUMBERS["conformal"], "predicted_coverage": coverage}
  assert words in " ".join(verdict(card({**NUMBERS, "conformal": conformal}, levels=levels)))


@pytest.mark.parametrize("section", [*CLASSES])
def test_a_missing_section_is_not_mentioned(section):
  """Each card lacks one section, or has its failure."""
  whole, without = verdict(card(CLASSES)), {name: x for name, x in CLASSES.items() if name != section}
  failed = card(without)
  failed["sections"][section] = {"status": "failed", "reason": "RuntimeError: none"}
  for each in (verdict(card(without)), verdict(failed)):
    assert len(each) == len(whole) - (section not in ("errors", "corruptions", "adversarial"))
    assert set(re.findall(r"[\d.]+", " ".join(each))) <= set(re.findall(r"[\d.]+", " ".join(whole)))


@pytest.mark.thorough
def test_the_page_begins_with_the_verdict(tmp_path):
  rng = np.random.default_rng(0)
  labels = rng.integers(0, 3, 300)
  for name, skill in (("a<b", 1.0), ("c", 4.0)):
    logits = skill * np.eye(3)[labels] + rng.normal(size=(300, 3))
    sections = ("errors", "calibration")
    options = {"sections": sections, "alpha": 0.025, "title": name}
    card = jaxreg.report(np.float32(logits), {"labels": labels}, out=tmp_path / name, **options)
    page = (tmp_path / name / "report.html").read_text()
    shown = html.unescape(re.search(r'<h1>.*</h1>\n<p class="verdict">(.*)</p>', page)[1])
    assert shown.replace("\u00a0", " ") == " ".join(verdict(card))
  both = {name: tmp_path / name for name in ("a<b", "c")}
  table = reports.compare(both, out=tmp_path / "both")["differences"]["c"]
  shown = re.search(r'<p class="verdict">(.*)</p>', (tmp_path / "both" / "report.html").read_text())[1]
  real = sum(each["real"] for each in table.values())
  assert real > 1
  shown = html.unescape(shown).replace("\u00a0", " ")
  assert shown.startswith("a<b is compared with c on 300 examples. The error is ")
  assert f"Of {len(table)} differences, {real} are larger than chance allows" in shown


def test_the_page_escapes_bytes_of_names_that_are_not_utf_8(tmp_path):
  options = {"sections": ("errors",), "title": "run \udce9", "class_names": ("caf\udce9", "b")}
  logits = np.float32([[1, 0], [0, 1]] * 20)
  jaxreg.report(logits, {"labels": np.arange(40) % 2}, out=tmp_path, **options)
  page = (tmp_path / "report.html").read_text()
  assert r"<h1>run \udce9</h1>" in page
