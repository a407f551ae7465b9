"""The figures of comparisons and of the DropMax paper hold the numbers that they were given."""

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from jaxreg import calibration, plots
from papers.dropmax import plots as dropmax_plots


def draws(figure):
  """It can be drawn, and is not empty."""
  assert isinstance(figure, Figure)
  figure.canvas.draw()
  return figure.axes


def test_comparison_shows_runs_means_and_intervals():
  rows = {
    "softmax": {"test/error": [0.05, 0.06, 0.055], "test/nll": [0.2, 0.21, 0.22], "test/ece": [0.01] * 3},
    "dropmax": {"test/error": [0.03, 0.04, 0.036], "test/nll": [0.1, 0.11, 0.13], "test/ece": [0.02] * 3},
  }
  axes = draws(plots.comparison(rows))
  error = axes[0]
  np.testing.assert_allclose(error.lines[0].get_xdata(), [5, 6, 5.5])
  bars = [c for c in error.containers if hasattr(c, "has_xerr")]
  assert len(bars) == 2
  (segment,) = bars[1].lines[2][0].get_segments()
  values = 100 * np.array(rows["dropmax"]["test/error"])
  half = stats.t.ppf(0.975, 2) * stats.sem(values)
  np.testing.assert_allclose(segment[:, 0], [values.mean() - half, values.mean() + half])
  assert [label.get_text() for label in error.get_yticklabels()] == ["softmax", "DropMax"]
  keys = [text.get_text() for text in error.figure.legends[0].get_texts()]
  assert keys == ["single run", "mean and its 95 % confidence interval", "mean of softmax"]
  with pytest.raises(ValueError, match="rows"):
    plots.comparison({})


def test_comparison_ends_where_no_value_can_lie():
  wide = {name: [0.05, 0.4] for name in ("test/error", "test/nll", "test/ece")}
  figure = plots.comparison({"softmax": wide})
  error, nll, ece = draws(figure)
  assert error.get_xlim() == ece.get_xlim() == (0, 100)
  assert nll.get_xlim()[0] == 0
  assert nll.get_xlim()[1] > 2
  # The axes are not stretched to 0 and 100 where the runs agree.
  close = {name: [0.1, 0.1001] for name in wide}
  low, high = draws(plots.comparison({"softmax": close}))[0].get_xlim()
  assert 9 < low < 10 < high < 11


def test_one_row_far_away_does_not_flatten_a_panel():
  near = {name: [0.03, 0.04] for name in ("test/error", "test/nll", "test/ece")}
  rows = {
    "softmax": near,
    "far": {**near, "test/nll": [30.0, 32.0]},
    "nearby": {**near, "test/nll": [0.1, 0.1]},
  }
  error, nll, _ = draws(plots.comparison(rows))
  assert 0.1 < nll.get_xlim()[1] < 0.5
  assert [text.get_text().strip() for text in nll.texts] == ["31"]
  assert not error.texts
  # One of many rows may not take more than half of a panel, one of few may.
  for number, beyond in ((8, ["16"]), (7, [])):
    errors = [0.16, *(0.01 * i for i in range(number - 1))]
    rows = {f"row {i}": {**near, "test/ece": [error, error]} for i, error in enumerate(errors)}
    assert [text.get_text().strip() for text in draws(plots.comparison(rows))[2].texts] == beyond


def test_two_rows_are_both_on_the_scale():
  rows = {
    name: {key: [value, 1.02 * value] for key in ("test/error", "test/nll", "test/ece")}
    for name, value in (("softmax", 0.05), ("dropmax", 0.03))
  }
  for axis in draws(plots.comparison(rows)):
    assert not axis.texts
    low, high = axis.get_xlim()
    assert low < 0.05 * (1 if axis.get_title(loc="left").startswith("NLL") else 100) < high


def test_convergence_shows_every_run():
  records = [{"epoch": e, "val/error": 0.5 / e, "val/nll": 1.0 / e, "train/nll": 0.9 / e} for e in (1, 2, 4)]
  axes = draws(plots.convergence({"a": records, "b": records}))
  figure = axes[0].figure
  assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "validation", "training"]
  thin, thick = axes[0].lines[:2]
  np.testing.assert_allclose(thin.get_ydata(), [0.9, 0.45, 0.225])
  np.testing.assert_allclose(thick.get_ydata(), [1, 0.5, 0.25])
  assert thin.get_linewidth() < thick.get_linewidth()
  np.testing.assert_allclose(axes[1].lines[0].get_ydata(), [50, 25, 12.5])
  assert axes[0].get_title(loc="left") == "NLL (nats)"
  many = draws(plots.convergence({str(number): records for number in range(12)}))[1]
  assert len({str(line.get_color()) for line in many.lines}) == 12
  axes = draws(plots.convergence({"a": records, "b": [records[0] | {"train/neg_entropy": -1.0}]}))
  assert "sampled masks" in axes[0].get_title(loc="left")
  with pytest.raises(ValueError, match="runs"):
    plots.convergence({})


