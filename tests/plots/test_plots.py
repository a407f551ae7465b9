"""The figures hold the numbers they were given: lines, images and markers are read back from the axes."""

import io
import math
import pathlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from matplotlib.figure import Figure

from jaxreg import plots
from jaxreg.plots._curves import EQUILIBRIUM
from jaxreg.plots._lines import MAX_POINTS, NOT_FINITE

TERMS = ("nll", "kl", "neg_entropy", "auxiliary")
DIAGNOSTICS = (
  "retain_target",
  "retain_nontarget",
  "posterior_nontarget",
  "kept_nontarget",
  "logit_grad_norm",
)


def make_records(n=40, *, softmax=False, val=True, test=True, seed=0):
  """A run of `n` training records, an evaluation after every fourth, a test at the end."""
  rng = np.random.default_rng(seed)
  records = []
  for i in range(n):
    at = {"step": 10 * (i + 1), "epoch": (i + 1) / 4}
    names = ("nll",) if softmax else TERMS
    parts = {f"train/{name}": float(rng.uniform(0.1, 3)) for name in names}
    if not softmax:
      parts["train/neg_entropy"] *= -3
    record = at | parts | {"train/loss": sum(parts.values()), "train/accuracy": float(rng.uniform(0.5, 0.99))}
    record["train/learning_rate"] = 1e-3 * (1 - i / n)
    if not softmax:
      record |= {f"train/{name}": float(rng.uniform(0.05, 0.95)) for name in DIAGNOSTICS}
    records.append(record)
    if val and i % 4 == 3:
      records.append(at | {"val/error": float(rng.uniform(0.1, 0.4)), "val/nll": float(rng.uniform(0.1, 1))})
  if test:
    records.append({"step": 10 * n, "epoch": n / 4, "test/error": 0.0134, "test/nll": 0.052})
  return records


def column(records, name):
  found = [r for r in records if name in r]
  return np.array([r["epoch"] for r in found]), np.array([r[name] for r in found])


def lines(axis):
  return {x.get_label(): x for x in axis.lines if x.get_gid() != NOT_FINITE}


def crosses(axis):
  return {x.get_label(): x for x in axis.lines if x.get_gid() == NOT_FINITE}


def legend(axis):
  return [text.get_text() for text in axis.get_legend().get_texts()]


def texts(axis):
  return [text.get_text() for text in axis.texts]


def assert_line(drawn, epochs, values):
  np.testing.assert_allclose(drawn.get_xdata(), epochs)
  np.testing.assert_allclose(drawn.get_ydata(), values)


def render(figure):
  buffer = io.BytesIO()
  figure.savefig(buffer, dpi=30)
  return buffer.getvalue()


ALL = {
  "curves": plots.curves,
  "terms": lambda records, **kwargs: plots.terms(records, TERMS, **kwargs),
  "diagnostics": plots.diagnostics,
}


@pytest.mark.parametrize("plot", ALL.values(), ids=ALL.keys())
class TestAllOverRecords:
  @pytest.mark.thorough
  def test_renders_with_its_title(self, plot):
    figure = plot(make_records(), title="a run")
    assert isinstance(figure, Figure)
    assert figure.get_suptitle() == "a run"
    assert render(figure).startswith(b"\x89PNG")

  def test_without_records_says_so(self, plot):
    figure = plot([])
    assert all(texts(axis) == ["not recorded"] for axis in figure.axes)

  @pytest.mark.parametrize("softmax", [False, True])
  def test_one_record_shows_as_a_marker(self, plot, softmax):
    figure = plot(make_records(1, softmax=softmax, test=False))
    drawn = [x for axis in figure.axes for x in lines(axis).values() if len(x.get_xdata()) == 1]
    assert drawn or (softmax and plot is plots.diagnostics)
    assert all(x.get_marker() == "o" for x in drawn)

  def test_one_record_has_axes_from_zero(self, plot):
    for axis in plot(make_records(1, test=False)).axes:
      drawn = [x for x in lines(axis).values() if len(x.get_xdata()) == 1]
      assert axis.get_xlim() == pytest.approx((0, 1.1 * 0.25))
      low, high = axis.get_ylim()
      assert low <= 0 <= high
      assert all(low < x.get_ydata()[0] < high for x in drawn)

  @pytest.mark.thorough
  def test_nothing_finite(self, plot):
    records = [
      {k: math.nan if "/" in k else v for k, v in record.items()} for record in make_records(5, test=False)
    ]
    render(plot(records))

  def test_record_without_epoch_is_named(self, plot):
    records = make_records(3, val=False, test=False)
    del records[1]["epoch"]
    with pytest.raises(ValueError, match=r"with train/.* must have an epoch, got record 1 with"):
      plot(records)

  @pytest.mark.thorough
  def test_few_records_are_drawn_as_they_are(self, plot):
    assert plot(make_records(MAX_POINTS)).get_supxlabel() == ""

  def test_many_records_are_averaged_and_it_says_so(self, plot):
    figure = plot(make_records(2_000, val=False))
    assert "the mean of 10 consecutive" in figure.get_supxlabel()
    assert "10th to 90th percentile" in figure.get_supxlabel()
    assert max(len(x.get_xdata()) for axis in figure.axes[:2] for x in axis.lines) == MAX_POINTS


