"""One, four or eight devices: the same data, masks and losses; `pmap` is `vmap` with an axis."""

import functools
import re

import jax
import numpy as np
import pytest
import runs
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg._dropmax_masks import dropmax_log_mask
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.assemble.run_parts import replicas_of
from jaxreg.train.data.batches import batch_indices, make_source
from jaxreg.train.devices.wrap import make_step
from jaxreg.train.run import initial_state

STEPS, SEED = 10, 7
OTHERS = [pytest.param(4, marks=pytest.mark.slow), 8]


def make_mesh(devices):
  return jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


@functools.cache
def prepared():
  config = runs.make_config({"optimizer.name": "sgd", "optimizer.learning_rate": 0.05})
  dataset = load_data(config)
  return config, dataset, build(config, dataset.describe())


def drawing(train_step, apply_fn):
  """The step, with the masks that its model and its loss draw among the metrics."""

  def step(state, batch, **options):
    key = jax.random.fold_in(state.key, state.step)
    apply_key, loss_key, *_ = jax.random.split(key, 4)
    # The same input for every example: what differs is the dropout of the layer.
    inputs = 0 * batch["inputs"] + 1
    outputs, _ = apply_fn(state.params, state.model_state, inputs, key=apply_key, train=True)
    layer = outputs["logits"] != outputs["logits"][:1]
    flat = 0 * outputs["logits"]
    mask = dropmax_log_mask(loss_key, flat, batch["labels"])
    state, metrics = train_step(state, batch, **options)
    return state, {"metrics": metrics, "layer": layer, "mask": mask, "labels": batch["labels"]}

  return step


@functools.cache
def trained(devices):
  config, dataset, program = prepared()
  mesh = make_mesh(devices)
  source = make_source(mesh, dataset.train, resident=True)
  step, place = make_step(drawing(program.train_step, program.apply_fn), mesh)
  state = jax.jit(program.init, out_shardings=NamedSharding(mesh, P()))(SEED)
  seen = []
  for number in range(STEPS):
    indices = batch_indices(SEED, number, num_examples=len(dataset.train), batch_size=config.batch_size)
    batch = place(source.batch(indices))
    assert len(batch["indices"].sharding.device_set) == devices
    state, found = step(state, source.arrays, batch)
    seen.append(jax.device_get({**found, "indices": batch["indices"]}))
  return seen


@pytest.mark.thorough
@pytest.mark.parametrize("devices", OTHERS)
def test_masks_and_data_order_are_bitwise_those_of_one_device(devices):
  kept = []
  for ours, theirs in zip(trained(devices), trained(1), strict=True):
    for name in ("indices", "labels", "mask", "layer"):
      assert ours[name].tobytes() == theirs[name].tobytes(), name
    kept.append(ours["mask"])
  assert len({mask.tobytes() for mask in kept}) == STEPS
  assert {found["layer"].any() for found in trained(1)} == {np.True_}


@pytest.mark.thorough
@pytest.mark.parametrize("devices", OTHERS)
def test_losses_are_those_of_one_device(devices):
  loss = lambda found: found["metrics"]["loss"][0] / found["metrics"]["loss"][1]
  ours, theirs = ([loss(found) for found in trained(n)] for n in (devices, 1))
  np.testing.assert_allclose(ours, theirs, atol=1e-5)
  assert theirs[0] - theirs[-1] > 0.1


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["vmap", "loop"])
def test_orthogonal_kernels_of_replicas_are_not_one_batch_of_lapack(form, monkeypatch):
  """A batch is spread over the threads of the CPU, which hangs where every device waits in one of them."""
  runs.in_form(monkeypatch, form)
  config = runs.make_config({"model.name": "RNN", "replicas": 2})
  program = build(config, load_data(config).describe())
  init = initial_state.compile_init(program, replicas_of(config, program))
  text = init.lower(np.arange(2, dtype=np.uint32)).as_text()
  assert re.findall(r"@lapack_sgeqrf_ffi.*?num_batch_dims = \"(\d)\"", text) == ["0"]


@pytest.mark.thorough
def test_replicas_of_an_rnn_train_on_two_devices(tmp_path):
  """With as many threads as devices: it hung, and no signal was heard."""
  small = {"model.name": "RNN", "replicas": 2, "steps": 1, "data.subset.limit": 64}
  arguments = [f"--config.{field}={value}" for field, value in small.items()]
  process = runs.start([*arguments, "--workdir", tmp_path / "run"], tmp_path, optimised=False, devices=2)
  try:
    _, err = process.communicate(timeout=240)
  finally:
    process.kill()
  assert process.returncode == 0, err
