"""One step is one function: the same on one device, on eight, under pmap and under vmap."""

import functools

import jax
import numpy as np
import pytest
import runs
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data import sources
from jaxreg.train.data.dataset import DataSpec

SIZE = 64


# Nine classes: a mean over the eight wrong ones is a multiple of 1/8, and sums of those are exact.
def describe(num_classes=9, dtype="float32"):
  return DataSpec(
    num_classes=num_classes,
    input_shape=(8, 8, 1),
    input_dtype=dtype,
    scale=16.0,
    sizes={"train": SIZE},
  )


@functools.cache
def program(method="dropmax", dropout=0.2):
  fields = {
    "batch_size": SIZE,
    "method.name": method,
    "model.MLP.dropout_rate": dropout,
    "optimizer.name": "sgd",
    "optimizer.learning_rate": 0.5,
    "optimizer.weight_decay.rate": 1e-2,
  }
  return build(runs.make_config(fields), describe())


@functools.cache
def jitted(**options):
  return jax.jit(program(**options).train_step)


@functools.cache
def start(**options):
  return jax.jit(program(**options).init)(0)


@functools.cache
def examples():
  train = sources.digits().train
  train = train.take(np.flatnonzero(train.labels < 9)[:SIZE])
  return train.inputs.astype(np.float32), train.labels.astype(np.int32)


def batch(weights=None):
  inputs, labels = examples()
  weights = np.ones(SIZE, np.float32) if weights is None else np.asarray(weights, np.float32)
  return {"inputs": inputs, "labels": labels, "weights": weights}


def numbers(state, metrics):
  return jax.device_get((state.params, state.opt_state, metrics))


def assert_same_masks(ours, theirs):
  kept, count = ours["kept_nontarget"]
  assert count == SIZE
  # Neither all nor none, and exact: eighths.
  assert 0.1 * SIZE < kept < 0.9 * SIZE
  assert kept * 8 == round(float(kept) * 8)
  assert kept == theirs["kept_nontarget"][0]


@pytest.mark.parametrize("num_devices", [pytest.param(1, marks=pytest.mark.thorough), 8])
def test_a_sharded_step_equals_an_unsharded_one(num_devices):
  assert jax.device_count() == 8
  mesh = jax.make_mesh(
    (num_devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:num_devices]
  )
  state, metrics = start(), None
  plain = numbers(*jitted()(state, batch()))
  on_mesh = jax.device_put(state, NamedSharding(mesh, P()))
  sharded_batch = jax.device_put(batch(), NamedSharding(mesh, P("data")))
  assert len(sharded_batch["inputs"].sharding.device_set) == num_devices
  state, metrics = jitted()(on_mesh, sharded_batch)
  sharded = numbers(state, metrics)
  runs.assert_near(sharded, plain)
  assert_same_masks(sharded[2], plain[2])
  # The step did something.
  before, after = jax.device_get(start().params), sharded[0]
  assert all(np.abs(a - b).max() > 1e-4 for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(before)))


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 8])
def test_a_sharded_step_equals_an_unsharded_one_when_fully_optimised(num_devices):
  assert jax.config.read("jax_disable_most_optimizations")
  jax.config.update("jax_disable_most_optimizations", False)
  jax.clear_caches()
  try:
    test_a_sharded_step_equals_an_unsharded_one(num_devices)
  finally:
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()


def over_axis(options):
  step = program(**dict(options)).train_step
  return functools.partial(step, axis_name="data")


@functools.cache
def parallel(how, **options):
  step = over_axis(tuple(options.items()))
  arguments = dict(axis_name="data", in_axes=(None, 0), out_axes=None)
  return jax.pmap(step, **arguments) if how == "pmap" else jax.jit(jax.vmap(step, **arguments))


def split(whole, parts=8):
  return jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), whole)


SOFTMAX = {"method": "softmax", "dropout": 0.0}
WEIGHTS = {
  "even": np.ones(SIZE),
  "whole devices without": np.repeat([1, 0, 0, 1, 0, 1, 1, 0], 8),
  "uneven": np.concatenate([np.zeros(19), np.ones(9), np.zeros(20), np.ones(16)]),
  "one example": np.eye(SIZE)[21],
  "fractions": np.repeat([0.25, 2.0, 0.0, 1.0], 16) * np.tile([1.0, 0.5], 32),
}


@pytest.mark.thorough
@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("how", ["pmap", "vmap"])
def test_without_noise_the_parts_make_the_whole_batch(how, weights):
  state = start(**SOFTMAX)
  whole = numbers(*jitted(**SOFTMAX)(state, batch(weights)))
  parts = numbers(*parallel(how, **SOFTMAX)(state, split(batch(weights))))
  runs.assert_near(parts, whole)
  assert whole[2]["loss"][1] == weights.sum() > 0


@pytest.mark.thorough
def test_with_noise_pmap_equals_vmap():
  state = start()
  pmapped = numbers(*parallel("pmap")(state, split(batch())))
  vmapped = numbers(*parallel("vmap")(state, split(batch())))
  runs.assert_near(pmapped, vmapped)
  assert_same_masks(pmapped[2], vmapped[2])
  # Each device draws its own: not the masks of the whole batch.
  whole = numbers(*jitted()(state, batch()))
  assert whole[2]["kept_nontarget"][0] != pmapped[2]["kept_nontarget"][0]


