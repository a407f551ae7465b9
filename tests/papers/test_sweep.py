"""The figure of errors against the number of groups."""

import numpy as np
import pytest

from papers.group_softmax._sweep import sweep


def test_sweep_draws_means_intervals_and_the_reference():
  runs = lambda *errors: {"error": errors, "nll": [e / 10 for e in errors]}
  series = {
    "I sorted": {2: runs(0.19, 0.2, 0.21), 8: runs(0.2, 0.2, 0.2)},
    "II sorted": {2: runs(0.4, 0.4, 0.4), 16: runs(0.5, 0.7, 0.6)},
  }
  metrics = {"error": ("error (%)", 100), "nll": ("NLL", 1)}
  figure = sweep(series, ("softmax", runs(0.2, 0.4)), metrics, xlabel="groups", title="t")
  assert [axis.get_title(loc="left") for axis in figure.axes] == ["error (%)", "NLL"]
  first = figure.axes[0]
  lines = {line.get_label(): line for line in first.get_lines() if not line.get_label().startswith("_")}
  np.testing.assert_allclose(lines["softmax"].get_ydata(), 30)
  found = {container.get_label(): container for container in first.containers}
  assert list(found) == list(series)
  np.testing.assert_array_equal(first.get_xticks(), [2, 8, 16])
  for label, means, values in (("I sorted", (20, 20), (2, 8)), ("II sorted", (40, 60), (2, 16))):
    line, _, (bars,) = found[label].lines
    np.testing.assert_allclose(line.get_ydata(), means)
    np.testing.assert_allclose(line.get_xdata(), values, rtol=0.05)
    low, high = np.array([segment[:, 1] for segment in bars.get_segments()]).T
    np.testing.assert_allclose((low + high) / 2, means)
  # Student's t of three runs: 4.303 standard errors.
  np.testing.assert_allclose((high - low)[1] / 2, 4.3027 * 10 / np.sqrt(3), rtol=1e-4)
  # One colour for a rule, one style for a kind.
  styles = [found[label].lines[0] for label in series]
  assert styles[0].get_color() == styles[1].get_color()
  assert styles[0].get_linestyle() != styles[1].get_linestyle()
  with pytest.raises(ValueError, match="series must have at least one entry, got none"):
    sweep({}, ("softmax", runs(0.2)), metrics, xlabel="groups")


def test_intervals_of_a_sweep_end_where_the_quantity_does():
  runs = {"a": {"test/error": [0.1, 0.3]}}
  figure = sweep({"a": {1.0: runs["a"]}}, ("none", runs["a"]), {"test/error": ("error", 100)}, xlabel="x")
  drawn = [
    vertex for each in figure.axes[0].collections for path in each.get_paths() for vertex in path.vertices
  ]
  assert np.array(drawn)[:, 1].min() == 0
  assert np.array(drawn)[:, 1].max() == 100
