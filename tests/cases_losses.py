"""The contract's cases of `jaxreg.losses` that take what a classifier has, and what they should give.

The checks that compile a case anew for each way of running it are in the slow set (`test_contract.py`): these
losses are plain arithmetic along the last axis.
"""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import oracles
import scipy.stats
from contract import CASES as CLASSIC
from contract import LABELLED, LABELS, SCORES, SOFT, Case, Input

MARGIN = {
  "features": Input("real", "BF"),
  "kernel": Input("real", "FK"),
  "labels": LABELS,
}


def _entropy(a):
  p = oracles.softmax(a.logits)
  return -(p * np.log(p)).sum(-1)


def _focal(a, gamma):
  loss = oracles.cross_entropy(a.logits, a.labels)
  return (1 - np.exp(-loss)) ** gamma * loss


def _poly_loss(a, epsilon):
  loss = oracles.cross_entropy(a.logits, a.labels)
  return loss + epsilon * (1 - np.exp(-loss))


def _generalized(a, q):
  p = (oracles.softmax(a.logits) * oracles.one_hot(a.labels, a.logits.shape[-1])).sum(-1)
  return (1 - p**q) / q


def _active_passive(a, active, passive, normalized):
  """Sums the paper's terms, with the reverse cross-entropy `-sum_k p_k log y_k` at `log 0 = -4`."""
  p, y = oracles.softmax(a.logits), oracles.one_hot(a.labels, a.logits.shape[-1])
  loss = -(y * np.log(p)).sum(-1)
  reverse = -(p * np.where(y > 0, 0, -4)).sum(-1)
  return active * (loss / -np.log(p).sum(-1) if normalized else loss) + passive / 4 * reverse


def _forward_correction(a):
  """Takes the probability of the noisy label as the product of the softmax and the matrix."""
  noisy = oracles.softmax(a.logits) @ a.transitions
  return -np.log((noisy * oracles.one_hot(a.labels, noisy.shape[-1])).sum(-1))


def _pseudo_label(a, threshold):
  q = oracles.softmax(a.target_logits)
  return np.where(q.max(-1) >= threshold, oracles.cross_entropy(a.logits, q.argmax(-1)), 0)


def _unit(x, axis):
  x = np.where(np.abs(x) < np.finfo(np.float32).tiny, 0, x)  # subnormal numbers count as 0
  norm = np.sqrt((x**2).sum(axis, keepdims=True))
  return np.divide(x, norm, out=np.zeros_like(x), where=norm > 0)


def large_margin(a, weight):
  """Computes the equation class by class."""
  classes, losses = a.logits.shape[-1], []
  for logits, label in zip(a.logits.reshape(-1, classes), a.labels.reshape(-1), strict=True):
    log_q = np.log(oracles.softmax(np.delete(logits, label)))
    penalty = ((np.exp(log_q) - 1 / (classes - 1)) * log_q).sum()
    losses.append(oracles.cross_entropy(logits, label) + weight / 2 * penalty)
  return np.reshape(losses, a.labels.shape)


def _cosines(a):
  return _unit(a.features, -1) @ _unit(a.kernel, 0), oracles.one_hot(a.labels, a.kernel.shape[-1])


def _cosface(a, margin, scale):
  cosines, target = _cosines(a)
  return oracles.cross_entropy(scale * (cosines - margin * target), a.labels)


def _arcface(a, margin, scale):
  cosines, target = _cosines(a)
  angle = np.arccos(np.clip(cosines, -1, 1)) + margin
  psi = np.where(angle <= np.pi, np.cos(angle), -2 - np.cos(angle))
  psi = np.where((_unit(a.features, -1) ** 2).sum(-1, keepdims=True) > 0, psi, 0)
  return oracles.cross_entropy(scale * np.where(target > 0, psi, cosines), a.labels)


