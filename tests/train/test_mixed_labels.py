"""Mixed labels in the objective: the mean of a method's losses of the classes, by their shares, exactly."""

import dataclasses
import functools
from types import SimpleNamespace

import cases_losses
import jax
import numpy as np
import oracles
import pytest
import runs

from jaxreg.train.methods.method import NUMBERS
from jaxreg.train.registry import REGISTRY
from jaxreg.train.step.forward import make_forward
from jaxreg.train.step.step import make_objective
from jaxreg.train.step.targets import CLASSES as CLASS_LABELS

SIZE, CLASSES = 12, 7
RNG = np.random.default_rng(0)
X = RNG.normal(size=(SIZE, 4)).astype(np.float32)
KERNEL = RNG.normal(size=(4, CLASSES)).astype(np.float32)
WEIGHTS = np.where(np.arange(SIZE) == 3, 0, RNG.uniform(0.5, 2, SIZE)).astype(np.float32)


def mixed(most):
  """Each example of `most` classes at random shares."""
  soft = np.zeros((SIZE, CLASSES), np.float32)
  for row in soft:
    row[RNG.choice(CLASSES, most, replace=False)] = RNG.dirichlet(np.ones(most))
  return soft


def losses_of_classes(name, logits):
  """`[batch, classes]` in float64."""
  every = [np.full(SIZE, k) for k in range(CLASSES)]
  of_class = {
    "softmax": lambda labels: oracles.cross_entropy(logits, labels),
    "bi_tempered": lambda labels: cases_losses.bi_tempered(logits, labels, 0.8, 1.3),
    "large_margin": lambda labels: cases_losses.large_margin(
      SimpleNamespace(logits=logits, labels=labels), 0.3
    ),
  }[name]
  return np.stack([of_class(labels) for labels in every], -1)


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("name", "mixed_from", "most_labels"),
  [
    ("softmax", 2, 2),
    ("bi_tempered", 4, 4),
    ("large_margin", 2, 2),
    ("large_margin", 4, 4),
    ("large_margin", 7, None),
  ],
)
def test_the_loss_is_the_mean_over_the_classes(name, mixed_from, most_labels):
  soft = mixed(mixed_from)
  apply_fn = lambda params, state, x, *, key, train: ({"logits": x @ params}, state)
  method = REGISTRY["method"][name].function
  if name == "bi_tempered":
    method = dataclasses.replace(method, predict=functools.partial(method.predict, t2=1.3))
  forward = make_forward(runs.network_of(apply_fn), method, CLASS_LABELS, most_labels=most_labels)
  mix = lambda key, batch: {**batch, "labels": jax.numpy.asarray(soft)}
  objective = make_objective(forward, augmentations=[mix])
  batch = {"inputs": X, "labels": np.zeros(SIZE, np.int32), "weights": WEIGHTS}
  state = SimpleNamespace(model_state=None, extras=None)
  run = jax.jit(lambda params: objective(params, state, batch, jax.random.key(0)))
  loss, (_, metrics) = run(KERNEL)
  logits = X.astype(np.float64) @ KERNEL.astype(np.float64)
  mean = lambda values: (values * WEIGHTS).sum() / WEIGHTS.sum()
  assert loss == pytest.approx(mean((soft * losses_of_classes(name, logits)).sum(1)), rel=1e-5)
  right = mean(logits.argmax(1) == soft.argmax(1))
  assert metrics["accuracy"][0] / metrics["accuracy"][1] == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize(
  "name", [name for name, row in REGISTRY["method"].items() if row.function.predicts not in NUMBERS]
)
def test_the_table_knows_which_losses_take_soft_labels(name):
  method = REGISTRY["method"][name].function
  options = {
    "logit_adjustment": {"class_counts": (1.0,) * CLASSES},
    "forward_correction": {"transitions": tuple(np.eye(CLASSES).ravel().tolist())},
  }.get(name, {})
  classes = 2 if method.predicts == "yes or no" else CLASSES
  head = method.head(num_classes=classes)

  def loss(key, x, labels):
    outputs, _ = head.init_with_output(jax.random.clone(key), x)
    return method.loss(*method.key_for("loss", key), **outputs, labels=labels, **options)

  run = lambda: jax.eval_shape(loss, jax.random.key(0), X, mixed(2)[:, :classes])
  if method.soft_labels:
    assert {value.shape for value in jax.tree.leaves(run())} == {(SIZE,)}
  else:
    with pytest.raises(TypeError, match="labels must be integers, got float32"):
      run()
