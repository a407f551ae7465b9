"""Penalties in the step: once, whole, however the batch is divided; and every one of them trains."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs

from jaxreg.train.assemble.from_config import build
from jaxreg.train.data import sources
from jaxreg.train.registry import REGISTRY

PENALTIES = [name for name, entry in REGISTRY["regularizers"].items() if entry.kind == "penalty"]
SIZE, RATE, WEIGHT = 32, 0.5, 0.3
PAIRS = {"regularizers.tying.pairs": (("backbone/Dense_0/bias", "backbone/Dense_1/bias"),)}


@functools.cache
def program(*names, accumulate=1):
  fields = {
    "batch_size": SIZE,
    "accumulate": accumulate,
    "method.name": "softmax",
    "model.MLP.widths": (6, 6),
    "model.MLP.dropout_rate": 0.0,
    "optimizer.name": "sgd",
    "optimizer.learning_rate": RATE,
    "regularizers.names": names,
    **{f"regularizers.{name}.weight": WEIGHT for name in names},
  }
  fields |= PAIRS if "tying" in names else {}
  return build(runs.make_config(fields), sources.digits().describe())


@functools.cache
def stepped(*names, accumulate=1, axis=False):
  """A step from the same state on the same batch: parameters before and after, and the metrics."""
  built = program(*names, accumulate=accumulate)
  # One example of weight 0, and parts of the batch of unequal weight.
  batch = runs.digits_batch(SIZE, np.linspace(0, 2, SIZE, dtype=np.float32))
  step = built.train_step
  if axis:
    batch = jax.tree.map(lambda x: x.reshape(4, SIZE // 4, *x.shape[1:]), batch)
    step = jax.vmap(
      functools.partial(step, axis_name="data"), axis_name="data", in_axes=(None, 0), out_axes=None
    )
  state = jax.jit(built.init)(0)
  after, metrics = jax.jit(step)(state, batch)
  return jax.device_get((state.params, after.params, metrics))


@pytest.mark.thorough
@pytest.mark.parametrize(
  "how",
  [
    {},
    pytest.param({"accumulate": 4}, marks=pytest.mark.thorough),
    pytest.param({"axis": True}, marks=pytest.mark.thorough),
  ],
  ids=["whole", "in parts", "devices"],
)
def test_the_penalty_is_added_once(how):
  """Beside the step without it: SGD has moved each kernel by `rate * weight * w` more, and no bias."""
  before, plain, without = stepped(**how)
  start, penalized, metrics = stepped("l2", **how)
  chex.assert_trees_all_equal(before, start)
  squares = 0.0
  for layer in (before["backbone"]["Dense_0"], before["backbone"]["Dense_1"], before["head"]["classifier"]):
    squares += np.square(np.asarray(layer["kernel"], np.float64)).sum()
  moved = jax.tree.map(lambda one, other: one - other, penalized, plain)
  for part, layer in (("backbone", "Dense_0"), ("backbone", "Dense_1"), ("head", "classifier")):
    kernel = before[part][layer]["kernel"]
    np.testing.assert_allclose(moved[part][layer]["kernel"], -RATE * WEIGHT * kernel, atol=1e-6)
    np.testing.assert_array_equal(moved[part][layer]["bias"], 0)
  total, count = metrics["l2"]
  assert count == without["loss"][1]
  assert total / count == pytest.approx(WEIGHT * squares / 2, rel=1e-5)
  assert metrics["loss"][0] / count == pytest.approx(without["loss"][0] / count + total / count, rel=1e-5)


@pytest.mark.thorough
def test_every_one_reaches_the_step():
  _, _, metrics = stepped(*PENALTIES)
  values = {name: float(metrics[name][0] / metrics[name][1]) for name in PENALTIES}
  assert all(np.isfinite(value) for value in values.values())
  # The two biases are still 0, and nothing has moved from where it began.
  assert {name for name, value in values.items() if value == 0} == {"learned_dropout", "tying", "l2_sp"}
  loss = sum(values.values()) + metrics["nll"][0] / metrics["nll"][1]
  assert metrics["loss"][0] / metrics["loss"][1] == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.thorough
def test_penalties_are_on_kernels_only():
  fields = {"regularizers.names": ("l1",), "method.name": "softmax"}
  built = build(runs.make_config(fields), sources.digits().describe())
  state = jax.jit(built.init)(0)
  ones = state.replace(params=jax.tree.map(jnp.ones_like, state.params))
  _, metrics = jax.jit(built.train_step)(ones, runs.digits_batch(32))
  size = sum(leaf.size for leaf in jax.tree.leaves(state.params) if leaf.ndim > 1)
  assert metrics["l1"][0] / metrics["l1"][1] == pytest.approx(1e-4 * size, rel=1e-5)
