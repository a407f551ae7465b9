"""Cards beside each other: paired intervals against SciPy, Holm's correction, and cards that continue."""

import json
import shutil
import signal

import numpy as np
import pytest
import zips
from scipy import stats

import jaxreg
from jaxreg import reports

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 400)
NOISE = RNG.normal(size=(400, 3))


def log_softmax(logits):
  return np.float32(logits - np.log(np.exp(logits).sum(1, keepdims=True)))


def predictions(skill, seed):
  own = np.random.default_rng(seed).normal(size=(400, 3)) / 4
  return log_softmax(skill * np.eye(3)[LABELS] + NOISE + own)


def make(folder, skill, seed=1, **options):
  options = {"sections": ("errors", "calibration", "selective")} | options
  jaxreg.report(predictions(skill, seed), {"labels": LABELS}, out=folder, **options)
  return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  top = tmp_path_factory.mktemp("cards")
  return {
    f"{skill} {seed}": make(top / f"{skill}-{seed}", skill, seed) for skill in (1.0, 2.0) for seed in (1, 2)
  }


def nll(skill, seed):
  return -predictions(skill, seed)[np.arange(400), LABELS].astype(float)


@pytest.mark.thorough
def test_differences_are_paired_and_as_scipy_has_them(folders, tmp_path):
  found = reports.compare({"a": folders["1.0 1"], "b": folders["2.0 1"]}, out=tmp_path)["differences"]["b"]
  less = nll(2.0, 1) - nll(1.0, 1)
  got = found["calibration/nll"]
  assert got["value"] == pytest.approx(less.mean(), rel=1e-4)
  want = stats.bootstrap((less,), np.mean, method="basic", n_resamples=4000, rng=1).confidence_interval
  assert (got["low"], got["high"]) == pytest.approx(want, abs=0.15 * (want.high - want.low))
  assert got["real"]
  wrong = [(predictions(skill, 1).argmax(1) != LABELS).mean() for skill in (1.0, 2.0)]
  assert found["errors/error"]["value"] == pytest.approx(wrong[1] - wrong[0], abs=1e-6)
  assert {"calibration/ece", "calibration/brier", "selective/aurc"} <= {*found}
  page = (tmp_path / "report.html").read_text()
  assert "What differs beyond chance" in page
  assert "Calibration: NLL" in page
  assert json.loads((tmp_path / "report.json").read_text())["differences"]["b"]["calibration/nll"] == got


@pytest.mark.thorough
def test_p_values_are_corrected_as_by_holm(folders, tmp_path):
  found = reports.compare({"a": folders["1.0 1"], "b": folders["1.0 2"]}, out=tmp_path)["differences"]["b"]
  p = np.sort([each["p"] for each in found.values()])
  bound = 0.05 / np.arange(len(p), 0, -1)
  rejected = len(p) if (p <= bound).all() else int(np.argmin(p <= bound))
  assert sum(each["real"] for each in found.values()) == rejected == 0
  assert "Nothing does" in (tmp_path / "report.html").read_text()
  same = reports.compare({"a": folders["1.0 1"], "b": folders["1.0 1"]}, out=tmp_path)["differences"]["b"]
  assert {each["p"] for each in same.values()} == {1.0}


@pytest.mark.thorough
def test_seeds_are_drawn_too(folders, tmp_path):
  pairs = {"a": [folders["1.0 1"], folders["1.0 2"]], "b": [folders["2.0 1"], folders["2.0 2"]]}
  found = reports.compare(pairs, out=tmp_path)["differences"]["b"]["calibration/nll"]
  less = sum(nll(2.0, seed) - nll(1.0, seed) for seed in (1, 2)).mean() / 2
  assert found["value"] == pytest.approx(less, rel=1e-4)
  # Welch's t with the variance of the paired examples, as if of many seeds, beside those of the seeds.
  each = sum(nll(2.0, seed) - nll(1.0, seed) for seed in (1, 2)) / 2
  parts = [np.var([nll(skill, seed).mean() for seed in (1, 2)], ddof=1) / 2 for skill in (1.0, 2.0)]
  variance = each.var(ddof=1) / 400 + sum(parts)
  freedom = variance**2 / sum(part**2 for part in parts)
  half = stats.t.ppf(0.975, freedom) * np.sqrt(variance)
  assert (found["high"] - found["low"]) / 2 == pytest.approx(half, rel=0.1)
  assert found["p"] == pytest.approx(2 * stats.t.sf(less / -np.sqrt(variance), freedom), rel=0.9)
  assert "mean of 2 seeds" in (tmp_path / "report.html").read_text()


