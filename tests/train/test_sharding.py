"""Parameters split over a mesh with a model axis: smaller shards, the same masks, the same training."""

import functools
import re

import jax
import numpy as np
import pytest
import runs
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.rows import parse_entries
from jaxreg.train.data.batches import batch_indices, make_source
from jaxreg.train.devices.sharding import gathered_layout, make_layout, make_mesh, parse, stacked_layout
from jaxreg.train.devices.wrap import make_step
from jaxreg.train.finished.restore import restore_states
from jaxreg.train.step.state import TrainState

STEPS, SEED = 4, 7
HEAD = {"mesh.model": 2, "mesh.shard": ("head",)}  # ten classes
FSDP = {"mesh.shard": ("fsdp",), "mesh.min_size": 128}
BOTH = {"mesh.model": 2, "mesh.shard": ("head", "fsdp"), "mesh.min_size": 128}
MESHES = {"head": HEAD, "fsdp": FSDP, "both": BOTH}


def shapes(**params):
  """A state with a momentum beside such parameters."""
  struct = lambda shape: jax.ShapeDtypeStruct(shape, np.float32)
  tree = lambda: {"backbone": {"kernel": struct(params["kernel"])}, "head": {"bias": struct(params["bias"])}}
  extras = {"average": {"count": struct(()), "params": tree()}, "kernel": {"kernel": struct((3,))}}
  return TrainState(struct(()), struct(()), tree(), {}, ({"mu": tree()}, struct(())), extras)


def specs_of(shard, *, model=2, min_size=0, **params):
  state = shapes(**{"kernel": (16, 8), "bias": (10,), **params})
  rules = parse_entries("mesh.shard", shard)
  return jax.tree.map(lambda x: x.spec, make_layout(state, make_mesh(model), rules, min_size))


@pytest.mark.parametrize(
  ("shard", "kernel", "bias"),
  [
    (("head",), P(), P("model")),
    (("fsdp",), P("data"), P()),  # 4 divides 16, and does not divide 10
    (("head", "fsdp"), P("data"), P("model")),
    (("*: largest=model",), P("model"), P("model")),
    (("*: largest=data+model",), P(("data", "model")), P()),
    (("*/kernel: 1=data",), P(None, "data"), P()),
    (("back*: -1 = model", "*: largest=data"), P(None, "model"), P()),
  ],
)
def test_the_first_rule_that_matches_counts_and_the_rest_of_the_state_follows(shard, kernel, bias):
  state = specs_of(shard)
  for part in (state.params, state.opt_state[0]["mu"], state.extras["average"]["params"]):
    assert part["backbone"]["kernel"] == kernel
    assert part["head"]["bias"] == bias
  # Of another shape, or of no parameter.
  for whole in (state.step, state.opt_state[1], state.extras["average"]["count"]):
    assert whole == P()
  assert state.extras["kernel"]["kernel"] == P()


def test_the_largest_dimension_of_what_is_large_enough():
  split = lambda **options: specs_of(("fsdp",), **options).params["backbone"]["kernel"]
  assert split(kernel=(4, 12)) == P(None, "data")
  assert split(kernel=(8, 8)) == P(None, "data")
  assert split(kernel=(12, 9, 4)) == P("data")
  assert split(kernel=(9, 7)) == P()
  assert split(kernel=(16, 8), min_size=128) == P("data")
  assert split(kernel=(16, 8), min_size=129) == P()


def test_without_rules_nothing_is_split():
  mesh = make_mesh()
  assert dict(mesh.shape) == {"data": 8, "model": 1}
  assert make_layout(shapes(kernel=(16, 8), bias=(10,)), mesh, (), 0) == NamedSharding(mesh, P())


def test_layouts_of_replicas_and_of_what_a_forward_pass_reads():
  mesh = make_mesh(2)
  layout = {"a": NamedSharding(mesh, P(None, "data")), "b": NamedSharding(mesh, P(("data", "model")))}
  spec = lambda tree: jax.tree.map(lambda x: x.spec, tree)
  assert spec(stacked_layout(layout)) == {"a": P(None, None, "data"), "b": P(None, ("data", "model"))}
  assert spec(gathered_layout({**layout, "c": NamedSharding(mesh, P(None, "model"))})) == {
    "a": P(None, None),
    "b": P("model"),
    "c": P(None, "model"),
  }


@pytest.mark.parametrize("text", ["heads", "head/*", "*: 1=rows", "*: widest=data", "*: 1=data+data", "", 3])
def test_what_is_no_rule(text):
  with pytest.raises(
    train.RunError, match=r"^mesh.shard: rules are head, fsdp or 'GLOB: DIMENSION=AXIS'.*got"
  ):
    parse(*parse_entries("mesh.shard", [text]))


