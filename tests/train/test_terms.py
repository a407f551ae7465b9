"""Terms on examples in the step, against closed forms of softmax regression."""

import functools

import jax
import numpy as np
import oracles
import pytest
import runs

from jaxreg.train.assemble.from_config import build
from jaxreg.train.data import sources
from jaxreg.train.registry import REGISTRY

pytestmark = pytest.mark.thorough

TERMS = [name for name, entry in REGISTRY["regularizers"].items() if entry.kind == "term"]
SIZE, LABELLED, WEIGHT = 24, 16, 0.3
OPTIONS = {
  "fgsm.eps": 0.1,
  "fgsm.clip": (0.0, 1.0),
  "pgd.eps": 0.1,
  "pgd.step_size": 0.1,
  "pgd.num_steps": 1,
  "virtual_adversarial.eps": 0.5,
  "virtual_adversarial.num_steps": 40,
  "pseudo_label.threshold": 0.0,
  "kl_sparsity.target": 0.2,
  "distillation.temperature": 2.0,
  **{"trades.eps": 0.1, "trades.step_size": 0.1, "trades.num_steps": 3},
}


def fields(*names):
  return {
    "batch_size": SIZE,
    "method.name": "autoencoder",
    "model.MLP.widths": (),  # softmax regression, and an affine decoder
    "model.MLP.dropout_rate": 0.0,
    "optimizer.name": "sgd",
    "regularizers.names": names,
    "average.name": "ema",
    "average.ema.decay": 0.5,
    "teacher.workdir": "given as a function" if "distillation" in names else "",
    **{f"regularizers.{name}.weight": WEIGHT for name in names},
    **{f"regularizers.{name}": value for name, value in OPTIONS.items()},
  }


@functools.cache
def stepped():
  """A step with every term, after one: what went in, as float64, and the mean of each metric.

  The first examples have labels, the others -1, and one of each kind weighs nothing.
  """
  config = runs.make_config(fields(*(name for name in TERMS if name != "kl_sparsity")))
  # On the inputs, which lie in [0, 1], too: a configuration is refused that has no hidden layer for it.
  config.regularizers.names = tuple(TERMS)
  config.regularizers.kl_sparsity.weight = WEIGHT
  teacher = lambda key, x: 3 * x.reshape(len(x), -1)[:, 20:30]
  built = build(config, sources.digits().describe(), teacher=teacher)
  digits = sources.digits().train
  labels = np.where(np.arange(SIZE) < LABELLED, digits.labels[:SIZE], -1).astype(np.int32)
  weights = np.ones(SIZE, np.float32)
  weights[[3, LABELLED + 2]] = 0
  batch = {"inputs": digits.inputs[:SIZE], "labels": labels, "weights": weights}
  step = jax.jit(built.train_step)
  first, _ = step(jax.jit(built.init)(0), batch)
  # Away from the small weights of the start, where predictions hardly differ.
  first = first.replace(params=jax.tree.map(lambda x: 5 * x, first.params))
  _, metrics = step(first, batch)
  layer = first.params["head"]["classes"]["classifier"]
  kernel, bias = (np.asarray(layer[name], np.float64) for name in ("kernel", "bias"))
  x = batch["inputs"].reshape(SIZE, -1) / 16.0
  found = {name: float(total / count) for name, (total, count) in metrics.items()}
  decoder = jax.tree.map(np.float64, first.params["head"]["inputs"]["decoder"])
  squares = np.square(x @ decoder["kernel"] + decoder["bias"] - x).sum(1) / 2
  found["expected reconstruction"] = WEIGHT * mean(squares, weights)
  # After one update the average is the one iterate, before it was made five times as large.
  teacher = (kernel / 5, bias / 5)
  return x, labels, weights, kernel, bias, teacher, found


def log_probs(x, kernel, bias):
  return np.log(oracles.softmax(x @ kernel + bias))


def mean(values, weights):
  return (values * weights).sum() / weights.sum()


def nll(x, labels, kernel, bias):
  return -np.take_along_axis(log_probs(x, kernel, bias), np.maximum(labels, 0)[:, None], 1)[:, 0]


def gradient(x, labels, kernel, bias):
  p = oracles.softmax(x @ kernel + bias)
  return (p - oracles.one_hot(np.maximum(labels, 0), 10)) @ kernel.T


def with_label(labels, weights):
  return weights * (labels >= 0)