def test_gradients_have_an_axis_a_group():
  groups = {"low": {"softmax": [1, 0.5], "dropmax": [0.8, 0.2]}, "all": {"softmax": [0.1, 0.01]}}
  low, every = draws(dropmax_plots.gradients([10, 20], groups))
  assert [axis.get_title(loc="left") for axis in (low, every)] == ["low", "all"]
  assert low.get_legend() is None
  assert [text.get_text() for text in low.figure.legends[0].get_texts()] == ["softmax", "dropmax"]
  np.testing.assert_array_equal(low.lines[1].get_xdata(), [10, 20])
  np.testing.assert_array_equal(low.lines[1].get_ydata(), [0.8, 0.2])
  with pytest.raises(ValueError, match="groups"):
    dropmax_plots.gradients([1], {})
  with pytest.raises(ValueError, match=r"low, softmax must have the shape of steps, \(3,\), got \(2,\)"):
    dropmax_plots.gradients([1, 2, 3], groups)


def test_means_of_replicas_have_a_band():
  records = [
    {"epoch": e, "val/error": 0.5 / e, "val/error_ci95": 0.1 / e, "val/nll": 1.0 / e} for e in (1, 2, 4)
  ]
  records.append({"epoch": 4, "test/error": 0.1, "test/error_ci95": 0.02})
  nll, error, _ = draws(plots.curves(records))
  (band,) = error.collections
  ys = band.get_paths()[0].vertices[:, 1]
  assert ys.max() == pytest.approx(60)
  assert ys.min() == pytest.approx(10)
  assert not nll.collections
  assert any("10 ± 2 %" in line.get_label() for line in error.lines)


def test_a_band_is_averaged_with_its_line():
  values = {"train/nll": 2.0, "train/loss": 2.0, "train/loss_ci95": 1.0, "train/kl": 0.0}
  (axis, *_) = draws(plots.terms([{"epoch": e / 2000, **values} for e in range(2001)], ("nll", "kl")))
  (band,) = [x for x in axis.collections if np.ptp(x.get_paths()[0].vertices[:, 1]) == 2]
  line = next(line for line in axis.lines if "95 %" in str(line.get_label()))
  np.testing.assert_allclose(np.unique(band.get_paths()[0].vertices[:, 0]), line.get_xdata())


@pytest.mark.parametrize(
  ("values", "low"), [([0.5, 0.1, -0.01, -0.5], [-0.5, -0.9, -1.01, -1.5]), ([4.0, 0.5], [3.0, 0.05])]
)
def test_a_band_is_cut_where_the_axis_may_be_logarithmic(values, low):
  records = [
    {"epoch": e, "train/loss": value, "train/loss_ci95": 1.0, "train/nll": value, "train/kl": 0.0}
    for e, value in enumerate(values, 1)
  ]
  (axis, *_) = draws(plots.terms(records, ("nll", "kl")))
  (band,) = axis.collections
  vertices = band.get_paths()[0].vertices
  for e, (value, end) in enumerate(zip(values, low, strict=True), 1):
    np.testing.assert_allclose(np.unique(vertices[vertices[:, 0] == e, 1]), [end, value + 1])