@pytest.mark.parametrize("rule", [3, ("head/*", -1), ("head/*", "widest", "model"), (1, 1, "data"), None])
def test_values_that_are_no_rule(rule):
  with pytest.raises(train.RunError, match=r"^mesh.shard: rules are head, fsdp or"):
    parse(rule)


@pytest.mark.parametrize(
  ("shard", "message"),
  [
    (("tail/*: 0=model",), "'tail/.: 0=model' fits no parameter; there are backbone/kernel, head/bias"),
    (("head/*: 1=model",), r"needs a dimension that head/bias \(10,\) does not have"),
    (("head",), r"'head' cannot split the 10 of head/bias \(10,\) over 4 devices; give another mesh.model"),
  ],
)
def test_rules_that_do_not_fit(shard, message):
  with pytest.raises(train.RunError, match=message):
    specs_of(shard, model=4)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"mesh.model": 0}, "mesh.model: must be at least 1"),
    ({"mesh.model": 2}, "mesh.model: nothing is split over the model axis; give 1, or name it"),
    ({"mesh.model": 2, "mesh.shard": ("fsdp",)}, "nothing is split over the model axis"),
    ({**HEAD, "parallel": "pmap"}, "mesh.shard: must be empty with parallel=pmap"),
  ],
)
def test_what_cannot_be_combined(fields, message):
  with pytest.raises(train.RunError, match=message):
    runs.make_config(fields)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({**HEAD, "mesh.model": 3}, "mesh.model: must divide the number of devices, 8, got 3"),
    ({**HEAD, "mesh.model": 4}, "'head' cannot split the 10 of head/.* over 4 devices"),
    ({**HEAD, "batch_size": 30}, "divisible by the number of devices on the data axis, 4, got 30"),
  ],
)
def test_what_does_not_fit_the_devices_is_told_before_anything_is_written(tmp_path, fields, message):
  with pytest.raises(train.RunError, match=message):
    train.train(runs.make_config(fields), tmp_path / "run")
  assert not (tmp_path / "run").exists()


@functools.cache
def stepped(items):
  """A few steps with dropout and the masks of the loss: the state and the metrics of each step."""
  config = runs.make_config(
    {"optimizer.name": "sgd", "optimizer.sgd.momentum": 0.9, "model.MLP.widths": (16,), **dict(items)}
  )
  dataset = load_data(config)
  program = build(config, dataset.describe())
  mesh = make_mesh(config.mesh.model)
  layout = make_layout(program.abstract, mesh, config.mesh.shard, config.mesh.min_size)
  source = make_source(mesh, dataset.train, resident=True)
  step, place = make_step(program.train_step, mesh, layout=layout)
  state = jax.jit(program.init, out_shardings=layout)(SEED)
  metrics = []
  for number in range(STEPS):
    indices = batch_indices(SEED, number, num_examples=len(dataset.train), batch_size=config.batch_size)
    state, found = step(state, source.arrays, place(source.batch(indices)))
    metrics.append(jax.device_get(found))
  return state, metrics


def shards(tree):
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): (x.shape, x.addressable_shards[0].data.shape)
    for path, x in jax.tree_util.tree_leaves_with_path(tree)
  }


