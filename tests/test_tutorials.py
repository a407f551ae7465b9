"""The tutorials run, and show what they say. The site renders them with their figures."""

import runpy
import warnings
from pathlib import Path

import jax
import matplotlib
import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples/tutorials"


def dropmax_from_nothing(it):
  np.testing.assert_allclose(it["ours"], it["theirs"], rtol=1e-5, atol=1e-4)
  assert np.diag(it["kept"]).min() > (it["kept"].sum(1) - np.diag(it["kept"])).max() / 9
  assert it["runs"][0]["DropMax"][1][-1] < 0.06


def mc_dropout_band(it):
  inside, beyond = it["regions"]["among the points"], it["regions"]["beyond"]
  assert it["std"][beyond].mean() > 1.2 * it["std"][inside].mean()
  assert np.abs(it["mean"] - it["truth"](it["at"]))[inside].mean() < 0.3


def report_card(it):
  assert {card["sections"][name]["status"] for card in it["cards"].values() for name in card["asked"]} == {
    "done"
  }
  assert (it["folder"] / "both" / "report.html").stat().st_size > 50_000
  error = it["compared"]["differences"]["dropout"]["errors/error"]
  assert error["first"] < 0.1


def deep_ensemble(it):
  assert it["nll"](it["ensemble"].mean_log_probs) < np.mean(it["alone"])  # Jensen
  near = it["ensembles"].uncertainty(it["predict"](it["train"][0])).mutual_information.mean()
  assert it["found"].mutual_information.mean() > near


def sam_against_sgd(it):
  assert it["table"]["SAM"][:, 1].mean() < 0.7 * it["table"]["SGD"][:, 1].mean()
  assert {values.shape for values in it["surfaces"].values()} == {(17, 17)}


def hessian_spectrum(it):
  np.testing.assert_allclose(it["found"][2000][1][0], it["exact"][-1], rtol=1e-3)
  np.testing.assert_allclose(it["estimate"], it["exact"].sum(), rtol=0.25)


def exact_zeros(it):
  np.testing.assert_allclose(it["by_prox"], it["by_sklearn"], atol=1e-4)
  zeros = {name: is_zero.mean() for name, is_zero in it["zeros"].items()}
  assert zeros["subgradient"] < 0.5 * zeros["proximal"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(script.stem for script in FOLDER.glob("*.py")))
def test_a_tutorial_shows_what_it_says(name):
  check = globals()[name]
  matplotlib.use("Agg")
  with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
    warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
    check(runpy.run_path(str(FOLDER / f"{name}.py")))
  assert matplotlib.pyplot.get_fignums()
  matplotlib.pyplot.close("all")