def tempered_probs(logits, t2):
  """Finds the normalizer by bisection: the sum falls with it, and is at least 1 at the largest logit."""
  if t2 == 1:
    return oracles.softmax(logits)
  exp_t = lambda x: (1 + (1 - t2) * x) ** (1 / (1 - t2))
  low = logits.max(-1, keepdims=True)
  high = low + (logits.shape[-1] ** (t2 - 1) - 1) / (t2 - 1)
  for _ in range(100):
    middle = (low + high) / 2
    above = exp_t(logits - middle).sum(-1, keepdims=True) > 1
    low, high = np.where(above, middle, low), np.where(above, high, middle)
  return exp_t(logits - high)


def bi_tempered(logits, labels, t1, t2):
  """The Bregman divergence between one-hot targets and the probabilities."""
  p, y = tempered_probs(logits, t2), oracles.one_hot(labels, logits.shape[-1])
  log_t = lambda x: np.log(x) if t1 == 1 else (x ** (1 - t1) - 1) / (1 - t1)
  fit = (y * (0 - log_t(p))).sum(-1)
  return fit - ((y ** (2 - t1)).sum(-1) - (p ** (2 - t1)).sum(-1)) / (2 - t1)


def _r_drop(a):
  p, q = oracles.softmax(a.logits), oracles.softmax(a.other_logits)
  return ((p * np.log(p / q)).sum(-1) + (q * np.log(q / p)).sum(-1)) / 2


def _jensen_shannon(a):
  """The entropy of the mean minus the mean entropy."""
  entropy = lambda p: -(p * np.log(p)).sum(-1)
  p = oracles.softmax(a.logits)
  return entropy(p.mean(-2)) - entropy(p).mean(-1)


def _distillation(a, temperature):
  p, q = oracles.softmax(a.teacher_logits / temperature), oracles.softmax(a.logits / temperature)
  return temperature**2 * (p * (np.log(p) - np.log(q))).sum(-1)


def _gaussian(a):
  return ((a.outputs - a.x) ** 2).reshape(a.x.shape[0], -1).sum(-1) / 2


def _bernoulli(a):
  likelihood = a.x * np.log(oracles.sigmoid(a.outputs)) + (1 - a.x) * np.log(oracles.sigmoid(-a.outputs))
  return -likelihood.reshape(a.x.shape[0], -1).sum(-1)


def _weighted(a):
  return {task: a.weights[task] * loss for task, loss in a.losses.items()}


def _uncertain(a):
  return {task: loss / np.exp(a.log_vars[task]) + a.log_vars[task] / 2 for task, loss in a.losses.items()}


def _binary(a, of=lambda loss, p: loss, logits=None, labels=None):
  """Averages `of(loss, probability)` over the answers yes and no, weighted by the label."""
  z, y = a.logits if logits is None else logits, a.labels if labels is None else labels
  losses = [np.logaddexp(0, -z), np.logaddexp(0, z)]
  return sum(share * of(loss, np.exp(-loss)) for share, loss in zip((y, 1 - y), losses))


def _binary_focal(a):
  p = oracles.sigmoid(a.logits)
  yes = 0.25 * (1 - p) ** 2 * np.logaddexp(0, -a.logits)
  no = 0.75 * p**2 * np.logaddexp(0, a.logits)
  return a.labels * yes + (1 - a.labels) * no


def _asymmetric(a):
  p = oracles.sigmoid(a.logits)
  shifted = np.maximum(p - 0.05, 0)
  present = -((1 - p) ** 0.5) * -np.logaddexp(0, -a.logits)
  return a.labels * present - (1 - a.labels) * shifted**4 * np.log1p(-shifted)


def _pinball(a):
  error = a.targets[..., None] - a.outputs
  return np.maximum(a.levels * error, (a.levels - 1) * error).mean(-1)


