"""Backbones of NNX, Equinox and plain functions in the trainer: as Linen's, with noise and statistics."""

import sys

import backbones
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs
from flax import nnx

from jaxreg import train
from jaxreg.paths import leaf_names
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data import sources

FORMS = ("LinenNet", "NNXNet", "EquinoxNet", "PLAIN")
# The kernel and bias of each layer, in each form; Equinox's kernels are transposed.
KERNELS = {
  "LinenNet": (("Dense_0", "kernel"), ("Dense_1", "kernel")),
  "NNXNet": (("layers", "0", "kernel"), ("layers", "1", "kernel")),
  "EquinoxNet": (("layers", "0", "weight"), ("layers", "1", "weight")),
  "PLAIN": (("0", "0"), ("1", "0")),
}
# With noise and statistics.
NOISY = {"NNXNet": {"rate": 0.3, "norm": True}, "EquinoxNet": {"rate": 0.3, "norm": True}, "STATEFUL": {}}
# Equinox has the most to carry: keys by example, statistics over the batch, counters.
NAMES = ["EquinoxNet", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("NNXNet", "STATEFUL"))]
SHORT = {"epochs": 2, "method.name": "softmax", "model.MLP.dropout_rate": 0.0}
PLACES = ("params", "model_state", "opt_state")


def make_config(name, fields=None, **options):
  config = train.base_config()
  config.model.name = f"backbones:{name}"
  train.add_options(config)
  own = {f"model.{name}.{option}": value for option, value in options.items()}
  config.update_from_flattened_dict({**runs.TINY, **SHORT, **own, **(fields or {})})
  train.check(config)
  return config


def make(name, fields=None, **options):
  return build(make_config(name, fields, **options), sources.digits().describe())


def leaf(tree, path):
  for part in path:
    tree = tree[part]
  return tree


def with_kernels(name, state, kernels):
  """The state with the same kernels in every form; biases start at 0 everywhere."""
  params = jax.tree.map(jnp.zeros_like, state.params)
  for path, kernel in zip((*KERNELS[name], None), kernels, strict=True):
    *parents, last = ("head", "classifier", "kernel") if path is None else ("backbone", *path)
    leaf(params, parents)[last] = jnp.asarray(kernel.T if last == "weight" else kernel)
  return state.replace(params=params)


@pytest.fixture(scope="module")
def kernels():
  generator = np.random.default_rng(0)
  return [generator.normal(0, 0.3, shape).astype(np.float32) for shape in ((64, 8), (8, 8), (8, 10))]


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.thorough)])
def test_one_network_in_four_forms_trains_to_the_same_numbers(kernels, precision):
  """From the same parameters, with noise, mixes of inputs and of features, and terms of both ends."""
  fields = {
    "precision": precision,
    "noise.names": ("gaussian_noise",),
    "augment.names": ("mixup", "manifold_mixup"),
    "regularizers.names": ("l1_activity", "entropy"),
  }
  found = {}
  for name in FORMS:
    program = make(name, fields)
    state, step = with_kernels(name, jax.jit(program.init)(0), kernels), jax.jit(program.train_step)
    losses = []
    for _ in range(4):
      state, metrics = step(state, runs.digits_batch(32))
      losses.append({key: float(total / count) for key, (total, count) in metrics.items()})
    trained = [leaf(state.params["backbone"], path) for path in KERNELS[name]]
    trained = [kernel.T if name == "EquinoxNet" else kernel for kernel in trained]
    found[name] = (
      losses,
      trained,
      program.predict_fn(state, runs.digits_batch(9)["inputs"], jax.random.key(0)),
    )
  assert not np.allclose(found["LinenNet"][1][0], kernels[0], atol=1e-2)
  # In bfloat16, frameworks may round between a product and its bias or not.
  close = {"rtol": 1e-5, "atol": 1e-6} if precision == "float32" else {"rtol": 0.05, "atol": 0.01}
  for name in FORMS[1:]:
    for ours, theirs in zip(jax.tree.leaves(found[name]), jax.tree.leaves(found["LinenNet"]), strict=True):
      np.testing.assert_allclose(ours, theirs, **close)


