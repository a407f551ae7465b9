"""The figures of the lectures hold the numbers that they were given."""

import numpy as np
import pytest

from papers.adaptive_sgd import plots as adaptive_sgd
from papers.regularization import plots as regularization

HESSIAN, W_STAR = np.diag([1.0, 5.0]), np.array([1.0, 1.5])


def labelled(axis):
  return {line.get_label(): np.stack(line.get_data(), axis=-1) for line in axis.lines}


def test_penalty_contours_touch_the_ball_at_the_solution():
  path = np.array([[1.0, 1.5], [0.25, 1.0]])
  circle, diamond = regularization.penalty_contours(
    HESSIAN, W_STAR, {"two": (2, path), "one": (1, path)}
  ).axes
  for axis, order, norm in ((circle, 2, 1.0625), (diamond, 1, 1.25)):
    found = labelled(axis)
    size = (np.abs(found[f"$\\|w\\|_{order}$ of the solution"]) ** order).sum(axis=1)
    np.testing.assert_allclose(size, norm)
    np.testing.assert_array_equal(found["solutions as the penalty grows"], path)
    np.testing.assert_array_equal(found["(0.25, 1.00)"], path[-1:])
    np.testing.assert_array_equal(found["$w^*$, no penalty"], W_STAR[None])
    (lines,) = axis.collections
    touching = (0.75**2 + 5 * 0.5**2) / 2
    assert min(abs(lines.levels / touching - 1)) < 1e-12
  assert circle.get_aspect() == 1
  with pytest.raises(ValueError, match="panels"):
    regularization.penalty_contours(HESSIAN, W_STAR, {})
  with pytest.raises(ValueError, match="three: the order must be 1 or 2, got 3"):
    regularization.penalty_contours(HESSIAN, W_STAR, {"three": (3, path)})
  with pytest.raises(ValueError, match=r"hessian must have shape \(2, 2\), got \(3, 3\)"):
    regularization.penalty_contours(np.eye(3), W_STAR, {"two": (2, path)})


def test_stopping_path_joins_what_stands_for_each_other():
  descent, ridge = (
    np.array([[0.1, 0.2], [0.5, 1.0], [0.9, 1.4]]),
    np.array([[0.1, 0.1], [0.4, 0.9], [0.8, 1.3]]),
  )
  ratios, kept = np.array([0.1, 1, 10]), {"stopped": np.array([0.1, 0.6, 1]), "L2": np.array([0.1, 0.5, 0.9])}
  left, right = regularization.stopping_path(HESSIAN, W_STAR, descent, ridge, ratios, kept).axes
  pairs = [np.stack(line.get_data(), axis=-1) for line in left.lines if line.get_color() == "gray"]
  np.testing.assert_array_equal(pairs, np.stack([descent, ridge], axis=1))
  np.testing.assert_array_equal(labelled(left)["gradient descent, stopped"], descent)
  np.testing.assert_array_equal(labelled(right)["L2"], np.stack([ratios, kept["L2"]], axis=-1))
  assert right.get_xscale() == "log"
  with pytest.raises(ValueError, match=r"ridge must have shape \(3, 2\), got \(2, 2\)"):
    regularization.stopping_path(HESSIAN, W_STAR, descent, ridge[:2], ratios, kept)


def test_ellipses_show_the_factors():
  before, directions = (
    np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1], [1, 0]]),
    np.array([[0.6, -0.8], [0.8, 0.6]]),
  )
  panels = {"weak": (0.9 * before, [0.9, 0.95]), "strong": (0.5 * before, [0.25, 0.5])}
  figure = regularization.ellipses(before, directions, panels)
  strong = figure.axes[1]
  np.testing.assert_array_equal(labelled(strong)[r"$\tilde w$, L2 penalty"], 0.5 * before)
  np.testing.assert_allclose(labelled(strong)["eigenvector 1"], [[0, 0], [0.15, 0.2]])
  np.testing.assert_allclose(labelled(strong)["eigenvector 2"], [[0, 0], [-0.4, 0.3]])
  assert strong.get_title(loc="left") == "strong\ntimes 0.25 and 0.50"
  with pytest.raises(ValueError, match="panels"):
    regularization.ellipses(before, directions, {})