@pytest.mark.thorough
def test_other_examples_are_no_pairs(folders, tmp_path):
  jaxreg.report(predictions(1.0, 1)[:50], {"labels": LABELS[:50]}, out=tmp_path / "few", sections=("errors",))
  with pytest.raises(ValueError, match="must be of the same examples, key and sections; b differs from a"):
    reports.compare({"a": folders["1.0 1"], "b": tmp_path / "few"}, out=tmp_path / "out")
  with pytest.raises(ValueError, match="no card can be read in"):
    reports.compare({"a": folders["1.0 1"], "b": tmp_path / "none"}, out=tmp_path / "out")
  with pytest.raises(ValueError, match="at least two models"):
    reports.compare({"a": folders["1.0 1"]}, out=tmp_path / "out")


@pytest.mark.thorough
def test_a_card_continues_after_an_interruption(folders, tmp_path, monkeypatch, request):
  """Ctrl-C in the second section leaves a page with the first; the same call then makes the others only."""
  # A shell starts a program in the background with SIGINT ignored.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
  section = reports._report.OF_CLASSES["calibration"]

  def stop(model):
    signal.raise_signal(signal.SIGINT)

  monkeypatch.setitem(reports._report.OF_CLASSES, "calibration", stop)
  with pytest.raises(KeyboardInterrupt):
    make(tmp_path / "card", 1.0)
  page = (tmp_path / "card" / "report.html").read_text()
  assert "Calibration: not computed yet" in page
  monkeypatch.setitem(reports._report.OF_CLASSES, "calibration", section)
  monkeypatch.setitem(reports._report.OF_CLASSES, "errors", stop)  # it is not computed again
  make(tmp_path / "card", 1.0)
  whole, card = (
    json.loads((folder / "report.json").read_text()) for folder in (folders["1.0 1"], tmp_path / "card")
  )
  strip = lambda table: {name: each["numbers"] for name, each in table["sections"].items()}
  assert strip(card) == strip(whole)


@pytest.mark.thorough
def test_other_predictions_or_options_start_anew(folders, tmp_path):
  shutil.copytree(folders["1.0 1"], tmp_path / "card")
  before = json.loads((tmp_path / "card" / "report.json").read_text())
  make(tmp_path / "card", 1.0, seed=2, sections=("errors",))
  after = json.loads((tmp_path / "card" / "report.json").read_text())
  assert after["fingerprint"] != before["fingerprint"]
  assert {*after["sections"]} == {"errors"}


def changed(folder, name):
  """Changes a number of a card's table, or drops arrays of a section, as damage would."""
  if name == "report.json":
    (folder / name).write_text((folder / name).read_text().replace('"value": 0.', '"value": 1.', 1))
    return
  with np.load(folder / "report.npz") as stored:
    arrays = {key: stored[key] for key in stored.files if not key.startswith(name)}
  np.savez(folder / "report.npz", **arrays)


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("damage", "message"),
  [
    ("report.json", "report.json does not match its own checksum"),
    ("calibration/", "report.npz lacks arrays of calibration, or has others"),
    ("each/errors/", "report.npz lacks arrays of errors, or has others"),
    ("model/", "report.npz lacks arrays of model, or has others"),
  ],
)
def test_damage_is_one_line_and_the_sections_are_made_again(folders, tmp_path, capsys, damage, message):
  whole = json.loads((folders["1.0 1"] / "report.json").read_text())["sections"]
  shutil.copytree(folders["1.0 1"], tmp_path / "card")
  changed(tmp_path / "card", damage)
  with pytest.raises(ValueError, match=message):
    reports.compare({"a": tmp_path / "card", "b": folders["2.0 1"]}, out=tmp_path / "out")
  make(tmp_path / "card", 1.0)
  lines = capsys.readouterr().err.splitlines()
  assert message in lines[0]
  assert sum("section 1" in line for line in lines) == (damage != "model/")
  again = json.loads((tmp_path / "card" / "report.json").read_text())["sections"]
  assert {name: each["numbers"] for name, each in again.items()} == {
    name: each["numbers"] for name, each in whole.items()
  }
  reports.compare({"a": tmp_path / "card", "b": folders["2.0 1"]}, out=tmp_path / "out")


