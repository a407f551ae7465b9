"""Several slices: parameters split within each, batches over all of them, and the values of one slice."""

import functools

import jax
import numpy as np
import pytest
import runs
from jax.sharding import PartitionSpec as P

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.data.batches import batch_axes, batch_indices, local_positions, make_source
from jaxreg.train.devices.sharding import make_layout, make_mesh, num_parts
from jaxreg.train.devices.wrap import make_step

FSDP = {"mesh.shard": ("fsdp",), "mesh.min_size": 128}
STEPS, SEED = 4, 7


def test_the_mesh_has_consecutive_devices_in_a_simulated_slice():
  mesh = make_mesh(2, slices=2)
  assert dict(mesh.shape) == {"slice": 2, "data": 2, "model": 2}
  assert [device.id for device in mesh.devices.ravel()] == list(range(8))
  assert (batch_axes(mesh), num_parts(mesh)) == (("slice", "data"), 4)
  assert (batch_axes(make_mesh()), num_parts(make_mesh())) == ("data", 8)
  assert local_positions(mesh, 16).tolist() == list(range(16))


class Device:
  """A device of a slice that is not here."""

  platform, device_kind, process_index = "gpu", "NVIDIA H100 80GB HBM3", 0

  def __init__(self, number, slice_index):
    self.id, self.slice_index = number, slice_index

  def __repr__(self):
    return f"{self.id}"


def test_real_slices_are_those_that_jax_knows():
  devices = [Device(number, number % 2) for number in range(8)]
  mesh = make_mesh(slices=2, devices=devices)
  assert [[device.slice_index for device in row.ravel()] for row in mesh.devices] == [[0] * 4, [1] * 4]
  with pytest.raises(
    train.RunError, match=r"mesh.slices: must be the number of slices that there are, 2, got 4"
  ):
    make_mesh(slices=4, devices=devices)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"mesh.slices": 3}, "mesh.slices: must divide the number of devices, 8, got 3"),
    (
      {"mesh.slices": 2, "mesh.model": 8, "mesh.shard": ("head",)},
      "mesh.model: must divide the number of devices of a slice, 4, got 8",
    ),
    (
      {"mesh.slices": 2, "batch_size": 36},
      "batch_size: must be divisible by the number of devices, 8, got 36",
    ),
  ],
)
def test_what_does_not_fit_the_devices(tmp_path, fields, message):
  with pytest.raises(train.RunError, match=message):
    train.train(runs.make_config(fields), tmp_path / "run")


def test_pmap_has_one_slice():
  with pytest.raises(train.RunError, match=r"mesh.slices: must be 1 with parallel=pmap, got 2"):
    runs.make_config({"mesh.slices": 2, "parallel": "pmap"})


@functools.cache
def stepped(items):
  """A few steps with dropout and DropMax's masks: the state, the metrics of each step and the program."""
  config = runs.make_config(
    {"method.name": "dropmax", "optimizer.name": "sgd", "optimizer.sgd.momentum": 0.9, **dict(items)}
  )
  dataset = load_data(config)
  program = build(config, dataset.describe())
  mesh = make_mesh(config.mesh.model, config.mesh.axes, slices=config.mesh.slices)
  layout = make_layout(program.abstract, mesh, config.mesh.shard, config.mesh.min_size)
  source = make_source(mesh, dataset.train, resident=True)
  step, place = make_step(program.train_step, mesh, layout=layout)
  state = jax.jit(program.init, out_shardings=layout)(SEED)
  metrics = []
  for number in range(STEPS):
    indices = batch_indices(SEED, number, num_examples=len(dataset.train), batch_size=config.batch_size)
    batch = place(source.batch(indices))
    assert batch["indices"].sharding.spec == P(batch_axes(mesh))
    state, measured = step(state, source.arrays, batch)
    metrics.append(jax.device_get(measured))
  return state, metrics


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, FSDP], ids=["data", "fsdp"])
def test_two_slices_of_four_train_as_eight_devices(options):
  one, expected = stepped(tuple(options.items()))
  two, metrics = stepped(tuple({**options, "mesh.slices": 2}.items()))
  runs.assert_near(two.params, one.params, 1e-6)
  runs.assert_near(two.opt_state, one.opt_state, 1e-6)
  for found, wanted in zip(metrics, expected, strict=True):
    runs.assert_near(found, wanted, 2e-6)
    assert found["kept_nontarget"] == wanted["kept_nontarget"]  # counts: the masks are the same
  if options:
    kernel = two.params["backbone"]["Dense_0"]["kernel"]
    assert kernel.sharding.spec == P("data")
    assert np.prod(kernel.addressable_shards[0].data.shape) * 4 == kernel.size


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_run_goes_on_with_another_number_of_slices(tmp_path, monkeypatch, capsys, finished_run):
  workdir = tmp_path / "run"
  undo = runs.interrupt_at(monkeypatch, 5)
  with pytest.raises(train.Interrupted):
    train.train(runs.make_config({"mesh.slices": 2, **FSDP}), workdir)
  undo()
  results = train.train(runs.make_config({"mesh.slices": 4}), workdir)
  assert "resuming at step 5 of 24" in capsys.readouterr().err
  for name, value in runs.table(finished_run / "results.json").items():
    np.testing.assert_allclose(results[name], value, rtol=0, atol=1e-5, err_msg=name)
