"""Scores of single examples, and how well they detect out-of-distribution examples and wrong answers.

All scores are larger for less usual examples. The entropy of a prediction, `losses.entropy`, is another.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._checks import check_log_probs, check_logits, check_option, check_wide, known_values, per_class
from jaxreg._log_odds import NEARLY_CERTAIN, error_log_odds, others_log_probs
from jaxreg._sharding import gathered, placed_like
from jaxreg._where import check_where, only_where
from jaxreg.calibration._weights import ceil_of, fraction_of, predictions
from jaxreg.typing import Array


@only_where()
def least_confidence(log_probs: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes 1 minus the largest probability: the usual score of out-of-distribution examples.

  .. math:: s(x) = 1 - \max_k p_k(x)

  Scores below the smallest float are 0 and tie: in float32, from a gap of about 90 between the logits on.

  Args:
    log_probs: `[..., classes]`, floating.
    where: `[...]`, bool: which examples count; the others have the score 0.

  Returns:
    `[...]`, in [0, 1 - 1 / classes], float32 or wider.

  Example:
    >>> least_confidence(jnp.log(jnp.array([[0.75, 0.25]]))).round(4)
    Array([0.25], dtype=float32)

  References:
    Hendrycks and Gimpel, `A Baseline for Detecting Misclassified and Out-of-Distribution Examples`, 2017.
  """
  log_probs = check_log_probs(log_probs, "log_probs")
  # 1 - exp loses the digits of a nearly certain prediction; the sum of the others would part ties elsewhere.
  others, top = jnp.exp(others_log_probs(log_probs)[..., 0]), log_probs.max(axis=-1)
  return jnp.where((others > 0) & (top > NEARLY_CERTAIN), others, -jnp.expm1(top))


@only_where()
def energy(logits: ArrayLike, *, temperature: ArrayLike = 1.0, where: ArrayLike | None = None) -> Array:
  r"""Computes the free energy of the logits; unlike a probability, it sees how large all logits are.

  .. math:: E(x) = -T \log \sum_k e^{z_k / T}, \qquad \lim_{T \to 0} E(x) = -\max_k z_k

  At `T = 0` it is the max-logit score.

  Args:
    logits: `[..., classes]`, floating. Log-probabilities would give 0 at `T = 1`: their sum is normalised.
    temperature: `T` >= 0, a scalar or `[...]`.
    where: `[...]`, bool: which examples count; the others have the score 0.

  Returns:
    `[...]`, float32 or wider.

  Example:
    >>> energy(jnp.zeros((1, 4)), temperature=0.5)  # -log(4) / 2
    Array([-0.6931472], dtype=float32)

  References:
    Liu et al., `Energy-based Out-of-distribution Detection`, 2020, Eq. 4.
    Hendrycks et al., `Scaling Out-of-Distribution Detection for Real-World Settings`, 2022 (the limit).
  """
  logits = check_logits(logits)
  check_option(temperature, "temperature", logits.shape[:-1], low=0)
  temperature = jnp.asarray(temperature, logits.dtype)
  positive = jnp.where(temperature > 0, temperature, 1)
  scaled = jax.nn.logsumexp(logits / per_class(positive, logits.dtype), axis=-1)
  return jnp.where(temperature == 0, -logits.max(axis=-1), -temperature * scaled)


def auroc(
  scores: ArrayLike,
  other_scores: ArrayLike,
  *,
  where: ArrayLike | None = None,
  other_where: ArrayLike | None = None,
) -> Array:
  r"""Computes the probability that an out-of-distribution example has a larger score than a usual one.

  .. math:: \Pr(s' > s) + \tfrac12 \Pr(s' = s)

  This is the area under the ROC curve. The two kinds of examples may have any numbers. scikit-learn's
  `roc_auc_score` gives the same on the host; this function is compiled, also inside a larger program. Every
  device sorts all scores, also of a sharded array.

  Args:
    scores: of usual examples, any shape, floating.
    other_scores: scores of out-of-distribution examples, any shape, floating.
    where, other_where: bool, of the shapes of the scores: which of them count.

  Returns:
    A scalar in [0, 1], float32 or wider; NaN if a score is NaN.

  Raises:
    ValueError: if one kind has no scores.

  Example:
    >>> auroc(jnp.array([0.1, 0.2, 0.3]), jnp.array([0.3, 0.4]))  # 5.5 of 6 pairs
    Array(0.9166667, dtype=float32)

  References:
    Hanley and McNeil, `The meaning and use of the area under a ROC curve`, 1982.
  """
  usual, number, _ = _sorted(scores, "scores", where)
  other, _, counted = _sorted(other_scores, "other_scores", other_where, "other_where")
  sides = (jnp.searchsorted(usual, other, side=side) for side in ("left", "right"))
  below = sum(jnp.minimum(side, number) for side in sides)
  # NaN is the last of the sorted scores.
  broken = jnp.isnan(usual[-1] + other[-1])
  return jnp.where(broken, jnp.nan, jnp.asarray(below, other.dtype).mean(where=counted) / (2 * number))