@pytest.mark.thorough
def test_reliability_shows_accuracy_against_confidence():
  probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]], np.float32)
  labels = np.array([0, 1, 1, 0])
  bins = calibration.ece_bins(np.log(probs), labels, num_bins=5)
  often = jax.tree.map(lambda sums: 50 * np.asarray(sums), bins)
  upper, lower = draws(plots.reliability({"test": often}))
  assert upper.get_position().height > 0.4
  line = next(line for line in upper.lines if str(line.get_label()).startswith("test"))
  # Bins (0.4, 0.6], (0.6, 0.8], (0.8, 1].
  np.testing.assert_allclose(line.get_xdata(), [0.6, 0.75, 0.9], rtol=1e-6)
  np.testing.assert_allclose(line.get_ydata(), [1, 0.5, 1])
  assert sorted(patch.get_height() for patch in lower.patches)[2:] == [50, 50, 100]
  error = (0.4 + 2 * 0.25 + 0.1) / 4
  assert f"ECE {100 * error:.2f} %" in line.get_label()
  bars = upper.collections[0].get_segments()
  for bar, right, number in zip(bars, (50, 50, 50), (50, 100, 50), strict=True):
    expected = stats.binomtest(right, number).proportion_ci(method="wilson")
    np.testing.assert_allclose(bar[:, 1], expected, rtol=1e-5)
  # No line goes through bins of one and two examples; weights need not be counts.
  for few in (bins, jax.tree.map(lambda sums: np.asarray(sums) / 8, bins)):
    upper, lower = draws(plots.reliability({"test": few}))
    line, hollow = upper.lines[1:3]
    assert f"ECE {100 * error:.2f} %" in str(line.get_label())
    assert np.isnan(line.get_ydata()).all()
    np.testing.assert_allclose(hollow.get_ydata(), [1, 0.5, 1])
    assert hollow.get_fillstyle() == "none"
    assert lower.get_ylim()[0] < np.asarray(few.count)[2:].min()
  # The legend stands beside the axes, where it hides no point, and names every line of both axes.
  for number in (1, 8):
    figure = plots.reliability({str(label): bins for label in range(number)})
    upper, _ = draws(figure)
    assert upper.get_legend() is None
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [label[0] for label in labels[:number]] == [str(label) for label in range(number)]
    assert {"perfectly calibrated", "fewer than 20 examples", "20 examples"} < set(labels)
  with pytest.raises(ValueError, match="curves"):
    plots.reliability({})


def test_equilibrium_shows_theory_and_what_was_measured():
  g, rho = np.linspace(0, 1, 11), np.linspace(0.2, 0.8, 11)
  (axis,) = draws(
    dropmax_plots.equilibrium(g, rho, measured=(np.array([[0.1, 0.2]]), np.array([[0.3, 0.4]])))
  )
  found = {line.get_label(): line for line in axis.lines}
  np.testing.assert_array_equal(found["equilibrium of KL and entropy"].get_ydata(), rho)
  np.testing.assert_array_equal(found["measured: one example and class"].get_xdata(), [0.1, 0.2])
  assert [text.get_text() for text in axis.texts] == ["0.200", "0.800"]
  with pytest.raises(ValueError, match="retain"):
    dropmax_plots.equilibrium(g, rho[:3])


def test_samples_show_their_mean_and_percentiles():
  samples = np.random.default_rng(0).uniform(0.2, 0.6, 1000)
  (axis,) = draws(dropmax_plots.monte_carlo({"panel": {"0": samples, "1": samples / 2}}, xlabels=("noise",)))
  range_, mean = axis.lines[:2]
  np.testing.assert_allclose(range_.get_ydata(), np.percentile(samples, [5, 95]))
  np.testing.assert_allclose(mean.get_ydata(), [samples.mean()])
  assert (axis.get_xlabel(), axis.get_title(loc="left")) == ("noise", "panel")
  probs = np.random.default_rng(1).dirichlet(np.ones(4), 500)
  easy, hard = draws(dropmax_plots.predictive({"easy": probs, "hard": probs[:, ::-1]}))
  means = [line.get_ydata()[0] for line in easy.lines[1::2]]
  np.testing.assert_allclose(means, probs.mean(0))
  assert len(hard.get_xticks()) == 4
  for function, name in ((dropmax_plots.monte_carlo, "panels"), (dropmax_plots.predictive, "examples")):
    with pytest.raises(ValueError, match=name):
      function({})


def test_contours_change_where_the_predicted_class_does():
  axis = np.linspace(-1, 1, 41)
  right = np.broadcast_to((axis[None] + 1) / 2, (41, 41))
  probs = np.stack([1 - right, right], -1)
  panel, bar = draws(dropmax_plots.contours((axis, axis), {"a": probs}, np.zeros((2, 2)), np.array([0, 1])))
  boundaries = [c for c in panel.collections if c.get_paths() and len(c.get_paths()) == 1]
  crossing = np.concatenate([path.vertices for c in boundaries for path in c.get_paths()])
  assert np.abs(crossing[:, 0]).max() < 1e-6
  assert len(panel.lines) == 2
  np.testing.assert_allclose(np.sort(bar.get_yticks()), [0.5, 0.6, 0.7, 0.8, 0.9, 1])
  thirds = np.concatenate([probs, np.zeros((41, 41, 1))], -1)
  *_, bar = draws(dropmax_plots.contours((axis, axis), {"a": thirds}, np.zeros((2, 2)), np.array([0, 1])))
  np.testing.assert_allclose(np.sort(bar.get_yticks()), [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1])
  with pytest.raises(ValueError, match="probs"):
    dropmax_plots.contours((axis, axis), {}, np.zeros((2, 2)), np.array([0, 1]))