def test_the_loss_itself_is_of_the_examples_with_labels():
  x, labels, weights, kernel, bias, _, found = stepped()
  assert found["nll"] == pytest.approx(
    mean(nll(x, labels, kernel, bias), with_label(labels, weights)), rel=1e-5
  )
  assert found["loss"] == pytest.approx(found["nll"] + sum(found[name] for name in TERMS), rel=1e-5)
  right = (log_probs(x, kernel, bias).argmax(1) == labels).astype(float)
  assert found["accuracy"] == pytest.approx(mean(right, with_label(labels, weights)))


def test_reconstruction_needs_no_labels():
  found = stepped()[-1]
  assert found["reconstruction"] == pytest.approx(found["expected reconstruction"], rel=1e-5)


def test_fgsm():
  x, labels, weights, kernel, bias, _, found = stepped()
  moved = np.clip(x + 0.1 * np.sign(gradient(x, labels, kernel, bias)), 0, 1)
  wanted = WEIGHT * mean(nll(moved, labels, kernel, bias), with_label(labels, weights))
  assert found["fgsm"] == pytest.approx(wanted, rel=1e-4)


def test_one_step_of_pgd_ends_inside_the_box():
  """From a random start a step as long as the box is wide ends at its worst corner or short of it."""
  x, labels, weights, kernel, bias, _, found = stepped()
  worst = nll(x + 0.1 * np.sign(gradient(x, labels, kernel, bias)), labels, kernel, bias)
  bounds = [WEIGHT * mean(v, with_label(labels, weights)) for v in (nll(x, labels, kernel, bias), worst)]
  assert bounds[0] < found["pgd"] <= bounds[1] * (1 + 1e-5)


def test_gradient_penalty():
  x, labels, weights, kernel, bias, _, found = stepped()
  squares = np.square(gradient(x, labels, kernel, bias)).sum(1)
  wanted = WEIGHT * mean(squares, with_label(labels, weights))
  assert found["gradient_penalty"] == pytest.approx(wanted, rel=1e-4)


def test_virtual_adversarial():
  """After many iterations along the top eigenvector of the divergence's Hessian; which way, is open."""
  x, _, weights, kernel, bias, _, found = stepped()
  low = high = 0.0
  for one, weight in zip(x, weights, strict=True):
    log_p = log_probs(one[None], kernel, bias)[0]
    p = np.exp(log_p)
    top = np.linalg.eigh(kernel @ (np.diag(p) - np.outer(p, p)) @ kernel.T)[1][:, -1]
    ways = [
      (p * (log_p - log_probs(one[None] + sign * 0.5 * top, kernel, bias)[0])).sum() for sign in (1, -1)
    ]
    low, high = low + weight * min(ways), high + weight * max(ways)
  low, high = WEIGHT * low / weights.sum(), WEIGHT * high / weights.sum()
  assert low * 0.99 < found["virtual_adversarial"] < high * 1.01
  assert high < 3 * low


def test_entropy_and_pseudo_labels_are_of_all_examples():
  x, _, weights, kernel, bias, _, found = stepped()
  log_p = log_probs(x, kernel, bias)
  assert found["entropy"] == pytest.approx(WEIGHT * mean(-(np.exp(log_p) * log_p).sum(1), weights), rel=1e-4)
  assert found["pseudo_label"] == pytest.approx(WEIGHT * mean(-log_p.max(1), weights), rel=1e-4)


def test_z_loss_is_of_the_logits_of_all_examples():
  x, _, weights, kernel, bias, _, found = stepped()
  log_z = np.log(np.exp(x @ kernel + bias).sum(1))
  assert found["z_loss"] == pytest.approx(WEIGHT * mean(log_z**2, weights), rel=1e-4)


def test_trades_moves_the_prediction_no_farther_than_the_box():
  """More than random corners do, and less than the largest change of any log-ratio."""
  x, _, weights, kernel, bias, _, found = stepped()
  p = oracles.softmax(x @ kernel + bias)
  corner = x + 0.1 * np.random.default_rng(0).choice([-1, 1], x.shape)
  random = (p * np.log(p / oracles.softmax(corner @ kernel + bias))).sum(1)
  largest = 0.1 * np.abs(kernel[:, :, None] - kernel[:, None, :]).sum(0).max()
  assert WEIGHT * mean(random, weights) < found["trades"] < WEIGHT * largest


def test_activities_are_of_the_features():
  x, _, weights, _, _, _, found = stepped()
  assert found["l1_activity"] == pytest.approx(WEIGHT * mean(np.abs(x).sum(1), weights), rel=1e-5)
  units = (x * weights[:, None]).sum(0) / weights.sum()
  inside = (units > 1e-6) & (units < 1 - 1e-6)
  kl = 0.2 * np.log(0.2 / units[inside]) + 0.8 * np.log(0.8 / (1 - units[inside]))
  # A unit that is always 0 counts as if it were on by a rounding error.
  silent = 0.2 * np.log(0.2 / np.finfo(np.float32).eps) + 0.8 * np.log(0.8)
  wanted = WEIGHT * (kl.sum() + silent * (~inside).sum())
  assert found["kl_sparsity"] == pytest.approx(wanted, rel=1e-4)