def test_a_band_is_the_mean_and_its_deviations():
  x, mean, std = np.linspace(-1, 1, 5), np.arange(5.0), np.full(5, 0.25)
  points = (np.array([0.0, 0.5]), np.array([1.0, 2.0]))
  (axis,) = adaptive_sgd.regression_band(
    x, mean, std, truth=-mean, points=points, draws=[mean, 2 * mean]
  ).axes
  wide, narrow = (c.get_paths()[0].vertices for c in axis.collections)
  for band, width in ((wide, 0.5), (narrow, 0.25)):
    for place, middle in zip(x, mean):
      np.testing.assert_allclose(np.unique(band[band[:, 0] == place, 1]), [middle - width, middle + width])
  found = labelled(axis)
  np.testing.assert_array_equal(found["mean of the ensemble"][:, 1], mean)
  np.testing.assert_array_equal(found["true function"][:, 1], -mean)
  np.testing.assert_array_equal(found["training points"], np.stack(points, axis=-1))
  np.testing.assert_array_equal([found["members"][:, 1], axis.lines[1].get_ydata()], [mean, 2 * mean])
  with pytest.raises(ValueError, match=r"truth must have the shape of x, \(5,\), got \(4,\)"):
    adaptive_sgd.regression_band(x, mean, std, truth=mean[1:], points=points)
  with pytest.raises(ValueError, match="std must not be negative"):
    adaptive_sgd.regression_band(x, mean, -std, truth=mean, points=points)


def test_adversarial_shows_images_signs_sums_and_errors():
  generator = np.random.default_rng(0)
  images, signs = generator.random((2, 4, 3)), np.sign(generator.normal(size=(2, 4, 3)))
  errors = {"FGSM": np.array([[1.0, 10.0, 90.0], [3.0, 14.0, 94.0]])}
  captions, eps = (["7", "2"], ["3", "5"]), np.array([0, 0.1, 0.2])
  figure = regularization.adversarial(images, signs, images / 2, captions, eps, errors, name="signs")
  shown = [axis for axis in figure.axes if axis.images]
  pictures = np.stack([axis.images[0].get_array() for axis in shown]).reshape(3, 2, 4, 3)
  np.testing.assert_array_equal(pictures, [images, signs, images / 2])
  assert [axis.get_title() for axis in shown] == ["7", "2", "", "", "3", "5"]
  (curve,) = (axis for axis in figure.axes if not axis.images)
  np.testing.assert_array_equal(curve.lines[0].get_ydata(), [2, 12, 92])
  band = curve.collections[0].get_paths()[0].vertices
  np.testing.assert_allclose(np.unique(band[band[:, 0] == 0, 1]), [2 - np.sqrt(2), 2 + np.sqrt(2)])
  with pytest.raises(ValueError, match=r"captions must fit images: \(2, 2\), got \(2, 1\)"):
    regularization.adversarial(images, signs, images, (["7", "2"], ["3"]), eps, errors, name="")


def test_features_are_scaled_one_by_one_in_rows():
  weights = np.arange(1.0, 25).reshape(3, 2, 4) * np.array([1, -10, 0.1])[:, None, None]
  values = {"plain": np.array([0.0, 0.2]), "dropout": np.array([0.5, 0.5, 0.8])}
  figure = adaptive_sgd.features({"units": weights}, {"activity": values, "correlation": values}, columns=2)
  panel, *histograms = figure.axes
  image = panel.images[0].get_array()
  assert image.shape == (6, 10)
  np.testing.assert_allclose(image[:2, :4], weights[0] / 8)
  np.testing.assert_allclose(image[:2, 5:9], weights[1] / 160)
  np.testing.assert_allclose(image[3:5, :4], weights[2] / 2.4)
  np.testing.assert_array_equal(image[:, [4, 9]], 1)
  np.testing.assert_array_equal(image[3:, 5:], 1)
  assert [axis.get_xlabel() for axis in histograms] == ["activity", "correlation"]
  labels = [text.get_text() for text in histograms[0].get_legend().get_texts()]
  assert labels == ["plain: mean 0.1", "dropout: mean 0.6"]
  with pytest.raises(ValueError, match="panels must have at least one"):
    adaptive_sgd.features({}, {"activity": values})
  with pytest.raises(ValueError, match=r"weights must be \[units, height, width\]"):
    adaptive_sgd.features({"units": weights[0]}, {"activity": values})


def test_errors_over_samples_have_their_spread():
  sampled, scaled = np.array([[4.0, 3.0, 2.0], [6.0, 3.0, 2.0]]), np.array([2.5, 3.5])
  (axis,) = adaptive_sgd.sample_error([1, 2, 4], {"error": (sampled, scaled)}).axes
  found = labelled(axis)
  np.testing.assert_array_equal(found["mean of M samples"], [[1, 5], [2, 3], [4, 2]])
  np.testing.assert_array_equal(found["weight scaling"][:, 1], 3)
  band = axis.collections[0].get_paths()[0].vertices
  np.testing.assert_allclose(np.unique(band[band[:, 0] == 1, 1]), [5 - np.sqrt(2), 5 + np.sqrt(2)])
  assert (axis.get_xscale(), axis.get_ylabel()) == ("log", "error")
  with pytest.raises(ValueError, match="panels"):
    adaptive_sgd.sample_error([1], {})
  with pytest.raises(ValueError, match=r"error must be \[runs, 3\] and \[runs\], got \(2, 3\) and \(1,\)"):
    adaptive_sgd.sample_error([1, 2, 4], {"error": (sampled, scaled[:1])})