class TestCurves:
  def test_lines_are_the_records(self):
    records = make_records()
    nll, error, rate = plots.curves(records).axes
    assert_line(lines(nll)["train (sampled mask)"], *column(records, "train/nll"))
    assert_line(lines(nll)["val"], *column(records, "val/nll"))
    epochs, accuracy = column(records, "train/accuracy")
    assert_line(lines(error)["train"], epochs, 100 - 100 * accuracy)
    epochs, wrong = column(records, "val/error")
    assert_line(lines(error)["val"], epochs, 100 * wrong)
    assert_line(rate.lines[0], *column(records, "train/learning_rate"))
    assert nll.get_yscale() == error.get_yscale() == "log"

  def test_stars_mark_the_test(self):
    nll, error, _ = plots.curves(make_records()).axes
    assert_line(lines(nll)["test 0.052"], [10], [0.052])
    assert_line(lines(error)["test 1.34 %"], [10], [1.34])
    assert lines(error)["test 1.34 %"].get_marker() == "*"

  def test_only_the_likelihood_of_dropmax_is_under_masks(self):
    nll, error, _ = plots.curves(make_records(softmax=True, test=False)).axes
    assert legend(nll) == legend(error) == ["train", "val"]

  def test_softmax_without_accuracy_or_rate(self):
    records = [{"step": i, "epoch": i, "train/loss": 1 / i, "train/nll": 1 / i} for i in range(1, 5)]
    nll, error, rate = plots.curves(records).axes
    assert_line(lines(nll)["train"], *column(records, "train/nll"))
    assert texts(error) == texts(rate) == ["not recorded"]

  def test_not_finite_leaves_a_gap_and_a_cross(self):
    records = make_records(val=False, test=False)
    for i, value in ((3, math.nan), (5, math.inf), (9, None)):
      records[i]["train/nll"] = value
    nll = plots.curves(records).axes[0]
    epochs = np.array([r["epoch"] for r in records])
    assert_line(
      lines(nll)["train (sampled mask)"],
      epochs,
      [math.nan if i in (3, 5, 9) else r["train/nll"] for i, r in enumerate(records)],
    )
    np.testing.assert_array_equal(
      crosses(nll)["train (sampled mask): 3 not finite"].get_xdata(), epochs[[3, 5, 9]]
    )
    assert lines(nll)["train (sampled mask)"].get_markevery() == [4]  # alone between two gaps
    assert nll.get_yscale() == "log"

  def test_not_finite_test(self):
    records = [*make_records(test=False), {"step": 1, "epoch": 10, "test/nll": math.nan}]
    figure = plots.curves(records)
    assert "test nan" in legend(figure.axes[0])

  def test_zeros_stay_in_view(self):
    records = make_records(val=False, test=False)
    records[7]["train/accuracy"] = 1.0
    error = plots.curves(records).axes[1]
    assert error.get_yscale() == "symlog"
    assert error.get_ylim()[0] == 0
    assert error.get_yticks()[0] == 0

  def test_zeros_alone_and_negative_values_are_linear(self):
    records = [{"epoch": i, "train/nll": -1.0, "train/accuracy": 1.0} for i in range(3)]
    nll, error, _ = plots.curves(records).axes
    assert nll.get_yscale() == error.get_yscale() == "linear"
    assert error.get_ylim()[0] == 0

  def test_learning_rate_in_steps_is_log_with_their_ticks(self):
    records = [{"epoch": i, "train/learning_rate": 0.1 ** (1 + i // 10)} for i in range(30)]
    records[10]["train/learning_rate"] = 0.04  # the mean of a record across the switch
    rate = plots.curves(records).axes[2]
    assert rate.get_yscale() == "log"
    np.testing.assert_allclose(rate.get_yticks(), [1e-3, 1e-2, 1e-1])

  def test_averages_skip_what_is_not_finite(self):
    records = make_records(10 * MAX_POINTS, val=False, test=False)
    values = column(records, "train/nll")[1]
    values[[0, 4]] = records[0]["train/nll"] = records[4]["train/nll"] = math.nan
    for i in range(10, 20):
      values[i] = records[i]["train/nll"] = math.inf
    nll = plots.curves(records).axes[0]
    finite = np.where(np.isfinite(values), values, math.nan).reshape(MAX_POINTS, 10)
    keep = [i for i in range(MAX_POINTS) if i != 1]
    drawn = lines(nll)["train (sampled mask)"]
    np.testing.assert_allclose(drawn.get_ydata()[keep], np.nanmean(finite[keep], axis=1))
    assert math.isnan(drawn.get_ydata()[1])
    np.testing.assert_allclose(drawn.get_xdata(), column(records, "epoch")[0].reshape(MAX_POINTS, 10).mean(1))
    assert "train (sampled mask): 12 not finite" in crosses(nll)
    [band] = nll.collections
    low, high = np.quantile(finite[5], (0.1, 0.9))
    vertices = np.concatenate([path.vertices for path in band.get_paths()])
    np.testing.assert_allclose(np.unique(vertices[vertices[:, 0] == drawn.get_xdata()[5], 1]), [low, high])

  def test_last_block_may_be_short(self):
    records = make_records(MAX_POINTS + 1, val=False, test=False)
    drawn = lines(plots.curves(records).axes[0])["train (sampled mask)"]
    assert len(drawn.get_xdata()) == MAX_POINTS // 2 + 1
    assert drawn.get_ydata()[-1] == records[-1]["train/nll"]


class TestTerms:
  def test_lines_are_the_records(self):
    records = make_records()
    shared, total, *alone = plots.terms(records, TERMS).axes
    assert len(alone) == len(TERMS)
    assert_line(lines(total)["loss"], *column(records, "train/loss"))
    assert_line(lines(shared)["loss (sum)"], *column(records, "train/loss"))
    for name, axis in zip(TERMS, alone):
      assert axis.get_title(loc="left") == name
      assert_line(lines(axis)[name], *column(records, f"train/{name}"))
      assert_line(lines(shared)[name], *column(records, f"train/{name}"))
      assert lines(axis)[name].get_color() == lines(shared)[name].get_color()

  def test_scale_follows_range_and_sign(self):
    records = [{"epoch": i, "train/a": 10.0**-i, "train/b": 1.0 + i, "train/loss": -1.0} for i in range(4)]
    shared, total, a, b = plots.terms(records, ("a", "b")).axes
    assert [axis.get_yscale() for axis in (shared, total, a, b)] == ["linear", "linear", "log", "linear"]

  @pytest.mark.thorough
  @pytest.mark.parametrize("count", [0, 2, 3, 5, 7])
  def test_any_number(self, count):
    names = [f"term{i}" for i in range(count)]
    records = [{"epoch": i, "train/loss": 1.0} | {f"train/{name}": 1.0 for name in names} for i in range(3)]
    assert len(plots.terms(records, names).axes) == 2 + count

  def test_missing_term_says_so(self):
    *_, alone = plots.terms(make_records(softmax=True), ("nll", "kl")).axes
    assert texts(alone) == ["not recorded"]

  def test_crosses_where_not_finite(self):
    records = make_records()
    records[2]["train/kl"] = math.nan
    shared, _, _, kl, *_ = plots.terms(records, TERMS).axes
    np.testing.assert_array_equal(crosses(kl)["kl: 1 not finite"].get_xdata(), [records[2]["epoch"]])
    assert not crosses(shared)

  def test_crosses_do_not_choose_the_scale(self):
    records = [{"epoch": i, "train/kl": value} for i, value in enumerate([1.0, math.nan, 2.0])]
    assert plots.terms(records, ["kl"]).axes[2].get_yscale() == "linear"

  def test_a_string_is_no_sequence_of_names(self):
    with pytest.raises(TypeError, match="the string 'nll'"):
      plots.terms([], "nll")


class TestDiagnostics:
  def test_lines_are_the_records(self):
    records = make_records()
    retain, masks, gradient = plots.diagnostics(records).axes
    assert_line(lines(retain)["target"], *column(records, "train/retain_target"))
    assert_line(lines(retain)["non-targets, mean"], *column(records, "train/retain_nontarget"))
    assert_line(lines(masks)["posterior g"], *column(records, "train/posterior_nontarget"))
    assert_line(lines(masks)["masks kept (z > 1/2)"], *column(records, "train/kept_nontarget"))
    assert_line(lines(gradient)["gradient"], *column(records, "train/logit_grad_norm"))
    assert retain.get_ylim() == (0, 1)
    assert gradient.get_yscale() == "log"

  def test_equilibrium_minimises_kl_minus_entropy(self):
    rho = np.linspace(1e-6, 1 - 1e-6, 2_000_001)
    objective = -np.log(rho) + rho * np.log(rho) + (1 - rho) * np.log1p(-rho)
    assert abs(rho[objective.argmin()] - EQUILIBRIUM) < 2e-6
    drawn = lines(plots.diagnostics(make_records()).axes[0])
    for label, level in (("equilibrium 0.782", 0.782188), ("equilibrium 0.218", 0.217812)):
      np.testing.assert_allclose(drawn[label].get_ydata(), level, atol=1e-9)
      assert drawn[label].get_linestyle() == "--"

  def test_masks_all_dropped(self):
    records = [r | {"train/kept_nontarget": 0.0} for r in make_records(val=False, test=False)]
    figure = plots.diagnostics(records)
    assert figure.axes[1].get_ylim()[0] == 0


def make_arrays(n=60, classes=10, *, seed=0, right=None):
  rng = np.random.default_rng(seed)
  logits = rng.normal(size=(n, classes))
  labels = rng.integers(classes, size=n)
  if right is not None:
    logits[np.arange(n), labels] = 10 * right
  log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
  return rng.uniform(size=(n, classes)), rng.uniform(size=(n, classes)), labels, log_probs


def image(axis):
  [drawn] = axis.images
  return np.asarray(drawn.get_array().filled(np.nan))


def row_names(axis):
  return [tick.get_text() for tick in axis.get_yticklabels()]


class TestRetainMaps:
  def test_easiest_are_the_most_confident_right_ones(self):
    retain, posterior, labels, log_probs = make_arrays(300)
    easy = plots.retain_maps(retain, posterior, labels, log_probs).axes[0]
    expected = []
    for k in range(10):
      right = [i for i in range(300) if labels[i] == k == log_probs[i].argmax()]
      expected += sorted(right, key=lambda i: -log_probs[i, k])[:1]
    np.testing.assert_array_equal(image(easy), retain[expected])
    assert row_names(easy) == [str(labels[i]) for i in expected]

  def test_most_difficult_are_wrong_then_unsure(self):
    retain, posterior, labels, log_probs = make_arrays(30, 3)
    hard = plots.retain_maps(retain, posterior, labels, log_probs, rows=25).axes[1]
    wrong = [i for i in range(30) if labels[i] != log_probs[i].argmax()]
    rest = [i for i in range(30) if labels[i] == log_probs[i].argmax()]
    assert len(wrong) < 25
    truth = lambda i: log_probs[i, labels[i]]
    expected = (sorted(wrong, key=truth) + sorted(rest, key=truth))[:25]
    np.testing.assert_array_equal(image(hard), retain[expected])
    names = [str(labels[i]) if i in rest else f"{labels[i]} → {log_probs[i].argmax()}" for i in expected]
    assert row_names(hard) == names

  @pytest.mark.parametrize("classes", [10, pytest.param(100, marks=pytest.mark.thorough)])
  def test_marks_are_at_truth_and_prediction(self, classes):
    retain, posterior, labels, log_probs = make_arrays(400, classes)
    _, hard, _, q, *_ = plots.retain_maps(retain, posterior, labels, log_probs).axes
    for axis, values in ((hard, retain), (q, posterior)):
      o, x = lines(axis)["truth"], lines(axis)["prediction"]
      assert (o.get_marker(), x.get_marker()) == ("o", "x")
      for mark in (o, x):
        np.testing.assert_array_equal(np.round(mark.get_ydata()), np.arange(10))
      # Which examples they are is read off the image.
      rows = [int(np.flatnonzero((retain == row).all(axis=1))[0]) for row in image(hard)]
      np.testing.assert_array_equal(o.get_xdata(), labels[rows])
      np.testing.assert_array_equal(x.get_xdata(), log_probs[rows].argmax(axis=1))
      others = np.arange(classes) != labels[rows][:, None]
      np.testing.assert_array_equal(image(axis)[others], values[rows][others])

  def test_posterior_of_the_target_is_one(self):
    arrays = make_arrays()
    kept = arrays[1].copy()
    q = plots.retain_maps(*arrays).axes[3]
    truth = lines(q)["truth"].get_xdata()
    np.testing.assert_array_equal(image(q)[np.arange(10), truth], 1)
    np.testing.assert_array_equal(arrays[1], kept)

  def test_means_of_each_true_class(self):
    retain, posterior, labels, log_probs = make_arrays(200)
    labels[labels == 3] = 4
    means = plots.retain_maps(retain, posterior, labels, log_probs).axes[2]
    for k in range(10):
      expected = np.full(10, np.nan) if k == 3 else retain[labels == k].mean(axis=0)
      np.testing.assert_allclose(image(means)[k], expected)
    assert means.get_title(loc="left").endswith("(red: no value)")

  def test_values_are_printed_for_at_most_ten_classes(self):
    retain, *rest = make_arrays(100)
    axes = plots.retain_maps(retain, *rest).axes
    for axis in axes[:4]:
      expected = [f"{value:.2f}".removeprefix("0") for value in image(axis).ravel()]
      assert texts(axis) == expected
    assert not any(texts(axis) for axis in plots.retain_maps(*make_arrays(100, 11)).axes[:4])

  def test_class_names(self):
    names = [f"name{k}" for k in range(10)]
    retain, posterior, labels, log_probs = make_arrays()
    _, hard, means, *_ = plots.retain_maps(retain, posterior, labels, log_probs, class_names=names).axes
    assert row_names(means) == names
    assert [tick.get_text() for tick in hard.get_xticklabels()] == names
    assert row_names(hard)[0].startswith("name")

  def test_more_classes_than_rows(self):
    retain, posterior, labels, log_probs = make_arrays(500, 100, right=1)
    easy = plots.retain_maps(retain, posterior, labels, log_probs, rows=7).axes[0]
    confidence = log_probs[np.arange(500), labels]
    best = {}
    for i in np.argsort(-confidence):
      best.setdefault(labels[i], i)
    assert row_names(easy) == [str(k) for k in sorted(list(best)[:7])]
    np.testing.assert_array_equal(image(easy), retain[[best[k] for k in sorted(list(best)[:7])]])

  def test_fewer_examples_than_rows_and_classes(self):
    easy, hard, means, q, _ = plots.retain_maps(*make_arrays(3, right=1)).axes
    assert len(image(easy)) <= 3
    assert image(hard).shape == image(q).shape == (3, 10)
    assert image(means).shape == (10, 10)

  def test_all_right(self):
    hard = plots.retain_maps(*make_arrays(right=1)).axes[1]
    np.testing.assert_array_equal(lines(hard)["truth"].get_xdata(), lines(hard)["prediction"].get_xdata())
    assert not any("→" in name for name in row_names(hard))

  def test_all_wrong(self):
    figure = plots.retain_maps(*make_arrays(right=-1))
    assert texts(figure.axes[0]) == ["no example is classified rightly"]

  @pytest.mark.thorough
  def test_not_finite(self):
    retain, posterior, labels, log_probs = make_arrays(10)
    retain[0, 0] = posterior[1, 2] = math.nan
    figure = plots.retain_maps(retain, posterior, labels, log_probs)
    assert figure.axes[1].get_title(loc="left").endswith("(red: no value)")
    assert np.isnan(image(figure.axes[1])).sum() == 1
    render(figure)

  def test_nan_is_not_predicted(self):
    retain, posterior, labels, log_probs = make_arrays(10, right=1)
    log_probs[np.arange(10), (labels + 1) % 10] = math.nan
    hard = plots.retain_maps(retain, posterior, labels, log_probs).axes[1]
    np.testing.assert_array_equal(lines(hard)["truth"].get_xdata(), lines(hard)["prediction"].get_xdata())

  @pytest.mark.parametrize(
    ("change", "error", "message"),
    [
      ({"labels": np.zeros(60)}, TypeError, "labels must be integers, got float64"),
      ({"labels": np.zeros(5, int)}, ValueError, r"labels must have shape \(60,\), got \(5,\)"),
      ({"labels": np.full(60, 10)}, ValueError, r"labels must lie in \[0, 10\), got 10 to 10"),
      ({"labels": np.full(60, -1)}, ValueError, "got -1 to -1"),
      ({"retain": np.zeros(60)}, ValueError, r"retain must be \[n, classes\]"),
      ({"retain": np.zeros((0, 10))}, ValueError, "not empty"),
      ({"posterior": np.zeros((60, 9))}, ValueError, r"posterior must have the shape of retain \(60, 10\)"),
      ({"log_probs": np.zeros((6, 10))}, ValueError, "log_probs must have the shape of retain"),
      ({"class_names": ["a"]}, ValueError, "one name for each of 10 classes, got 1"),
      ({"rows": 0}, ValueError, "rows must lie in"),
    ],
  )
  def test_bad_arguments(self, change, error, message):
    arguments = dict(zip(("retain", "posterior", "labels", "log_probs"), make_arrays())) | change
    with pytest.raises(error, match=message):
      plots.retain_maps(**arguments)


@pytest.mark.thorough
def test_works_in_threads():
  with ThreadPoolExecutor(3) as pool:
    pngs = list(pool.map(lambda _: render(plots.diagnostics(make_records(8))), range(3)))
  assert len(set(pngs)) == 1


def test_never_imports_pyplot():
  sources = list(pathlib.Path(plots.__file__).parent.glob("*.py"))
  assert len(sources) > 4
  for source in sources:
    imports = [x for x in source.read_text().splitlines() if x.lstrip().startswith(("import ", "from "))]
    assert not any("pyplot" in x or "pylab" in x for x in imports), source


@pytest.mark.thorough
def test_a_comparison_of_many_rows_fits_on_a_screen():
  """Eighty rows are as high as two screens at most, and every name is drawn."""
  rng = np.random.default_rng(0)
  runs = lambda: {"test/error": rng.random(3), "test/nll": rng.random(3), "test/ece": rng.random(3)}
  rows = {f"row {number}": runs() for number in range(81)}
  figure = plots.comparison(rows)
  assert figure.get_figheight() * 120 < 2000
  figure.canvas.draw()
  boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
  assert len(boxes) == 81
  heights = sorted(box.y0 for box in boxes)
  assert min(np.diff(heights)) > 0.8 * boxes[0].height  # the names do not lie on each other


def test_intervals_end_where_the_quantity_does():
  """Two runs of 10 and 30 % error have an interval from -107 to 147 %."""
  runs = {"a": {"test/error": [0.1, 0.3], "test/nll": [0.1, 0.2], "test/ece": [0.5, 0.9]}}
  for axis, ends in zip(plots.comparison(runs).axes, ((0, 100), (0, None), (0, 100)), strict=True):
    (bars,) = axis.collections
    low, high = bars.get_segments()[0][:, 0]
    assert low == ends[0]
    assert high == ends[1] or ends[1] is None
  records = [{"epoch": e, "val/error": 0.5, "val/error_ci95": 6.4, "val/nll": 0.5} for e in (1, 2, 3)]
  _, error, _ = plots.curves(records).axes
  (band,) = error.collections
  heights = band.get_paths()[0].vertices[:, 1]
  assert heights.max() == 100
  assert heights.min() == 5  # a decade below the line, because the axis may be logarithmic
  stars = plots.curves([{"epoch": 1, "test/error": 0.1097, "test/error_ci95": 0.1941}]).axes[1]
  assert stars.get_legend_handles_labels()[1] == ["test 11 [0, 30.4] %"]


def test_the_bar_of_a_run_has_the_shares_of_its_time():
  seconds = {"steps": 60.0, "compile": 30.0, "save": 0.0, "repeated": 10.0}
  run = {"share": 0.6, "starts": 2, "wall_seconds": 100.0, "seconds": seconds}
  figure = plots.goodput({"dropmax": run, "softmax": {**run, "starts": 1}}, title="runs")
  (axis,) = figure.axes
  drawn = [bar for bar in axis.patches if bar.get_width()]
  assert [(bar.get_x(), bar.get_width()) for bar in drawn] == [(0, 60), (60, 30), (90, 10)] * 2
  assert texts(axis) == ["60", "30", "10"] * 2
  assert axis.get_yticklabels()[0].get_text() == "DropMax\n100 s, 2 starts\ngoodput 60%"
  assert axis.get_yticklabels()[1].get_text() == "softmax\n100 s\ngoodput 60%"
  (legend,) = figure.legends
  assert [text.get_text() for text in legend.get_texts()] == ["steps that count", "compile", "repeated steps"]
  render(figure)
  with pytest.raises(ValueError, match="runs must have at least one entry, got none"):
    plots.goodput({})