def test_without_noise_two_passes_agree():
  found = stepped()[-1]
  assert found["r_drop"] == found["pi_model"] == 0


def test_the_teacher_has_the_averaged_parameters():
  x, _, weights, kernel, bias, teacher, found = stepped()
  gap = np.exp(log_probs(x, kernel, bias)) - np.exp(log_probs(x, *teacher))
  wanted = WEIGHT * mean(np.square(gap).mean(1), weights)
  assert wanted > 0.001
  assert found["mean_teacher"] == pytest.approx(wanted, rel=1e-4)


def test_a_trained_teacher_teaches_all_examples():
  x, _, weights, kernel, bias, _, found = stepped()
  p, q = oracles.softmax(1.5 * x[:, 20:30]), oracles.softmax((x @ kernel + bias) / 2)
  wanted = WEIGHT * mean(4 * (p * np.log(p / q)).sum(1), weights)
  assert found["distillation"] == pytest.approx(wanted, rel=1e-4)


def test_jacobian_penalty_is_that_of_the_log_probabilities():
  """One random projection an example: of the order of the exact value."""
  x, _, weights, kernel, bias, _, found = stepped()
  p = oracles.softmax(x @ kernel + bias)
  jacobian = kernel.T[None] - (p @ kernel.T)[:, None]
  exact = WEIGHT * mean(np.square(jacobian).sum((1, 2)), weights)
  assert found["jacobian_penalty"] == pytest.approx(exact, rel=0.3)


def test_a_limit_has_a_multiplier():
  """From 0 it climbs by the learning rate times what the penalty is over its limit."""
  rate, limit = 0.1, 2.0
  config = runs.make_config(
    {
      **fields("l2", "l2_sp"),
      "method.name": "softmax",
      "regularizers.l2.limit": limit,
      "regularizers.dual_learning_rate": rate,
    }
  )
  built = build(config, sources.digits().describe())
  batch = runs.digits_batch(SIZE)
  step, state = jax.jit(built.train_step), jax.jit(built.init)(0)
  start = np.asarray(state.params["head"]["classifier"]["kernel"], np.float64)
  multiplier = 0.0
  for _ in range(3):
    kernel = np.asarray(state.params["head"]["classifier"]["kernel"], np.float64)
    state, metrics = step(state, batch)
    values = {name: total / count for name, (total, count) in metrics.items()}
    assert values["l2"] == pytest.approx(multiplier * np.square(kernel).sum() / 2, rel=1e-5)
    assert values["l2_sp"] == pytest.approx(WEIGHT * np.square(kernel - start).sum() / 2, rel=1e-4, abs=1e-9)
    after = np.asarray(state.params["head"]["classifier"]["kernel"], np.float64)
    multiplier = max(0.0, multiplier + rate * (np.square(after).sum() / 2 - limit))
    assert state.extras["multipliers"]["l2"].multiplier == pytest.approx(multiplier, rel=1e-5)
  assert multiplier > 0


def hidden(*names, **more):
  """The step of a network with hidden layers and dropout, for the terms `names`."""
  config = runs.make_config({"method.name": "softmax", "regularizers.names": names, **more})
  return build(config, sources.digits().describe())


def test_terms_of_the_same_outputs_share_the_pass_of_the_loss():
  """Counted in products and sums: terms of features, logits and predictions add less than a hundredth."""

  def flops(*names):
    program = hidden(*names, **{"model.MLP.widths": (200, 200)})
    compiled = jax.jit(program.train_step).lower(program.abstract, runs.digits_batch(SIZE)).compile()
    return compiled.cost_analysis()["flops"]

  none = flops()
  assert flops("l1_activity", "z_loss", "entropy") < 1.01 * none
  assert flops("r_drop") > 1.5 * none  # a second pass, and its gradient


def test_a_term_changes_no_draw_of_another():
  values = []
  for names in (("r_drop",), ("virtual_adversarial", "pi_model", "r_drop", "l2")):
    program = hidden(*names)
    _, metrics = jax.jit(program.train_step)(jax.jit(program.init)(0), runs.digits_batch(SIZE))
    values.append(jax.device_get(metrics))
  for name in ("r_drop", "nll"):
    np.testing.assert_allclose(values[0][name], values[1][name], rtol=1e-6)
  assert values[1]["pi_model"][0] > 0