@pytest.mark.thorough
def test_plain_functions_of_a_program_are_those_of_a_module():
  config = make_config("PLAIN")
  named = make("PLAIN")
  given = train.make_program(
    config,
    input_shape=(8, 8, 1),
    num_classes=10,
    num_examples=128,
    input_dtype="uint8",
    scale=16.0,
    init_fn=backbones.init_fn,
    apply_fn=backbones.apply_fn,
  )
  batch = runs.digits_batch(32)
  for one, other in zip(
    *(
      jax.tree.leaves(jax.jit(program.train_step)(program.init(0), batch)[0].params)
      for program in (named, given)
    ),
    strict=True,
  ):
    np.testing.assert_allclose(one, other, rtol=1e-6)
  assert leaf_names(named.abstract.params["backbone"]) == ["0/0", "0/1", "1/0", "1/1"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Dropped", "HeldKeys", "EquinoxDropped"])
def test_dropout_draws_from_the_key_of_the_pass_and_only_in_training(name):
  program = make(name)
  state, x = program.init(0), jnp.ones((32, 64))
  head = program.abstract.params["head"]["classifier"]["kernel"].shape[0]
  params = {"backbone": {}, "head": {"classifier": {"kernel": jnp.eye(head, 10), "bias": jnp.zeros(10)}}}
  of = lambda key, train: program.apply_fn(params, state.model_state, x, key=key, train=train)[0]["logits"]
  one, same, other = (np.asarray(of(jax.random.key(number), True)) for number in (1, 1, 2))
  np.testing.assert_array_equal(one, same)
  assert (one != other).any()
  assert (one[0] != one[1]).any()  # examples differ
  assert set(np.unique(one)) == {0.0, 2.0}
  assert abs((one == 0).mean() - 0.5) < 4 * (0.25 / one.size) ** 0.5
  np.testing.assert_array_equal(of(None, False), 1.0)
  if name == "HeldKeys":  # its two layers draw apart
    assert (one[:, ::2] != one[:, 1::2]).any()


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ["NNXNet", "EquinoxNet"])
def test_statistics_are_those_of_the_batch_in_float32(name, precision):
  program = make(name, {"precision": precision}, norm=True)
  state, batch = jax.jit(program.init)(0), runs.digits_batch(32)
  after, _ = jax.jit(program.train_step)(state, batch)
  kernel, bias = (
    np.asarray(leaf(state.params["backbone"], (*KERNELS[name][0][:-1], last)), np.float64)
    for last in (KERNELS[name][0][-1], "bias")
  )
  x = batch["inputs"].reshape(32, -1) / 16.0
  mean = np.tanh(x @ (kernel.T if name == "EquinoxNet" else kernel) + bias).mean(0)
  statistics = after.model_state["backbone"]
  if name == "NNXNet":  # the average begins at 0
    found, wanted = statistics["norm"]["mean"], 0.1 * mean
  else:  # Equinox corrects the beginning in the prediction
    found, wanted = statistics["state"]["1"]["0"], 0.1 * mean
  assert found.dtype == np.float32
  np.testing.assert_allclose(found, wanted, atol=1e-6 if precision == "float32" else 2e-3)
  # A prediction uses them, and changes nothing.
  predictions = program.predict_fn(after, jnp.asarray(x[:3].reshape(3, 8, 8, 1)), jax.random.key(0))
  whole = program.predict_fn(after, jnp.asarray(x.reshape(32, 8, 8, 1)), jax.random.key(0))
  np.testing.assert_allclose(predictions, whole[:3], rtol=1e-5 if precision == "float32" else 0.05, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
  "fields",
  [
    {"mesh.axes": "explicit"},
    pytest.param(
      {"mesh.axes": "explicit", "mesh.shard": ("fsdp",), "mesh.min_size": 128}, marks=pytest.mark.thorough
    ),
  ],
  ids=["whole", "fsdp"],
)
@pytest.mark.parametrize("name", NAMES)
def test_explicit_axes_give_the_same_numbers(name, fields, tmp_path, no_figures, monkeypatch):
  runs.on_devices(monkeypatch, 2)
  for axes, more in (("auto", {}), ("explicit", fields)):
    train.train(make_config(name, more, **NOISY[name]), tmp_path / axes)
  auto, explicit = (runs.final_state(tmp_path / axes) for axes in ("auto", "explicit"))
  for one, other in zip(*map(jax.tree.leaves, (auto, explicit)), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize(
  "fields",
  [{"parallel": "pmap"}, {"accumulate": 2}, {"average.name": "ema"}],
  ids=" ".join,
)
@pytest.mark.thorough
def test_other_ways_to_train(name, fields, tmp_path, no_figures, monkeypatch):
  runs.on_devices(monkeypatch, 2)
  results = train.train(make_config(name, {**fields, "epochs": 6}, **NOISY[name]), tmp_path / "run")
  assert results["val/error"] < 0.8
  state, abstract = runs.final_state(tmp_path / "run"), make(name, **NOISY[name]).abstract
  assert [x.dtype for x in jax.tree.leaves(state["model_state"])] == [
    x.dtype for x in jax.tree.leaves(abstract.model_state)
  ]


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_replicas_are_single_runs_and_a_stopped_run_continues_bit_by_bit(
  name, tmp_path, light_runs, monkeypatch
):
  config = lambda **fields: make_config(name, fields, **NOISY[name])
  train.train(config(seed=1), tmp_path / "single")
  for by in ("loop", "vmap"):
    runs.in_form(monkeypatch, by)
    train.train(config(replicas=2), tmp_path / by)
  runs.in_form(monkeypatch, "loop")
  undo = runs.interrupt_at(monkeypatch, 6)
  with pytest.raises(train.Interrupted, match="stopped at step 6 and saved"):
    train.train(config(replicas=2), tmp_path / "stopped")
  undo()
  train.train(config(replicas=2), tmp_path / "stopped")
  single, loop, vmap, stopped = (
    runs.final_state(tmp_path / folder) for folder in ("single", "loop", "vmap", "stopped")
  )
  runs.assert_bitwise(stopped, loop)
  for place in PLACES:
    for one, both, vmapped in zip(
      *(jax.tree.leaves(state[place]) for state in (single, loop, vmap)), strict=True
    ):
      np.testing.assert_array_equal(both[1], one[0])
      np.testing.assert_allclose(vmapped[1], one[0], rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*NOISY, "PLAIN"])
