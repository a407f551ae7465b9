"""The figures of the analyses of flatness hold the numbers they were given."""

import io
import types

import jax
import numpy as np
import pytest

from jaxreg import flatness, plots

power_law_fit = jax.jit(flatness.power_law_fit)


def test_profiles_show_mean_band_and_each_direction():
  alphas = np.linspace(-1, 1, 5)
  losses = np.stack([1 + alphas**2, 1 + 3 * alphas**2])
  figure = plots.profiles(alphas, {"plain": losses, "dropout": losses / 2})
  for axis in figure.axes:
    drawn = [line.get_ydata() for line in axis.lines]
    assert len(drawn) == 6
    np.testing.assert_allclose(drawn[:2], losses)
    np.testing.assert_allclose(drawn[2], losses.mean(axis=0))
    np.testing.assert_allclose(drawn[5], losses.mean(axis=0) / 2)
  assert [axis.get_title(loc="left") for axis in figure.axes] == ["linear scale", "log scale"]
  assert figure.axes[1].get_yscale() == "log"
  figure = plots.profiles(alphas, {"plain": 2.2 + 0.1 * losses})
  figure.canvas.draw()
  assert "2.4" in [label.get_text() for label in figure.axes[1].get_yticklabels()]
  negative = {"plain": losses - 2.5, "dropout": losses / 2}
  linear, height = plots.profiles(alphas, negative).axes
  np.testing.assert_allclose([line.get_ydata() for line in linear.lines[:2]], losses - 2.5)
  drawn = np.stack([line.get_ydata() for line in height.lines])
  np.testing.assert_allclose(drawn[:2], losses - 1)  # above the minimum of each label
  np.testing.assert_allclose(drawn[3:5], losses / 2 - 0.5)
  assert height.get_title(loc="left") == "height above the minimum, log scale"
  assert (height.get_yscale(), height.get_ylim()[0]) == ("symlog", 0)
  assert height.get_ylim()[1] > drawn.max()
  with pytest.raises(ValueError, match=r"plain must be \[directions, 5\], got \(2, 3\)"):
    plots.profiles(alphas, {"plain": losses[:, :3]})


@pytest.mark.thorough
def test_power_laws_show_points_lines_and_slopes():
  x = np.array([1.0, 2, 4, 8, 0, np.inf])
  y = np.array([3, 3 / 4, 3 / 16, 3 / 64, 1, 1])
  fit = power_law_fit(x, y)
  figure = plots.power_laws({"a": {"p": (x, y, fit)}, "b": {}}, xlabel="F", ylabel="v")
  points, line = figure.axes[0].lines
  np.testing.assert_array_equal(points.get_xdata(), x[:4])
  np.testing.assert_allclose(line.get_ydata(), [3, 3 / 64], rtol=1e-5)
  assert line.get_label() == "p"
  assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"
  assert points.get_markersize() > 4
  nothing = plots.power_laws({"a": {"p": (x + np.inf, y, fit)}}, xlabel="F", ylabel="v")
  nothing.savefig(io.BytesIO())
  assert nothing.axes[0].texts[0].get_text() == "no finite values"
  with pytest.raises(ValueError, match="panels must have at least one entry"):
    plots.power_laws({}, xlabel="F", ylabel="v")


def test_a_law_that_bends_has_no_single_slope():
  x = np.geomspace(0.1, 10, 101)
  y = np.where(x < 1, x**-1.0, x**-3.0)
  fit = jax.jit(flatness.broken_power_law_fit)(x, y)
  line = plots.power_laws({"a": {"p": (x, y, fit)}}, xlabel="F", ylabel="v").axes[0].lines[1]
  np.testing.assert_allclose(line.get_xydata(), [[0.1, 10], [1, 1], [10, 1e-3]], rtol=1e-3)
  assert line.get_label() == "p"