def fpr_at_tpr(
  scores: ArrayLike,
  other_scores: ArrayLike,
  *,
  tpr: float = 0.95,
  where: ArrayLike | None = None,
  other_where: ArrayLike | None = None,
) -> Array:
  r"""Computes the fraction of out-of-distribution examples that pass at a fixed pass rate of usual examples.

  .. math:: \Pr(s' \le t), \qquad t = s_{(\lceil r n \rceil)} \text{ of the usual scores, at the rate } r

  Args:
    scores, other_scores, where, other_where: as in `auroc`.
    tpr: the least share of usual examples that pass, in (0, 1]; static.

  Returns:
    A scalar in [0, 1], float32 or wider; NaN if a score is NaN.

  Example:
    >>> fpr_at_tpr(jnp.array([0.1, 0.2, 0.3, 0.9]), jnp.array([0.25, 0.4]), tpr=0.75)
    Array(0.5, dtype=float32)

  References:
    Liang, Li and Srikant, `Enhancing the Reliability of Out-of-distribution Image Detection`, 2018.
  """
  usual, number, _ = _sorted(scores, "scores", where)
  other, _, counted = _sorted(other_scores, "other_scores", other_where, "other_where")
  check_option(tpr, "tpr", (), low=0, high=1, open_low=True)
  threshold = usual[ceil_of(fraction_of(tpr), number, usual.size) - 1]
  broken = jnp.isnan(usual[-1] + other[-1]) | (jnp.asarray(number) == 0)
  return jnp.where(broken, jnp.nan, (other <= threshold).astype(other.dtype).mean(where=counted))


def _sorted(
  scores: ArrayLike, name: str, where: ArrayLike | None, where_name: str = "where"
) -> tuple[Array, int | Array, Array | None]:
  """Sorts the scores that count to the front; returns all, their number, and a mask of them (None: all)."""
  number = None
  if where is not None:
    counts = check_where(where, np.shape(scores), where_name)
    known = known_values(counts)
    if known is not None and not known.any():
      raise ValueError(f"{name} must have at least one score, got none that counts")
    scores, number = jnp.where(counts, scores, jnp.inf), jnp.asarray(counts).sum()
  scores = gathered(check_wide(scores, name)).ravel()
  if not scores.size:
    raise ValueError(f"{name} must have at least one score, got none")
  if number is None:
    return jnp.sort(scores), scores.size, None
  return jnp.sort(scores), number, jnp.arange(scores.size) < number


class RiskCoverage(NamedTuple):
  """The error of the most confident answers, as `risk_coverage` says."""

  coverage: Array
  risk: Array
  aurc: Array
  augrc: Array


def risk_coverage(
  log_probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None, where: ArrayLike | None = None
) -> RiskCoverage:
  r"""Computes the error among the most confident predictions, for every share that is answered.

  .. math:: R(c) = \frac{\sum_{i \le k} w_i 1[\hat y_i \ne y_i]}{\sum_{i \le k} w_i}, \quad
    c = \frac{\sum_{i \le k} w_i}{\sum_i w_i}, \qquad \mathrm{AURC} = \sum_k \frac{w_k R(c_k)}{\sum_i w_i},
    \quad \mathrm{AUGRC} = \int_0^1 c \, R(c) \, dc

  The examples are in the order of their confidence, the surest first; equal ones keep theirs. AUGRC is the
  mean share of all examples that are answered and wrong. It weighs every error alike, where AURC depends most
  on the surest ones. In it, equally sure examples are answered together. It needs all examples at once: every
  device sorts all of them.

  Args:
    log_probs, labels, weights, where: as in `nll`; an example of weight 0 comes last.

  Returns:
    A named tuple, float32 or wider; NaN for a traced label out of range: `coverage` `[n]`, the share of the
    examples that are answered, which rises to 1; `risk` `[n]`, the share of wrong ones among these; and the
    areas `aurc` and `augrc`, 0 for a classifier without errors and NaN without examples.

  Example:
    >>> log_probs = jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]))
    >>> risk_coverage(log_probs, jnp.array([0, 1, 1])).risk  # the second is wrong, and the least sure
    Array([0.        , 0.        , 0.33333334], dtype=float32)

  References:
    Geifman and El-Yaniv, `Selective Classification for Deep Neural Networks`, 2017.
    Geifman, Uziel and El-Yaniv, `Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers`, 2019.
    Traub et al., `Overcoming Common Flaws in the Evaluation of Selective Classification Systems`, 2024.
  """
  log_probs, labels, weights, counts = predictions(log_probs, labels, weights, where)
  doubt = jnp.where(counts != 0, error_log_odds(log_probs), jnp.inf)
  wrong = weights * (log_probs.argmax(axis=-1) != labels)
  ordered = gathered(doubt).ravel()
  order = jnp.argsort(ordered)
  wrong, counts = (gathered(x).ravel()[order] for x in (wrong, counts))
  answered, errors, total = jnp.cumsum(counts), jnp.cumsum(wrong), counts.sum()
  risk = errors / jnp.where(answered > 0, answered, 1)
  whole = jnp.where(total > 0, total, jnp.nan)
  aurc = (counts * risk).sum() / whole
  # The trapezoidal rule between distinct confidences, at whose ends `errors` is known.
  ordered, errors = ordered[order], jnp.concatenate([jnp.zeros_like(errors[:1]), errors])
  ends = (errors[jnp.searchsorted(ordered, ordered, side=side)] for side in ("left", "right"))
  augrc = (counts * sum(ends)).sum() / (2 * whole**2)
  total = jnp.where(total > 0, total, 1)
  return RiskCoverage(placed_like(answered / total, doubt), placed_like(risk, doubt), aurc, augrc)
