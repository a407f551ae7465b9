"""Calibration errors: from sums per bin, and smoothed without bins."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_count, check_wide
from jaxreg._errors import ArgumentError
from jaxreg._sharding import gathered, partitioned, varying_like
from jaxreg._sums import segment_sums
from jaxreg.calibration._weights import Examples, predictions
from jaxreg.typing import Array

GRID = 8192  # intervals of the confidence in `smooth_ece`
HALVINGS = 24  # of the interval of its width


class Bins(NamedTuple):
  """Sums over the examples of each bin, `[..., num_bins]`; `correct / count` is a bin's accuracy.

  Attributes:
    confidence: the sum of the confidences.
    correct: the number of right predictions.
    count: the number of examples.
  """

  confidence: Array
  correct: Array
  count: Array


def ece_bins(
  log_probs: ArrayLike,
  labels: ArrayLike,
  *,
  num_bins: int = 15,
  kind: Literal["width", "mass", "classwise"] = "width",
  weights: ArrayLike | None = None,
  where: ArrayLike | None = None,
) -> Bins:
  r"""Computes the sums per bin of the confidence that `ece` needs.

  .. math:: \text{width: bin } m \text{ of } M \text{ holds confidences in }
    \Bigl(\tfrac{m - 1}{M}, \tfrac mM\Bigr], \qquad
    \text{mass: the } i\text{-th of } n \text{ is in bin } \lfloor M (i + \tfrac12) / n \rfloor

  `width` has equally wide bins. Their sums merge by addition: the ECE of a batch is biased, and a mean of
  batch ECEs is not the ECE. `classwise` has such bins of each class's probability instead of the largest one,
  `correct` then counts the examples of the class, and the mean of `ece` is the classwise ECE. `mass` has bins
  of equal mass, for the adaptive ECE; an example of weight `w` counts as `w` examples, all in the bin of
  their middle. Its edges depend on all predictions, so its sums do not merge: the whole set must be given at
  once. Equal confidences may fall into several of its bins, in their given order, and every device sorts all
  confidences.

  Args:
    log_probs, labels, weights, where: as in `nll`.
    num_bins: `M`.
    kind: the bins; static.

  Returns:
    `Bins` of `[num_bins]`, in order of rising confidence, or `[classes, num_bins]` for `classwise`; for a
    traced label out of range the first two, and so the ECE, are NaN.

  Example:
    >>> bins = ece_bins(jnp.log(jnp.array([[0.75, 0.25]])), jnp.array([0]), num_bins=2)
    >>> bins.confidence
    Array([0.  , 0.75], dtype=float32)

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017.
    Nixon et al., `Measuring Calibration in Deep Learning`, 2019, section 3 (`mass`, `classwise`).
  """
  check_count(num_bins, "num_bins")
  check_choice(kind, "kind", ("width", "mass", "classwise"))
  examples = predictions(log_probs, labels, weights, where)
  if kind == "classwise":
    return _classwise(examples, num_bins)
  if kind == "mass":
    return _equal_mass(examples, num_bins, weighted=weights is not None or where is not None)
  confidence, correct = _answers(examples)
  index = _bin_index(confidence, num_bins).ravel()

  def add_up(x):
    return segment_sums(x.ravel(), index, num_bins)

  return Bins(
    add_up(examples.weights * confidence), add_up(examples.weights * correct), add_up(examples.counts)
  )


def ece(bins: Bins, *, norm: Literal["l1", "l2", "max"] = "l1", debiased: bool = False) -> Array:
  r"""Computes the expected calibration error from merged bins, in [0, 1], or another norm of the gaps.

  .. math:: \text{l1: } \sum_m \frac{n_m}{n} \bigl|a_m - c_m\bigr|, \quad
    \text{l2: } \sqrt{\sum_m \frac{n_m}{n} (a_m - c_m)^2}, \quad
    \text{max: } \max_m \bigl|a_m - c_m\bigr|, \qquad
    \text{debiased: } (a_m - c_m)^2 - \frac{a_m (1 - a_m)}{n_m - 1}

  Here `a` is the accuracy of a bin and `c` its mean confidence. `max` is the maximum calibration error, MCE:
  one bin with few examples, which has a large gap by chance, is enough for it. Chance raises all of them.
  With `debiased`, the square of `l2` is without bias except where it would be negative and becomes 0; bins of
  one example then do not count.

  Args:
    bins: sums `[..., num_bins]` from `ece_bins`.
    norm: how the gaps of the bins are added; static.
    debiased: subtract from each squared gap what the chance of `n_m` labels adds; for `l2`. A weight counts
      as that many examples.

  Returns:
    `[...]`, in at least float32; NaN for no examples.

  Example:
    >>> bins = Bins(confidence=jnp.array([3.0]), correct=jnp.array([1.0]), count=jnp.array([4.0]))
    >>> ece(bins), ece(bins, norm="l2", debiased=True)  # 1/2, and sqrt(1/4 - 1/16)
    (Array(0.5, dtype=float32), Array(0.4330127, dtype=float32))

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017.
    Kumar, Liang and Ma, `Verified Uncertainty Calibration`, 2019, section 5 (`debiased`).
  """
  check_choice(norm, "norm", ("l1", "l2", "max"))
  if debiased and norm != "l2":
    raise ArgumentError("debiased", f"needs norm='l2', got norm={norm!r}")
  confidence, correct, count = (check_wide(x, name) for name, x in zip(Bins._fields, bins, strict=True))
  total = count.sum(axis=-1)
  total = jnp.where(total == 0, jnp.nan, total)
  if norm == "l1":
    return jnp.abs(correct - confidence).sum(axis=-1) / total
  gaps = jnp.where(count > 0, (correct - confidence) / jnp.where(count > 0, count, 1), 0)
  if norm == "max":
    # On a CPU, compiled code may drop NaN from a maximum.
    unknown = jnp.isnan(gaps).any(axis=-1) | jnp.isnan(total)
    return jnp.where(unknown, jnp.nan, jnp.abs(gaps).max(axis=-1))
  squares = jnp.square(gaps)
  if debiased:
    enough = count > 1
    accuracy = correct / jnp.where(count > 0, count, 1)
    chance = accuracy * (1 - accuracy) / jnp.where(enough, count - 1, 1)
    squares = jnp.where(enough, squares - chance, jnp.where(jnp.isnan(squares), jnp.nan, 0))
  square = (count * squares).sum(axis=-1) / total
  return jnp.sqrt(jnp.where(square < 0, 0, square))


def smooth_ece(
  log_probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None, where: ArrayLike | None = None
) -> Array:
  r"""Computes SmoothECE: a calibration error without bins, whose smoothing chooses its own width.

  .. math:: \operatorname{smECE}_\sigma
    = \int_0^1 \Bigl| \frac1n \sum_i (y_i - c_i) \, K_\sigma(t, c_i) \Bigr| \, dt, \qquad
    \operatorname{smECE} = \sup \{ \sigma : \operatorname{smECE}_\sigma \ge \sigma \}

  Here `c` is the confidence, `y` is 1 for a right answer, and `K` a Gaussian kernel, reflected at 0 and 1. A
  small change of the confidences changes it little, unlike the ECE, whose bins have edges. It needs all
  examples at once, and sums them on a grid of 8193 points, whose distance limits the result below 0.001.

  Args:
    log_probs, labels, weights, where: as in `nll`, of all predictions.

  Returns:
    A scalar in [0, 1], float32 or wider; NaN for no examples or a traced label out of range.

  Example:
    >>> log_probs = jnp.log(jnp.array([[0.9, 0.1]] * 5))  # right in 3 of 5
    >>> print(f"{smooth_ece(log_probs, jnp.array([0, 0, 0, 1, 1])):.3f}")
    0.300

  References:
    Blasiok and Nakkiran, `Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing`, 2024.
  """
  examples = predictions(log_probs, labels, weights, where)
  confidence, correct = _answers(examples)
  residual = (examples.weights * (correct - confidence)).ravel()
  # Each residual is shared by the two nearest points, so that the grid keeps the first moment.
  place = confidence.ravel() * GRID
  low = jnp.clip(place.astype(jnp.int32), 0, GRID - 1)
  share = place - low
  residual, low, share = (gathered(x) for x in (residual, low, share))
  sums = segment_sums(residual * (1 - share), low, GRID + 1) + segment_sums(
    residual * share, low + 1, GRID + 1
  )
  total = examples.counts.sum()
  return _fixed_width(sums / jnp.where(total > 0, total, jnp.nan))


@jax.jit  # without it, each eager call would compile the loop
def _fixed_width(residuals: Array) -> Array:
  """Finds the width that is the integral of the absolute residuals `[GRID + 1]`, smoothed with that width."""
  # The reflected kernel is that of the heat equation: it damps the cosines of the mirrored residuals. The
  # points at both ends are their own mirror images, and their residuals count twice.
  ends = jnp.zeros_like(residuals).at[jnp.array([0, GRID])].set(1)
  whole = residuals * (1 + ends)
  spectrum = jnp.fft.rfft(jnp.concatenate([whole, whole[-2:0:-1]]))
  rates = jnp.square(jnp.pi * jnp.arange(GRID + 1, dtype=residuals.dtype)) / 2
  steps = (1 - ends / 2).astype(residuals.dtype)  # of the trapezoidal rule; 1 / GRID cancels

  def error(width: Array) -> Array:
    smoothed = jnp.fft.irfft(spectrum * jnp.exp(-rates * jnp.square(width)), n=2 * GRID)[: GRID + 1]
    return (steps * jnp.abs(smoothed)).sum()

  def halve(_: int, interval: tuple[Array, Array]) -> tuple[Array, Array]:
    left, right = interval
    middle = (left + right) / 2
    wide = error(middle) < middle
    return jnp.where(wide, left, middle), jnp.where(wide, middle, right)

  zero = varying_like(jnp.zeros((), residuals.dtype), residuals)
  left, right = jax.lax.fori_loop(0, HALVINGS, halve, (zero, zero + 1))
  return jnp.where(jnp.isnan(residuals).any(), jnp.nan, (left + right) / 2)


def _answers(examples: Examples) -> tuple[Array, Array]:
  """Returns the confidence of each answer, and whether it is right."""
  log_probs = examples.log_probs
  return jnp.exp(log_probs.max(axis=-1)), log_probs.argmax(axis=-1) == examples.labels


def _classwise(examples: Examples, num_bins: int) -> Bins:
  """Computes the sums per class and bin of the class's probability."""
  log_probs, labels, weights, counts = examples
  num_classes = log_probs.shape[-1]
  probs = jnp.exp(log_probs).reshape(-1, num_classes)
  target = jax.nn.one_hot(labels.ravel(), num_classes, dtype=probs.dtype)
  index = _bin_index(probs, num_bins)
  weights, counts = weights.reshape(-1, 1), counts.reshape(-1, 1)
  sum_classes = jax.vmap(lambda x, i: segment_sums(x, i, num_bins), in_axes=1)

  def add_up(x):
    return partitioned(sum_classes, x, index, kept=slice(0))

  return Bins(add_up(weights * probs), add_up(weights * target), add_up(counts * jnp.ones_like(probs)))