# With labels of both kinds, and sums over parts of the batch: test_semi_supervised and cases_functions.
TASKS = {task: Input("real", "B", checked=False) for task in ("one", "two")}
BY_TASK = {task: Input("unit", "", checked=False) for task in ("one", "two")}
YES_OR_NO = {"logits": SCORES, "labels": Input("unit", "BK")}
GAUSSIAN = {"outputs": SCORES, "log_vars": Input("unit", "BK"), "targets": SCORES}
BINARY = (
  Case(
    "losses.binary_cross_entropy",
    YES_OR_NO,
    lambda a: _binary(a, labels=0.8 * a.labels + 0.1),
    {"smoothing": 0.2},
  ),
  Case(
    "losses.binary_focal",
    YES_OR_NO,
    _binary_focal,
  ),
  Case(
    "losses.binary_focal",
    YES_OR_NO,
    lambda a: _binary(a, lambda loss, p: (1 - p) ** 0.5 * loss),
    {"gamma": 0.5, "alpha": None},
    label="gamma-0.5",
  ),
  Case("losses.asymmetric", YES_OR_NO, _asymmetric, {"gamma_yes": 0.5}),
  Case(
    "losses.binary_poly_loss",
    YES_OR_NO,
    lambda a: _binary(a, lambda loss, p: loss + 1.5 * (1 - p)),
    {"epsilon": 1.5},
  ),
  Case(
    "losses.binary_confidence_penalty",
    YES_OR_NO,
    lambda a: _binary(a) - 0.3 * _binary(a, labels=oracles.sigmoid(a.logits)),
    {"weight": 0.3},
  ),
)
REAL = (
  Case(
    "losses.gaussian_nll",
    GAUSSIAN,
    lambda a: -scipy.stats.norm.logpdf(a.targets, a.outputs, np.exp(a.log_vars / 2)),
    atol=1e-4,
  ),
  # The variance gets no gradient through the factor; test_regression has it.
  Case(
    "losses.gaussian_nll",
    GAUSSIAN,
    lambda a: (
      -np.exp(0.5 * a.log_vars) * scipy.stats.norm.logpdf(a.targets, a.outputs, np.exp(a.log_vars / 2))
    ),
    {"beta": 0.5},
    label="beta",
    gradient=False,
    atol=1e-3,
  ),
  Case(
    "losses.student_t_nll",
    {"outputs": SCORES, "log_scales": Input("unit", "BK"), "targets": SCORES},
    lambda a: -scipy.stats.t.logpdf(a.targets, 4.0, a.outputs, np.exp(a.log_scales)),
  ),
  Case(
    "losses.pinball",
    {"outputs": SCORES, "targets": Input("real", "B"), "levels": Input("unit", "K")},
    _pinball,
  ),
)
HARD = (
  Case("losses.focal", LABELLED, lambda a: _focal(a, 2.0), atol=1e-4),
  # Where q^gamma has an infinite slope at 0, or none.
  *(
    Case(
      "losses.focal",
      LABELLED,
      lambda a, gamma=gamma: _focal(a, gamma),
      {"gamma": gamma},
      label=f"gamma-{gamma}",
    )
    for gamma in (0.0, 0.5)
  ),
  Case("losses.poly_loss", LABELLED, lambda a: _poly_loss(a, 1.5), {"epsilon": 1.5}),
  Case(
    "losses.generalized_cross_entropy", LABELLED, lambda a: _generalized(a, 0.7), {"q": 0.7}, label="q-0.7"
  ),
  Case("losses.generalized_cross_entropy", LABELLED, lambda a: _generalized(a, 1.0), {"q": 1.0}, label="q-1"),
  Case(
    "losses.active_passive",
    LABELLED,
    lambda a: _active_passive(a, 1.0, 4.0, True),
    {"active_weight": 1.0, "passive_weight": 4.0, "normalized": True},
    label="normalized",
  ),
  Case(
    "losses.active_passive",
    LABELLED,
    lambda a: _active_passive(a, 0.1, 4.0, False),
    {"active_weight": 0.1, "passive_weight": 4.0, "normalized": False},
    label="symmetric cross-entropy",
  ),
  Case(
    "losses.forward_correction",
    {**LABELLED, "transitions": Input("soft", "KK", fixed=True, checked=False)},
    _forward_correction,
  ),
  Case("losses.entropy", {"logits": SCORES}, _entropy),
  Case("losses.z_loss", {"logits": SCORES}, lambda a: np.log(np.exp(a.logits).sum(-1)) ** 2, atol=1e-4),
  Case(
    "losses.pseudo_label",
    {"logits": SCORES, "target_logits": SCORES},
    lambda a: _pseudo_label(a, 0.45),
    {"threshold": 0.45},  # not a half or a third, where rounding would choose
  ),
  Case("losses.large_margin", LABELLED, lambda a: large_margin(a, 0.6), {"weight": 0.6}, atol=1e-4),
  Case(
    "losses.confidence_penalty",
    LABELLED,
    lambda a: oracles.cross_entropy(a.logits, a.labels) - 0.1 * _entropy(a),
  ),
  Case(
    "losses.logit_adjustment",
    {"logits": SCORES, "labels": LABELS, "log_prior": Input("real", "K")},
    lambda a: oracles.cross_entropy(a.logits + 0.5 * a.log_prior, a.labels),
    {"weight": 0.5},
  ),
  Case("losses.cosface", MARGIN, lambda a: _cosface(a, 0.35, 4.0), {"scale": 4.0}),
  Case("losses.arcface", MARGIN, lambda a: _arcface(a, 0.5, 4.0), {"scale": 4.0}),
  Case(
    "losses.cosine_log_probs",
    {"features": Input("real", "BF"), "kernel": Input("real", "FK")},
    lambda a: np.log(oracles.softmax(4.0 * (_unit(a.features, -1) @ _unit(a.kernel, 0)))),
    {"scale": 4.0},
  ),
  Case(
    "losses.bi_tempered_log_probs",
    {"logits": SCORES},
    lambda a: np.log(tempered_probs(a.logits, 1.3)),
    {"t2": 1.3},
  ),
  Case("losses.bi_tempered", LABELLED, lambda a: bi_tempered(a.logits, a.labels, 0.8, 1.3)),
  Case("losses.r_drop", {"logits": SCORES, "other_logits": SCORES}, _r_drop, atol=1e-4),
  Case("losses.jensen_shannon", {"logits": Input("real", "BFK")}, _jensen_shannon, atol=1e-4),
  Case(
    "losses.consistency",
    {"logits": SCORES, "other_logits": SCORES},
    lambda a: ((oracles.softmax(a.logits) - oracles.softmax(a.other_logits)) ** 2).mean(-1),
  ),
  # The teacher gets no gradient; test_distillation has the student's.
  Case(
    "losses.distillation",
    {"logits": SCORES, "teacher_logits": SCORES},
    lambda a: _distillation(a, 2.5),
    {"temperature": 2.5},
    gradient=False,
    atol=1e-4,
  ),
  Case("losses.reconstruction", {"outputs": SCORES, "x": SCORES}, _gaussian, atol=1e-4),
  Case(
    "losses.reconstruction",
    {"outputs": SCORES, "x": Input("unit", "BK")},
    _bernoulli,
    {"likelihood": "bernoulli"},
    label="bernoulli",
    atol=1e-4,
  ),
  Case("losses.multitask", {"losses": TASKS, "weights": BY_TASK}, lambda a: sum(_weighted(a).values())),
  Case(
    "losses.uncertainty_weighting",
    {"losses": TASKS, "log_vars": BY_TASK},
    lambda a: sum(_uncertain(a).values()),
  ),
)


def _soft(case):
  """The loss of soft labels: the sum of what the classes give, by their shares."""

  def oracle(a):
    classes = range(a.labels.shape[-1])
    of_class = lambda k: case.oracle(
      SimpleNamespace(**{**vars(a), "labels": np.full(a.labels.shape[:-1], k)})
    )
    mean = lambda *values: (a.labels * np.stack(values, -1)).sum(-1)
    return jax.tree.map(mean, *map(of_class, classes))

  return dataclasses.replace(
    case,
    inputs={**case.inputs, "labels": Input("soft", "BK")},
    oracle=oracle,
    label="-".join(("soft", case.label)).strip("-"),
  )


CASES = (*HARD, *BINARY, *REAL, *(_soft(case) for case in (*CLASSIC, *HARD) if case.function in SOFT))