def test_evaluate_and_load_give_it_back(name, tmp_path, light_runs):
  workdir, config = tmp_path / "run", make_config(name, **NOISY.get(name, {}))
  results = train.train(config, workdir)
  config.job = "evaluate"
  assert train.evaluate(config, workdir)["test/error"] == results["test/error"]
  predict, test = train.load(workdir), sources.digits().limited(128).test
  assert np.mean(np.asarray(predict(test.inputs)).argmax(-1) != test.labels) == results["test/error"]
  x, backbone, head = (
    jnp.asarray(test.inputs / 16.0, jnp.float32),
    predict.backbone,
    predict.state.params["head"],
  )
  if name == "NNXNet":
    assert isinstance(backbone, backbones.NNXNet)
    assert isinstance(backbone.layers[0].kernel, nnx.Param)
    features = backbone(x)
  elif name == "EquinoxNet":
    module, state = backbone
    assert isinstance(module, eqx.Module)
    features, _ = jax.vmap(module, in_axes=(0, None), out_axes=(0, None), axis_name="batch")(x, state)
  elif name == "STATEFUL":
    features, _ = backbones.counted(*backbone, x, key=None, train=False)
  else:
    features = backbones.apply_fn(backbone, x)
  logits = features @ head["classifier"]["kernel"] + head["classifier"]["bias"][None]
  np.testing.assert_allclose(jax.nn.log_softmax(logits), predict(test.inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_a_work_directory_imports_no_foreign_module(tmp_path, light_runs):
  train.train(make_config("PLAIN"), tmp_path / "run")
  module = sys.modules.pop("backbones")
  try:
    with pytest.raises(train.RunError, match="import backbones first"):
      train.load(tmp_path / "run")
  finally:
    sys.modules["backbones"] = module


@pytest.mark.thorough
def test_mistakes_are_one_line():
  with pytest.raises(
    train.RunError, match=r"^model\.name: Wide takes width from the data, .* a default, which"
  ):
    make("Wide")
  mixed = {"augment.names": ("manifold_mixup",), "augment.manifold_mixup.layers": ("backbone/layers/1",)}
  for name in FORMS[1:]:
    message = r"layers: must be among backbone, head, .* only Linen modules are mixed inside$"
    with pytest.raises(train.RunError, match=message):
      make(name, mixed)
  shape = {"input_shape": (8, 8, 1), "num_classes": 10, "num_examples": 128}
  with pytest.raises(train.RunError, match=r"^init_fn, apply_fn: must be given together"):
    train.make_program(make_config("PLAIN"), init_fn=backbones.init_fn, **shape)

  def broken(params, x):
    raise ValueError("model must be a friend, got a foe")

  with pytest.raises(train.RunError, match=r"^config: model must be a friend"):
    train.make_program(make_config("PLAIN"), init_fn=backbones.init_fn, apply_fn=broken, **shape)
