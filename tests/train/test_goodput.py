"""The wall time of a run by its kind, over its starts, and the floating-point operations of a step."""

import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.data import batches
from jaxreg.train.devices.flops import count_flops, peak_flops
from jaxreg.train.run import recorder
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.goodput import COMPILING, MOST_PIECES, Times
from jaxreg.train.run.metrics_file import read_records
from jaxreg.train.sealed_tables import parse_table


class Clock:
  """A clock that stands still until it is told to go on; the wall clock and the other one agree."""

  def __init__(self):
    self.now = 1000.0

  def __call__(self):
    return self.now


@pytest.fixture
def clock():
  return Clock()


def started(clock):
  return Times(wall=clock, clock=clock)


def kept(times, workdir, step=0, run="token", config="same"):
  return times.kept(workdir, run, config, step, lambda: None)


def make_steps(times, clock, steps, seconds=1.0):
  for step in steps:
    times.step(step)
    clock.now += seconds


def kinds(times):
  return {name: seconds for name, seconds in times.table()["seconds"].items() if seconds}


def test_every_second_belongs_to_the_innermost_phase(clock):
  times = started(clock)
  clock.now += 3
  with times.phase("restore"):
    clock.now += 2
  with times.phase("steps"):
    clock.now += 5
    with times.phase("input"):
      clock.now += 1
    with times.phase("input", hidden=lambda: True):  # the devices were at work meanwhile
      clock.now += 7
    with times.phase("evaluate"):
      clock.now += 4
      with times.phase("save"):
        clock.now += 0.5
      clock.now += 0.25
  assert kinds(times) == {
    "start": 3,
    "restore": 2,
    "steps": 12,
    "input": 1,
    "evaluate": 4.25,
    "save": 0.5,
  }
  assert times.table()["wall_seconds"] == 22.75
  assert times.table()["share"] == 12 / 22.75


def test_compilations_count_once_where_they_are_nested(clock):
  """A function is traced inside another one; the events come at their ends."""
  times = started(clock)
  with times.phase("steps"):
    clock.now += 1
    clock.now += 2
    times.heard(COMPILING + "jaxpr_trace_duration", 2.0)  # from 1 to 3
    clock.now += 1
    times.heard(COMPILING + "jaxpr_trace_duration", 4.0)  # from 0 to 4
    clock.now += 1
    times.heard("/jax/other", 1.0)
    clock.now += 3
    times.heard(COMPILING + "backend_compile_duration", 3.0)
  assert kinds(times) == {"compile": 7, "steps": 1}


def test_jax_tells_when_it_compiles():
  with Times() as times, times.phase("evaluate"):
    jax.jit(lambda x: jnp.sin(x) @ x)(np.ones((3, 3)))
  before = times.table()["seconds"]["compile"]
  assert 0 < before < times.table()["wall_seconds"]
  jax.jit(lambda x: jnp.cos(x) @ x)(np.ones((3, 3)))
  assert times.table()["seconds"]["compile"] == before


def test_a_run_that_is_killed_and_goes_on(clock, tmp_path):
  """Twice: after the third step since a checkpoint, and before the first checkpoint of its second start."""
  times = started(clock)
  clock.now += 5
  with kept(times, tmp_path), times.phase("steps"):
    make_steps(times, clock, range(1, 5), 2.0)
    with times.phase("save"):
      clock.now += 1
    times.saved()
    make_steps(times, clock, range(5, 8), 3.0)
    times.step(8)  # is dispatched, and the file is written
    clock.now += 0.5  # nobody knows of this half second
    shutil.copy(tmp_path / "times.json", tmp_path / "killed")
  shutil.move(tmp_path / "killed", tmp_path / "times.json")

  clock.now += 60
  times = started(clock)
  clock.now += 5
  with kept(times, tmp_path, step=4), times.phase("steps"):
    assert kinds(times) == {"start": 10, "save": 1, "steps": 8, "repeated": 9, "stopped": 60.5}
    make_steps(times, clock, range(5, 7))
    times.step(7)
    shutil.copy(tmp_path / "times.json", tmp_path / "killed")
  shutil.move(tmp_path / "killed", tmp_path / "times.json")

  times = started(clock)
  with kept(times, tmp_path, step=4), times.phase("steps"):
    make_steps(times, clock, range(5, 9))
    times.saved()
    table = times.finish()
  assert (table["share"], table["starts"], table["wall_seconds"]) == (12 / 94.5, 3, 94.5)
  assert kinds(times) == {"start": 10, "save": 1, "steps": 12, "repeated": 11, "stopped": 60.5}
  assert table["wall_seconds"] == clock.now - 1000  # nothing is missing

  clock.now += 1000
  longer = started(clock)  # the time since the run was done is not lost
  clock.now += 1
  with kept(longer, tmp_path, step=8):
    assert kinds(longer) == {"start": 11, "save": 1, "steps": 12, "repeated": 11, "stopped": 60.5}


