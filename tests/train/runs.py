"""What the trainer's tests share: a tiny run, its final state, and `run.py` as another process."""

import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
from jax.sharding import AxisType, SingleDeviceSharding

from jaxreg import train
from jaxreg.train.assemble import load_data as data_of
from jaxreg.train.assemble import run_parts as assembling
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.run_parts import make_evaluate, replicas_of
from jaxreg.train.config.choices import flatten
from jaxreg.train.config.rows import PARSED, parse_entries
from jaxreg.train.data import batches, sources
from jaxreg.train.devices import replicas as replicas_module
from jaxreg.train.devices.replicas import stacked
from jaxreg.train.finished.restore import restore_config
from jaxreg.train.jobs import train as training
from jaxreg.train.run import checkpoint, manifest
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.metrics_file import read_records
from jaxreg.train.sealed_tables import parse_table, run_token, sealed

ROOT = Path(__file__).resolve().parent.parent.parent

STEPS_PER_EPOCH = 4
TINY = {
  "batch_size": 32,
  "epochs": 6,
  "eval_batch_size": 48,  # 128 examples: the last batch is padded
  "log_every": 1,
  "checkpoint.every": 1,
  "data.subset.limit": 128,
  "model.MLP.widths": (8,),
  "model.MLP.dropout_rate": 0.2,
  "optimizer.learning_rate": 1e-2,
}
FLAGS = [f"--config.{field}={value}" for field, value in TINY.items()]
UNREAD = ("seed", "checkpoint")  # what the functions of a run do not depend on


def on_devices(patch, number):
  """From here on, runs use the first `number` devices."""
  devices = jax.devices()[:number]
  make = lambda kind: jax.make_mesh((number, 1), ("data", "model"), (kind,) * 2, devices=devices)
  meshes = {"auto": make(AxisType.Auto), "explicit": make(AxisType.Explicit)}
  for module in ("run_parts", "compatibility"):
    patch.setattr(
      f"jaxreg.train.assemble.{module}.make_mesh", lambda model, axes="auto", *, slices=1: meshes[axes]
    )


def in_form(patch, form):
  """From here on, replicas run in this form where they can: `vmap` or `loop`."""
  patch.setattr("jaxreg.train.devices.replicas.vmap_is_faster", FORMS[form])


FORMS = {"vmap": lambda number, params: True, "loop": lambda number, params: False}


class Kept:
  """What runs of one configuration may share, to trace and compile it once: on one mesh, in one process."""

  def __init__(self):
    self.programs, self.replicas, self.measured, self.stop = {}, {}, {}, lambda: False

  def build(self, config, data, *, teacher=None):
    if teacher:
      return build(config, data, teacher=teacher)
    fields = flatten(config).items()
    key = json.dumps([[x for x in fields if x[0].split(".")[0] not in UNREAD], data.table()], sort_keys=True)
    if key not in self.programs:
      self.programs[key] = build(config, data)
    return self.programs[key]

  def apply(self, patch):
    """From here on, runs share it."""

    def kept_replicas(config, program):
      key = id(program), replicas_module.vmap_is_faster
      if key not in self.replicas:
        replicas = replicas_of(config, program)
        step = functools.cache(replicas.make_step)
        object.__setattr__(replicas, "make_step", lambda fn, *, scan=False: step(fn, scan=scan))
        self.replicas[key] = replicas
      return self.replicas[key]

    def kept_evaluate(program, replicas, size, *, stop):
      self.stop = stop
      key = id(program), type(replicas)
      if key not in self.measured:
        self.measured[key] = make_evaluate(program, replicas, size, stop=lambda: self.stop())
      return self.measured[key]

    patch.setattr(training, "build", self.build)
    patch.setattr(training, "replicas_of", kept_replicas)
    patch.setattr(assembling, "make_evaluate", kept_evaluate)


def make_config(fields=None, *, base=TINY):
  """The base configuration with `base` and then `fields`, both by dotted names; rows may be texts."""
  config = train.base_config().lock()
  for field, value in {**base, **(fields or {})}.items():
    if field in PARSED and isinstance(value, tuple) and all(isinstance(entry, str) for entry in value):
      value = parse_entries(field, value, flatten(config))
    config.update_from_flattened_dict({field: value})
  train.check(config)
  return config


def read_source(name, /, **options):
  """The whole data of a source, read and checked as a run does it: errors name the fields."""
  subset = {f"data.subset.{key}": value for key, value in options.pop("subset", {}).items()}
  if "validation_fraction" in options:
    subset["data.validation_fraction"] = options.pop("validation_fraction")
  own = {f"data.{name}.{key}": value for key, value in options.items()}
  config = make_config({"data.name": name, **own, **subset})
  data = data_of.read_source(config)
  data_of.used_part(config, data)
  return data