def _equal_mass(examples: Examples, num_bins: int, *, weighted: bool) -> Bins:
  """Computes the sums in bins of equal mass."""
  confidence, correct, values, counts = (
    gathered(x).ravel() for x in (*_answers(examples), examples.weights, examples.counts)
  )
  order = jnp.argsort(confidence)
  counts = counts[order]
  if weighted:
    reached = counts.cumsum()
    # In this order whole numbers stay exact, so an example lies on an edge exactly or not at all.
    middle = num_bins * (reached - counts / 2) / jnp.where(reached[-1:] > 0, reached[-1:], 1)
    index = jnp.clip(middle.astype(jnp.int32), 0, num_bins - 1)
  else:
    index = jnp.searchsorted(_firsts(len(counts), num_bins), jnp.arange(len(counts)), side="right")

  def add_up(x):
    return segment_sums(x, index, num_bins)

  values = values[order]
  return Bins(add_up(values * confidence[order]), add_up(values * correct[order]), add_up(counts))


def _bin_index(probs: Array, num_bins: int) -> Array:
  """The index of each probability's bin `(low, high]`; 0 is in the first bin."""
  return jnp.clip(jnp.ceil(probs * num_bins).astype(jnp.int32) - 1, 0, num_bins - 1)


def _firsts(number: int, num_bins: int) -> np.ndarray:
  """The first example of each bin but the first: the least `i` with `M (i + 1/2) / n >= m`, in integers."""
  return np.array([-(-(2 * number * m - num_bins) // (2 * num_bins)) for m in range(1, num_bins)], np.int32)
