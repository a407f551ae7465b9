"""Digits on noise, and turned."""

import numpy as np
import pytest
from scipy import stats

from jaxreg.train.data import sources
from jaxreg.train.data.dataset import Split
from jaxreg.train.data.sources import rotate, vary
from jaxreg.train.data.subsets import Subset

TEN = Subset(per_class=10, drawn=False)


@pytest.fixture
def split():
  """One bright rectangle each, off the centre."""
  images = np.zeros((40, 28, 28, 1), np.uint8)
  images[:, 4:10, 12:22] = 200
  return Split(images, np.arange(40) % 10)


def test_quarter_turns_are_numpys(split):
  image = np.random.default_rng(0).integers(0, 256, (1, 28, 28, 1), np.uint8)
  turned = rotate(image.repeat(4, axis=0), np.array([0.0, 90, 180, 270]))
  for number in range(4):
    # Bytes are cut off, not rounded: an interpolated 6.9999 is 6.
    assert np.abs(turned[number].astype(int) - np.rot90(image[0], number)).max() <= 1


def test_angles_are_uniform_over_the_circle(split):
  images = np.repeat(split.inputs[:1], 500, axis=0)
  varied = vary(Split(images, np.zeros(500, int)), np.random.default_rng(1), rotation=True, background=False)
  rows, columns = np.mgrid[:28, :28] - 13.5
  mass = varied.inputs[..., 0] / varied.inputs[..., 0].sum((1, 2), keepdims=True)
  # The angle of the centre of mass, as a part of the circle.
  turns = np.arctan2((mass * rows).sum((1, 2)), (mass * columns).sum((1, 2))) / (2 * np.pi) % 1
  assert stats.kstest(turns, "uniform").pvalue > 0.01
  np.testing.assert_allclose(varied.inputs.sum((1, 2, 3)), images[0].sum(), rtol=0.05)


def test_the_background_is_uniform_noise_behind_the_digit(split):
  varied = vary(split, np.random.default_rng(2), rotation=False, background=True).inputs
  assert (varied >= split.inputs).all()
  behind = varied[split.inputs == 0]
  counts = np.bincount(behind, minlength=256)
  assert stats.chisquare(counts).pvalue > 0.01
  # On the digit noise shows only where it is brighter.
  on = varied[split.inputs > 0]
  assert (on == 200).mean() == pytest.approx(201 / 256, abs=0.03)


@pytest.mark.thorough
def test_mnist_varies_always_alike_and_keeps_its_labels(data_dir):
  plain = sources.idx(path=str(data_dir / "mnist"), subset=TEN)
  one, two = (
    sources.idx(path=str(data_dir / "mnist"), subset=TEN, rotation=True, background=True) for _ in range(2)
  )
  for name in ("train", "val", "test"):
    first, second, original = (getattr(data, name) for data in (one, two, plain))
    np.testing.assert_array_equal(first.inputs, second.inputs)
    np.testing.assert_array_equal(first.labels, original.labels)
    assert first.inputs.dtype == np.uint8
    assert (first.inputs != original.inputs).mean() > 0.1
  # Nor do two splits share their noise.
  assert (one.train.inputs[:50] != one.val.inputs[:50]).mean() > 0.1