@pytest.mark.parametrize(
  "fit",
  [
    {"slope": -1.5, "slope_interval": (-39.0, 36.0)},
    {"slope": 111.0, "slope_interval": (110.0, 112.0)},
    {"slopes": (0.6, 111.0), "breakpoint": (2.0, 1.0)},
  ],
)
def test_a_fit_that_decides_nothing_has_no_line(fit):
  """The cloud stays, and the legend says so."""
  x = np.geomspace(1, 4, 9)
  made = types.SimpleNamespace(intercept=0.0, correlation=0.1, correlation_interval=(-0.5, 0.6), **fit)
  figure = plots.power_laws({"a": {"p": (x, x, made)}}, xlabel="F", ylabel="v")
  [points] = figure.axes[0].lines
  np.testing.assert_array_equal(points.get_xdata(), x)
  texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
  assert texts[0] == "p: no slope"


def test_the_panels_of_power_laws_share_their_axes():
  x, rng = np.geomspace(0.1, 2, 400), np.random.default_rng(0)
  panels = {}
  for kind, size in (("dropout", 1), ("isotropic", 1e-3)):
    y = size * x**2 * np.exp(rng.normal(0, 0.1, 400))
    panels[kind] = {"p": (x, y, power_law_fit(x, y))}
  figure = plots.power_laws(panels, xlabel="F", ylabel="v")
  figure.canvas.draw()
  first, second = figure.axes
  assert first.get_ylim() == second.get_ylim()
  assert first.get_xlim() == second.get_xlim()
  assert [axis.get_xlabel() for axis in (first, second)] == ["", "F"]  # below each other
  assert first.lines[0].get_markersize() < 4
  assert {"0.1", "0.2", "0.5", "1", "2"} <= {label.get_text() for label in second.get_xticklabels()}
  assert not any(label.get_text() for label in second.get_xticklabels(minor=True))


def test_alignment_shows_both_traces_and_the_least_ratio():
  values = {"steps": [1, 2], "trace": [4.0, 9.0], "isotropic": [2.0, 3.0], "ratio": [2.0, 3.0]}
  figure = plots.alignment({"keep 0.8": values})
  both, ratio = figure.axes
  np.testing.assert_array_equal([line.get_ydata() for line in both.lines], [[4, 9], [2, 3]])
  assert ratio.lines[0].get_label() == "keep 0.8: ratio at least 2.0"
  assert ratio.get_ylabel().startswith("ratio Tr")


def test_seeds_of_an_alignment_share_a_colour_and_a_key():
  values = lambda *ratio: {name: ratio for name in ("steps", "trace", "isotropic", "ratio")}
  series = {
    "lr 1, seed 0, keep 0.8": values(3.0, 4.0),
    "lr 1, seed 1, keep 0.8": values(2.0),
    "lr 2": values(5.0),
  }
  figure = plots.alignment(series)
  first, second, other, _ = figure.axes[1].lines
  assert first.get_color() == second.get_color() != other.get_color()
  assert second.get_marker() == "o"  # a single point is seen
  texts = [text.get_text() for text in figure.legends[0].get_texts()]
  assert texts[:2] == ["lr 1, keep 0.8, 2 seeds: ratio at least 2.0", "lr 2: ratio at least 5.0"]


def test_many_groups_of_an_alignment_stand_in_rows_of_few_colours():
  values = lambda least: {name: (least, 9.0) for name in ("steps", "trace", "isotropic", "ratio")}
  series = {
    f"{first}, keep 0.{k}": values(float(k)) for first in ("lr 1", "lr 2", "start") for k in range(1, 5)
  }
  figure = plots.alignment(series)
  assert len(figure.axes) == 6
  assert [axis.get_title("left") for axis in figure.axes[1::2]] == ["lr 1", "lr 2", "start"]
  of = lambda axis: [line.get_color() for line in axis.lines[:-1]]
  assert of(figure.axes[1]) == of(figure.axes[3]) == of(figure.axes[5])
  assert len(set(of(figure.axes[1]))) == 4
  assert [t.get_text() for t in figure.legends[0].get_texts()][:2] == ["keep 0.1", "keep 0.2"]


def test_spectra_leave_rounding_out():
  figure = plots.spectra({"keep 0.8": {"few": [4.0, 1.0, 0.0, -1e-9]}})
  np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), [4, 1])
  with pytest.raises(ValueError, match="panels must have at least one"):
    plots.spectra({})