def test_flat_minima_show_means_and_every_run():
  alphas, rise = np.array([-1.0, 0, 1]), np.array([[1.0, 0, 3], [3.0, 0, 5]])
  losses, traces = np.array([[1.0, 0.1], [2.0, 0.2]]), np.array([[10.0, 5.0], [20.0, 8.0]])
  both = lambda x: {"plain": x, "noise": x / 2}
  left, right = regularization.flat_minima(alphas, both(rise), both(losses), both(traces)).axes
  np.testing.assert_array_equal(labelled(left)["plain, 2 runs"][:, 1], [2, 0, 4])
  np.testing.assert_array_equal(labelled(left)["noise, 2 runs"][:, 1], [1, 0, 2])
  runs = [np.stack(line.get_data(), axis=-1) for line in right.lines[:2]]
  np.testing.assert_array_equal(runs, np.stack([losses, traces], axis=-1))
  np.testing.assert_array_equal(labelled(right)["noise"], [[0.05, 2.5], [0.1, 4]])
  with pytest.raises(ValueError, match="must have equal labels"):
    regularization.flat_minima(alphas, both(rise), both(losses), {"plain": traces})
  with pytest.raises(ValueError, match=r"plain must be \[runs, 3\]"):
    regularization.flat_minima(alphas, both(rise[:, 1:]), both(losses), both(traces))


def test_network_sizes_show_means_and_every_run():
  train, test = np.array([[0.1, 0.3], [0.0, 0.0]]), np.array([[0.2, 0.4], [0.1, 0.1]])
  losses = np.array([[1.0, 1.0], [0.1, 10.0]])
  left, right = adaptive_sgd.network_sizes([4, 8], train, test, losses).axes
  np.testing.assert_allclose(labelled(left)["training images"], [[4, 20], [8, 0]])
  np.testing.assert_allclose(labelled(left)["test images"], [[4, 30], [8, 10]])
  band = left.collections[0].get_paths()[0].vertices
  np.testing.assert_allclose(
    np.unique(band[band[:, 0] == 4, 1]), 20 + 100 * np.sqrt(0.02) * np.array([-1, 1])
  )
  assert left.get_xscale() == right.get_xscale() == "log"
  runs, means = right.lines[::2], right.lines[1::2]
  for place, (run, mean) in enumerate(zip(runs, means, strict=True)):
    np.testing.assert_array_equal(run.get_xdata(), losses[place])
    assert np.abs(run.get_ydata() - place).max() < 0.5
    np.testing.assert_allclose(mean.get_xdata(), losses[place].mean())
  assert [label.get_text() for label in right.get_yticklabels()] == ["4", "8"]
  assert [label.get_text() for label in right.get_xticklabels()] == ["0.1", "0.2", "0.5", "1", "2", "5", "10"]
  for wrong in ((np.array([4]), train, test, losses), ([4, 8], train[:, :1], test, losses)):
    with pytest.raises(ValueError, match=r"units must be \[sizes\], .* got"):
      adaptive_sgd.network_sizes(*wrong)


def test_curves_of_runs_have_their_spread_and_marks():
  values = {"one": [[1.0, 2.0], [3.0, 2.0]], "other": [[4.0, 4.0]]}
  (axis,) = regularization.seed_curves([0, 10], values, ylabel="NLL", marks={"stop": 5.0}, log=True).axes
  found = labelled(axis)
  np.testing.assert_array_equal(found["one"], [[0, 2], [10, 2]])
  np.testing.assert_array_equal(found["stop"][:, 0], 5)
  band = axis.collections[0].get_paths()[0].vertices
  np.testing.assert_allclose(np.unique(band[band[:, 0] == 0, 1]), [2 - np.sqrt(2), 2 + np.sqrt(2)])
  assert (axis.get_yscale(), axis.get_ylabel()) == ("log", "NLL")
  with pytest.raises(ValueError, match="values must have at least one label"):
    regularization.seed_curves([0, 10], {}, ylabel="NLL")
  with pytest.raises(ValueError, match="one must have shape"):
    regularization.seed_curves([0, 10], {"one": [[1.0]]}, ylabel="NLL")