@pytest.mark.thorough
def test_no_archive_of_another_kind_ends_in_a_traceback(folders, tmp_path, capsys):
  content = (folders["1.0 1"] / "report.npz").read_bytes()
  half = len(content) // 2
  for place, damaged in enumerate(
    (
      *(b"", b"no archive", content[:half], content[:half] + b"x" * 9 + content[half:]),
      zips.encrypted(content),
      zips.damaged_lzma(content),
    )
  ):
    folder = tmp_path / str(place)
    shutil.copytree(folders["1.0 1"], folder)
    (folder / "report.npz").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"no card can be read in|lacks arrays of"):
      reports.compare({"a": folder, "b": folders["2.0 1"]}, out=tmp_path / "out")
    make(folder, 1.0)
    assert "report.npz" in capsys.readouterr().err
    reports.compare({"a": folder, "b": folders["2.0 1"]}, out=tmp_path / "out")


@pytest.mark.thorough
def test_a_card_of_fewer_sections_follows_one_of_more(folders, tmp_path):
  shutil.copytree(folders["1.0 1"], tmp_path / "card")
  make(tmp_path / "card", 1.0, sections=("errors",))
  make(tmp_path / "other", 2.0, sections=("errors",))
  results = reports.compare({"a": tmp_path / "card", "b": tmp_path / "other"}, out=tmp_path / "out")
  assert [*results["differences"]["b"]] == ["errors/error"]
  make(tmp_path / "card", 1.0, sections=("errors", "calibration"))
  assert "<h2>Calibration</h2>" in (tmp_path / "card" / "report.html").read_text()


def test_sections_of_another_kind_of_labels_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r"^sections must be of errors, .* are classes, got 'residuals'$"):
    make(tmp_path, 1.0, sections=("residuals",))
  with pytest.raises(ValueError, match=r"^sections must be of residuals, .* floating numbers, got 'errors'$"):
    jaxreg.report(NOISE[:, 0], {"labels": NOISE[:, 1]}, out=tmp_path, sections=("errors",))
  with pytest.raises(ValueError, match=r"^sections must be a collection of names, got the text 'errors'$"):
    make(tmp_path, 1.0, sections="errors")


def test_figures_of_similar_labels_have_files_of_their_own(tmp_path):
  names = {"a": 1.0, "lr=-0.1": 1.0, "lr=+0.1": 2.0, "b c": 1.0, "b_c": 2.0}
  for number, skill in enumerate(names.values()):
    make(tmp_path / str(number), skill, sections=("errors",))
  both = {name: tmp_path / str(number) for number, name in enumerate(names)}
  reports.compare(both, out=tmp_path / "out")
  files = {file.name for file in (tmp_path / "out" / "figures").iterdir()}
  assert len(files) == 5
  assert {"errors_confusion_a.png", "errors_confusion_b_c.png"} <= files


def test_nothing_is_written_through_a_link(tmp_path):
  (tmp_path / "mine").mkdir()
  (tmp_path / "card").mkdir()
  (tmp_path / "card" / "figures").symlink_to(tmp_path / "mine")
  for name in ("html", "json", "npz"):
    (tmp_path / "card" / f"report.{name}.partial").symlink_to(tmp_path / "mine" / name)
  with pytest.raises(ValueError, match="figures is a link, and nothing is written through it"):
    make(tmp_path / "card", 1.0, sections=("errors",))
  assert not [*(tmp_path / "mine").iterdir()]