def test_a_damaged_checkpoint_costs_the_steps_after_the_one_before(clock, tmp_path):
  """Also if the pieces of the file are longer than the steps between two checkpoints."""
  times = started(clock)
  with kept(times, tmp_path), times.phase("steps"):
    for step in range(1, 2 * MOST_PIECES + 1):
      make_steps(times, clock, [step])
      times.saved()
  assert len(parse_table((tmp_path / "times.json").read_bytes())["steps"]) == MOST_PIECES + 1
  for step in (2 * MOST_PIECES, 2 * MOST_PIECES - 7, 30):
    later = started(clock)
    copy = shutil.copytree(tmp_path, tmp_path / str(step))
    with kept(later, copy, step=step):
      assert later.table()["seconds"]["steps"] == pytest.approx(step)
      assert later.table()["seconds"]["repeated"] == pytest.approx(2 * MOST_PIECES - step)


def test_only_the_times_of_this_run_are_continued(clock, tmp_path):
  times = started(clock)
  with kept(times, tmp_path, run="first"):
    clock.now += 3

  def wall(step, run, config):
    copy = shutil.copytree(tmp_path, tmp_path / "copy")
    later = started(clock)
    with kept(later, copy, step, run, config):
      wall = later.table()["wall_seconds"]
    shutil.rmtree(copy)
    return wall

  assert wall(4, "first", "another length") == 3
  assert wall(0, "second", "same") == 3  # killed before its first checkpoint, it begins with a new token
  assert wall(0, "second", "another") == 0
  assert wall(4, "second", "same") == 0
  file = tmp_path / "times.json"
  whole = file.read_bytes()
  for content in (whole.replace(b'"start": 3', b'"start": 4'), whole[:-9], b"", b"[]", b"null"):
    file.write_bytes(content)
    assert wall(0, "first", "same") == 0


def test_writing_takes_a_hundredth_of_the_time(clock, tmp_path, monkeypatch):
  written = []

  def write_json(file, table):
    written.append(clock.now)
    clock.now += 0.03  # a bucket

  monkeypatch.setattr("jaxreg.train.run.goodput.write_json", write_json)
  times = started(clock)
  with kept(times, tmp_path), times.phase("steps"):
    make_steps(times, clock, range(1, 1001), 0.1)
  assert 30 < len(written) < 40


def test_a_full_disk_costs_the_times_alone(clock, tmp_path):
  times = started(clock)
  with kept(times, tmp_path / "file" / "run"):
    (tmp_path / "file").touch()
    clock.now += 1
    times.saved()
  assert times.table()["wall_seconds"] == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("light_runs")
def test_a_run_that_was_killed_has_the_results_of_a_whole_one_and_says_what_it_lost(
  finished_run, tmp_path, monkeypatch
):
  workdir, original = tmp_path / "run", batches.batch_indices
  took, add = {}, recorder.Recorder.add

  def killed(seed, index, **options):
    if index == 14:
      raise KeyboardInterrupt  # two steps after the checkpoint of step 12
    return original(seed, index, **options)

  def slow(self, steps, metrics):
    took[steps[-1]] = 0.05 * steps[-1]
    time.sleep(took[steps[-1]])
    add(self, steps, metrics)

  monkeypatch.setattr(batches, "batch_indices", killed)
  with monkeypatch.context() as patch:
    patch.setattr(recorder.Recorder, "add", slow)
    with pytest.raises(KeyboardInterrupt):
      train.train(runs.make_config(), workdir)
  monkeypatch.setattr(batches, "batch_indices", original)
  results = train.train(runs.make_config(), workdir)
  assert results == runs.table(finished_run / "results.json") == runs.table(workdir / "results.json")
  assert runs.records(workdir) == runs.records(finished_run)
  goodput = workdirs.read(workdir, "results.json")["goodput"]
  lost = goodput["seconds"]
  assert goodput["starts"] == 2
  assert took[13] + took[14] <= lost["repeated"] < took[13] + took[14] + 0.5
  assert sum(took.values()) - took[13] - took[14] <= lost["steps"]
  assert min(lost[name] for name in ("start", "restore", "evaluate", "save", "stopped")) > 0
  assert goodput["wall_seconds"] == pytest.approx(sum(lost.values()))
  assert goodput["share"] == lost["steps"] / goodput["wall_seconds"]
  assert train.train(runs.make_config(), workdir) == results  # there is nothing left to do


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_operations_of_a_step_are_those_counted_by_hand(accumulate):
  fields = {"method.name": "softmax", "accumulate": accumulate, "model.MLP.dropout_rate": 0.0}
  config = runs.make_config({**fields, "optimizer.name": "sgd", "model.MLP.widths": (512,)})
  program = build(config, load_data(config).describe())
  batch = {
    "inputs": jax.ShapeDtypeStruct((32, 8, 8, 1), jnp.uint8),
    "labels": jax.ShapeDtypeStruct((32,), jnp.int32),
  }
  first, second = 64 * 512, 512 * 10
  products = 2 * 32 * (2 * first + 3 * second)  # nothing needs the gradient of the inputs
  # The rest is one operation or a few for each activation, and for each parameter in each part.
  assert products < count_flops(program.train_step, program.abstract, batch) < 1.15 * products