@pytest.mark.thorough
def test_devices_draw_different_masks():
  """The same examples on each device: with one key for all, every part would keep the same."""
  same = jax.tree.map(lambda x: np.stack([x[:8]] * 8), batch())

  kept = []
  for device in range(8):
    weights = np.zeros((8, 8), np.float32)
    weights[device] = 1
    _, metrics = parallel("vmap")(start(), {**same, "weights": weights})
    kept.append(float(metrics["kept_nontarget"][0]))
  assert len(set(kept)) >= 4


def garbage(seed, **changes):
  """The batch with its last 16 examples at weight 0 and arbitrary content."""
  random = np.random.default_rng(seed)
  content = batch(np.repeat([1, 0], [48, 16]))
  content = {name: value.copy() for name, value in content.items()}
  content["inputs"][48:] = random.uniform(-1e3, 1e3, (16, 8, 8, 1))
  content["labels"][48:] = random.integers(9, size=16)
  for name, value in changes.items():
    content[name][48:] = value
  return content


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["dropmax", "softmax", "label_smoothing"])
def test_examples_of_weight_0_have_no_effect(method):
  options = {"method": method, "dropout": 0.0} if method != "dropmax" else {}
  state = start(**options)
  one = numbers(*jitted(**options)(state, garbage(1)))
  other = numbers(*jitted(**options)(state, garbage(2)))
  assert not np.array_equal(garbage(1)["inputs"], garbage(2)["inputs"])
  runs.assert_bitwise(one, other)
  assert one[2]["loss"][1] == 48


NOT_FINITE = pytest.mark.parametrize(
  "changes", [{"inputs": np.nan}, {"inputs": np.inf}, {"labels": 99}, {"labels": -1}], ids=str
)


@pytest.mark.thorough
@NOT_FINITE
def test_examples_of_weight_0_have_no_gradient_even_if_they_are_not_finite(changes):
  state = start(**SOFTMAX)
  one = numbers(*jitted(**SOFTMAX)(state, garbage(1, **changes)))
  other = numbers(*jitted(**SOFTMAX)(state, garbage(2)))
  runs.assert_bitwise(one, other)


def test_examples_of_weight_0_are_as_if_they_were_not_there():
  state = start(**SOFTMAX)
  with_them = numbers(*jitted(**SOFTMAX)(state, garbage(1)))
  without = numbers(*jitted(**SOFTMAX)(state, {name: x[:48] for name, x in batch().items()}))
  runs.assert_near(with_them, without)


def test_the_loss_is_the_sum_of_its_terms():
  _, metrics = jitted()(start(), batch(WEIGHTS["fractions"]))
  assert program().method.terms == ("nll", "kl", "neg_entropy", "auxiliary")
  terms = [np.float64(metrics[name][0]) for name in program().method.terms]
  assert all(abs(term) > 1 for term in terms)
  total, count = metrics["loss"]
  np.testing.assert_allclose(total, sum(terms), rtol=1e-6)
  assert count == WEIGHTS["fractions"].sum()
  _, metrics = jitted(**SOFTMAX)(start(**SOFTMAX), batch())
  assert metrics["loss"][0] == metrics["nll"][0] > 0


def test_what_is_reported():
  state, metrics = jitted()(start(), batch())
  always = {"loss", "accuracy", "grad_norm", "learning_rate"}
  parts = {f"grad_norm_{part}" for part in ("backbone", "classifier", "prior", "residual")}
  dropmax = {"retain_target", "retain_nontarget", "posterior_nontarget", "kept_nontarget", "logit_grad_norm"}
  assert set(metrics) == always | parts | set(program().method.terms) | dropmax
  assert metrics["learning_rate"][0] == 0.5
  # SGD with coupled decay of kernels at rate 0.5: the biases moved by half of their gradients.
  assert int(state.step) == 1
  assert 0 < float(metrics["grad_norm"][0]) < 100
  squares = [float(metrics[name][0]) ** 2 for name in parts]
  np.testing.assert_allclose(sum(squares), float(metrics["grad_norm"][0]) ** 2, rtol=1e-5)


def test_seed_and_step_determine_everything():
  first = numbers(*jitted()(start(), batch()))
  again = numbers(*jitted()(jax.jit(program().init)(0), batch()))
  runs.assert_bitwise(first, again)


def test_another_step_or_seed_draws_other_masks():
  state = start()
  others = [
    state,
    state.replace(step=state.step + 1),
    state.replace(step=state.step + 2),
    state.replace(key=jax.random.key(1)),
    state.replace(key=jax.random.key(2)),
  ]
  drawn = set()
  for other in others:
    _, metrics = jitted()(other, batch())
    drawn.add((float(metrics["kept_nontarget"][0]), float(metrics["nll"][0])))
  assert len(drawn) == len(others)
  # How many are kept may agree by chance.
  assert len({kept for kept, _ in drawn}) >= 3


def test_the_root_key_never_changes():
  state, _ = jitted()(start(), batch())
  np.testing.assert_array_equal(jax.random.key_data(state.key), jax.random.key_data(start().key))


@pytest.mark.parametrize(("field", "value"), [("batch_size", 0), ("precision", "float16"), ("seed", -1)])
def test_a_configuration_made_in_python_is_checked(tmp_path, field, value):
  config = train.base_config()
  config[field] = value
  with pytest.raises(train.RunError, match=f"^{field}: "):
    train.train(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()
  with pytest.raises(train.RunError, match=f"^{field}: "):
    train.make_program(config, input_shape=(4,), num_classes=3, num_examples=8)