@pytest.mark.parametrize(
  ("method", "mesh"),
  [
    pytest.param("softmax", "head", marks=pytest.mark.thorough),
    pytest.param("dropmax", "both", marks=pytest.mark.thorough),
    pytest.param("softmax", "fsdp", marks=pytest.mark.slow),
    pytest.param("group_softmax", "both", marks=pytest.mark.slow),
  ],
)
def test_a_split_state_trains_as_a_whole_one(method, mesh):
  options = {"method.name": method}
  if method == "group_softmax":
    options["method.group_softmax.loss.num_groups"] = 2
  whole, expected = stepped(tuple(options.items()))
  split, metrics = stepped(tuple({**options, **MESHES[mesh]}.items()))
  theirs = {"params": whole.params, "opt_state": whole.opt_state}
  ours = {"params": split.params, "opt_state": split.opt_state}
  runs.assert_near(ours, theirs, 1e-6)
  for one, other in zip(metrics, expected, strict=True):
    runs.assert_near(one, other, 2e-6)
    if method == "dropmax":  # eighths of counts: the masks are the same
      assert one["kept_nontarget"] == other["kept_nontarget"]
  found = shards(ours)
  assert any(name.startswith("opt_state") and name.endswith("head/classifier/kernel") for name in found)
  for name, (shape, shard) in found.items():
    if "head" in name and mesh != "fsdp":
      assert shard == (*shape[:-1], shape[-1] // 2), name
    elif "backbone" in name and name.endswith("kernel") and mesh != "head":
      parts = 8 if mesh == "fsdp" else 4
      assert np.prod(shard) * parts == np.prod(shape), name
    elif mesh != "fsdp" or "kernel" not in name:
      assert shard == shape, name


@pytest.mark.slow
def test_gradients_are_summed_over_the_devices_once_a_step():
  """In one operation, of as many numbers as the kernels have; nothing else of that size is sent."""
  assert jax.config.read("jax_disable_most_optimizations")
  jax.config.update("jax_disable_most_optimizations", False)
  try:
    config = runs.make_config({"model.MLP.widths": (16, 16)})
    dataset = load_data(config)
    program = build(config, dataset.describe())
    mesh = make_mesh()
    source = make_source(mesh, dataset.train, resident=True)
    step, place = make_step(program.train_step, mesh)
    state = jax.device_put(program.init(SEED), NamedSharding(mesh, P()))
    batch = place(source.batch(np.arange(config.batch_size, dtype=np.int32)))
    text = step.lower(state, source.arrays, batch).compile().as_text()
  finally:
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()
  sent = re.findall(r"= (\(.*?\)|\S+) (all-\w+|reduce-scatter|collective-permute)(?:-start)?\(", text)
  assert {kind for _, kind in sent} == {"all-reduce"}
  matrices = [re.findall(r"f32\[(\d+),(\d+)\]", shapes) for shapes, _ in sent]
  (gradients,) = filter(None, matrices)
  kernels = [x.shape for x in jax.tree.leaves(program.abstract.params) if x.ndim == 2]
  assert sorted(sorted(map(int, shape)) for shape in gradients) == sorted(map(sorted, kernels))


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_run_goes_on_under_another_mesh(tmp_path, monkeypatch, capsys, finished_run):
  """Head over the model axis, then parameters over the data axis, then whole: what is saved is the same."""
  workdir = tmp_path / "run"
  for stop, mesh in ((5, HEAD), (14, FSDP)):
    undo = runs.interrupt_at(monkeypatch, stop)
    with pytest.raises(train.Interrupted):
      train.train(runs.make_config(mesh), workdir)
    undo()
  results = train.train(runs.make_config(), workdir)
  assert "resuming at step 14 of 24" in capsys.readouterr().err
  expected = runs.table(finished_run / "results.json")
  assert results.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(results[name], value, rtol=0, atol=1e-5, err_msg=name)
  runs.assert_near(runs.final_state(workdir)["params"], runs.final_state(finished_run)["params"], 1e-4)
  # What a work directory holds does not tell the mesh.
  config = runs.make_config({**BOTH, "job": "evaluate"})
  (state,) = restore_states(config, workdir).states
  assert shards(state.params)["head/classifier/kernel"] == ((8, 10), (8, 5))
  assert shards(state.params)["backbone/Dense_0/kernel"] == ((64, 8), (16, 8))
  assert abs(train.evaluate(config, workdir)["test/nll"] - results["test/nll"]) < 1e-6


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_replicas_averages_and_several_steps_a_dispatch(tmp_path, monkeypatch):
  """Split, they loop; the mean of the iterates lies as the parameters do, and is predicted with."""
  fields = {
    "replicas": 2,
    "epochs": 3,
    "average.name": "ema",
    "average.ema.decay": 0.5,
    "steps_per_dispatch": 2,
  }
  runs.in_form(monkeypatch, "loop")
  whole = train.train(runs.make_config(fields), tmp_path / "whole")
  split = train.train(runs.make_config({**fields, **BOTH}), tmp_path / "split")
  assert split.keys() == whole.keys()
  for name, values in whole["replicas"].items():
    np.testing.assert_allclose(split["replicas"][name], values, rtol=0, atol=1e-5, err_msg=name)
  config = runs.make_config({**fields, **BOTH, "job": "evaluate"})
  states = restore_states(config, tmp_path / "split").states
  assert len(states) == 2
  found = shards(states[1].extras)
  assert found["average/params/params/head/classifier/kernel"] == ((8, 10), (8, 5))
  images = load_data(config).test.inputs[:8]
  load = lambda name: np.asarray(train.load(tmp_path / name, replica=1)(images))
  np.testing.assert_allclose(load("split"), load("whole"), atol=1e-5)