MATRIX = np.ones((32, 32), np.float32)
PRODUCT = 2 * 32**3


def repeat(x, length, unroll=1):
  return jax.lax.scan(lambda x, _: (x @ MATRIX, None), x, None, length, unroll=unroll)[0]


def two_loops(x):
  return jax.lax.scan(lambda x, _: (jax.jit(repeat, static_argnums=1)(x, 3) @ MATRIX, None), x, None, 5)[0]


def bent(x):
  """Five products, whose gradient needs the values before each sine."""
  return jax.lax.scan(lambda x, _: (jnp.sin(x @ MATRIX), None), x, None, 5)[0]


@pytest.mark.parametrize(
  ("function", "products"),
  [
    (lambda x: x @ MATRIX, 1),
    (lambda x: repeat(x, 10), 10),
    (lambda x: repeat(x, 10, 3), 10),
    (lambda x: repeat(x, 10, 10), 10),
    (lambda x: repeat(x, 10, 20), 10),
    (two_loops, 20),
    (lambda x: jax.lax.fori_loop(0, 7, lambda _, x: x @ MATRIX, x), 7),
    (lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: repeat(x, 4), lambda x: repeat(x, 6), x), 6),
    (jax.grad(lambda x: repeat(x, 10).sum()), 10),  # of a linear function: no forward pass
    (jax.grad(lambda x: jnp.sin(repeat(x, 10)).sum()), 20),
    (jax.value_and_grad(lambda x: jax.checkpoint(bent)(x).sum()), 5 + 5 + 5),
    (jax.vmap(lambda row: repeat(row, 10)), 10),
  ],
)
def test_the_body_of_a_loop_counts_as_often_as_it_runs(function, products):
  # Sines and the loops' counters are less than a twentieth of a product.
  assert count_flops(function, MATRIX) / PRODUCT == pytest.approx(products, abs=0.5)


@pytest.mark.parametrize(
  ("kind", "tera"),
  [
    ("TPU v5 lite", 197),
    ("TPU v5", 459),
    ("TPU v6 lite", 918),
    ("NVIDIA H200", 989.45),
    ("NVIDIA H100 PCIe", 756.5),
    ("NVIDIA H100 NVL", 0),  # not confirmed
    ("NVIDIA A100-SXM4-40GB", 312),
    ("cpu", 0),
  ],
)
def test_the_peak_of_a_device(kind, tera):
  assert peak_flops(kind) == 1e12 * tera


@pytest.mark.thorough
@pytest.mark.usefixtures("light_runs")
def test_the_log_has_the_utilisation_where_the_peak_is_known(finished_run, tmp_path, capsys):
  """A field of the log changes nothing of the run."""
  fields = {"epochs": 1, "log.peak_teraflops": 0.5}
  train.train(runs.make_config(fields), tmp_path / "run")
  assert "  MFU 0." in capsys.readouterr().err
  records = [r for r in read_records(tmp_path / "run") if "train/examples_per_second" in r]
  assert len(records) == runs.STEPS_PER_EPOCH - 1
  quotients = [r["train/mfu"] / r["train/examples_per_second"] for r in records]
  config = runs.make_config(fields)
  program = build(config, load_data(config).describe())
  batch = {
    "inputs": jax.ShapeDtypeStruct((32, 8, 8, 1), jnp.uint8),
    "labels": jax.ShapeDtypeStruct((32,), jnp.int32),
  }
  flops = count_flops(program.train_step, program.abstract, batch)
  # Two devices, batches of 32 examples.
  np.testing.assert_allclose(quotients, flops / 32 / (2 * 0.5e12), rtol=1e-6)
  assert not any("train/mfu" in record for record in read_records(finished_run))