def final_state(workdir, step=None, build=build):
  """A saved state on the host: params, optimizer state, the key as numbers; each with an axis of replicas."""
  config = restore_config(train.base_config(), workdir)
  program = build(config, workdirs.read_data(workdir))
  step = max(manifest.good_steps(workdir)) if step is None else step
  like = stacked(program.abstract, config.replicas)
  like = checkpoint.abstract(like, SingleDeviceSharding(jax.devices()[0]))
  state = checkpoint.restore(workdir, step, like)
  return jax.device_get(
    {
      "step": state.step,
      "key": jax.random.key_data(state.key),
      "params": state.params,
      "opt_state": state.opt_state,
      "model_state": state.model_state,
      "extras": state.extras,
    }
  )


def network_of(apply_fn):
  """A network that is one function, whose features no term sees."""

  def features_and_outputs(*args, mixing=None, **options):
    outputs, state = apply_fn(*args, **options)
    return (None, outputs), state

  return SimpleNamespace(features_and_outputs=features_and_outputs)


def digits_batch(size, weights=None):
  """The first digits for training, each of weight 1."""
  digits = sources.digits().train
  weights = np.ones(size, np.float32) if weights is None else weights
  return {"inputs": digits.inputs[:size], "labels": digits.labels[:size].astype(np.int32), "weights": weights}


def assert_near(ours, theirs, relative=1e-6):
  """Each leaf of two trees to `relative` of its own largest value."""
  assert jax.tree.structure(ours) == jax.tree.structure(theirs)
  for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs)):
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    assert np.isfinite(other).all()
    name = jax.tree_util.keystr(path)
    np.testing.assert_allclose(one, other, rtol=0, atol=relative * np.abs(other).max(), err_msg=name)


def assert_bitwise(ours, theirs):
  """Two trees of arrays are the same, bit by bit."""
  assert jax.tree.structure(ours) == jax.tree.structure(theirs)
  leaves = jax.tree.leaves(ours)
  assert len(leaves) > 4
  for one, other in zip(leaves, jax.tree.leaves(theirs), strict=True):
    one, other = np.asarray(one), np.asarray(other)
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()


def interrupt_at(monkeypatch, step, number=signal.SIGTERM):
  """A real signal, while that step is being prepared; returns what takes it back."""
  original = batches.batch_indices

  def batch_indices(seed, index, **options):
    if index == step - 1:
      os.kill(os.getpid(), number)
    return original(seed, index, **options)

  monkeypatch.setattr(batches, "batch_indices", batch_indices)
  return lambda: monkeypatch.setattr(batches, "batch_indices", original)


def records(workdir):
  """The records without what depends on the clock."""
  found = read_records(workdir)
  assert found
  timed = ("train/examples_per_second", "train/mfu")
  return [{k: v for k, v in record.items() if k not in timed} for record in found]


def table(file):
  """A JSON file of a run, without its checksum and without what depends on the clock."""
  table = parse_table(file.read_bytes(), run=token(file))
  if file.name == "results.json":
    table.pop("goodput", None)
  return table


def reseal(file, table):
  """Writes another table into a file of a run, with the right checksum."""
  file.write_text(json.dumps(sealed(table, token(file))))


def token(file):
  """The token that the checksum of a run's file covers; `config.json` holds it itself."""
  workdir = file.parent.parent if file.parent.name == "manifests" else file.parent
  return "" if file.name == "config.json" else run_token(workdir)


def snapshot(folder):
  """Every path below `folder` with its time of change and bytes."""
  return {
    str(path.relative_to(folder)): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
    for path in sorted(folder.rglob("*"))
  }


def flip(file, position=None, bit=0):
  """Flips one bit of a file; without a position, of its middle byte."""
  data = bytearray(file.read_bytes())
  assert data
  data[len(data) // 2 if position is None else position] ^= 1 << bit
  file.write_bytes(data)


def free_port():
  with socket.socket() as probe:
    probe.bind(("localhost", 0))
    return probe.getsockname()[1]


def start(arguments, cwd, *, optimised=True, devices=1, changes=None):
  """Starts `run.py` in another process; not `optimised`, it compiles faster."""
  environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
  environment |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), **(changes or {})}
  if not optimised:
    environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
  return subprocess.Popen(
    [sys.executable, str(ROOT / "run.py"), *map(str, arguments)],
    cwd=cwd,
    env=environment,
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
  )


def run(arguments, cwd, **options):
  """Runs `run.py` to its end: `(status, stdout, stderr)`."""
  process = start(arguments, cwd, **options)
  out, err = process.communicate(timeout=900)
  return process.returncode, out, err


def own_lines(stderr):
  """The lines that `run.py` itself says of how it ended."""
  assert "Traceback" not in stderr, stderr
  return re.findall(r"^run\.py: (?!warning: ).*$", stderr, re.MULTILINE)
