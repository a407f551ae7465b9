"""`job = compile`: compiles the training step for devices that are not here, and predicts whether it fits.

Nothing is run. Bytes are for one device. The time is a range. The shortest time computes at most of the
peak, and reads, writes and sends meanwhile. The longest computes at a smaller part of it, and does one after
another. Latencies, input, evaluation and saving are left out, so small networks take longer.
"""

import collections
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg.train.assemble.compatibility import check_devices
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.choices import Config
from jaxreg.train.data.batches import batch_axes
from jaxreg.train.data.dataset import DataSpec, is_tokens
from jaxreg.train.devices.collectives import ACROSS, collectives
from jaxreg.train.devices.flops import count_flops
from jaxreg.train.devices.sharding import make_layout, make_mesh
from jaxreg.train.devices.topology import CHIPS, GIB, Chip, parse_topology
from jaxreg.train.devices.wrap import make_step
from jaxreg.train.errors import RunError, first_line
from jaxreg.train.finished.reuse import make_teacher
from jaxreg.train.sealed_tables import Table
from jaxreg.train.step.program import Program
from jaxreg.train.user_modules import short
from jaxreg.typing import PyTree

# Parts of the peak that a step's arithmetic reaches, from the best to an ordinary one: ours, as an estimate.
UTILIZATION = (0.6, 0.25)
NO_ROOM = "RESOURCE_EXHAUSTED"


def compile(config: Config, workdir: Path) -> Table:
  """Compiles the training step for `config.compile.topology`; nothing is written into `workdir`.

  Raises:
    RunError: if the step does not fit the memory of a device, after the report was printed.
  """
  del workdir
  slices = config.mesh.slices
  topology = parse_topology(config.compile.topology, slices)
  data, resident = describe_data(config)
  results = compile_step(config, data, topology.devices(), topology.chip, resident=resident)
  results |= {"topology": topology.name, "slices": slices, "is_tpu": topology.is_tpu}
  if not results["fits"]:
    print("\n".join(report_lines(results)))
    needs = results.get("no_room") or f"it needs {_gib(results['bytes']['total'])}"
    raise RunError(
      f"compile.topology: the step does not fit {topology.name}, {_gib(topology.chip.memory)} a device "
      f"({needs}); try accumulate, remat, precision=bfloat16 or mesh.shard=('fsdp',)"
    )
  return results


def describe_data(config: Config) -> tuple[DataSpec, bool]:
  """Returns the description of the data, which may not be here, and whether each device keeps a copy."""
  fields = config.compile
  if fields.input_shape:
    shape, sizes = tuple(fields.input_shape), {"train": fields.num_examples or config.batch_size}
    num_classes = config.data.subset.num_classes or fields.num_classes
    data = DataSpec(shape, "uint8", num_classes, sizes, scale=255.0)
    streams = bool(config.data[short(config.data.name)].get("stream")) or config.data.name == "image_folder"
    return data, not streams and _resident_bytes(data) <= config.data.resident_gib * GIB
  try:
    dataset = load_data(config)
  except RunError as error:
    raise RunError(
      f"{error}; to compile without the data, give --config.compile.input_shape, num_classes and num_examples"
    ) from error
  return dataset.describe(), not dataset.streams() and dataset.nbytes <= config.data.resident_gib * GIB


def compile_step(
  config: Config, data: DataSpec, devices: Sequence[Any], chip: Chip, *, resident: bool
) -> Table:
  """Compiles the training step for these devices, and returns its bytes, collectives, operations and time.

  Several replicas count as steps one after another, whose states are all on the devices.
  """
  mesh = make_mesh(config.mesh.model, config.mesh.axes, slices=config.mesh.slices, devices=devices)
  check_devices(config, mesh)
  teacher = make_teacher(data, config.teacher.workdir) if config.teacher.workdir else None
  program = build(config, data, teacher=teacher)
  layout = make_layout(program.abstract, mesh, config.mesh.shard, config.mesh.min_size)
  step, _ = make_step(program.train_step, mesh, config.parallel, layout=layout)
  state = jax.tree.map(_placed, program.abstract, jax.tree.broadcast(layout, program.abstract))
  whole, parts = NamedSharding(mesh, P()), NamedSharding(mesh, P(batch_axes(mesh)))
  size = config.batch_size + config.data.unlabelled.batch_size
  if resident:
    arrays = jax.tree.map(lambda x: _placed(x, whole), _examples(data, sum(data.sizes.values())))
    batch = {"indices": _placed(jax.ShapeDtypeStruct((size,), jnp.int32), parts)}
  else:
    arrays, batch = {}, jax.tree.map(lambda x: _placed(x, parts), _examples(data, size))
  if config.parallel == "pmap":
    batch = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct((mesh.size, x.shape[0] // mesh.size, *x.shape[1:]), x.dtype), batch
    )
  replicas, number = config.replicas, mesh.size
  flops = replicas * count_flops(program.train_step, program.abstract, _examples(data, size)) / number
  model_flops = replicas * _model_flops(config, data, program, size) / number
  held = {
    "parameters": replicas * _bytes(state.params),
    "optimizer": replicas * _bytes((state.opt_state, state.extras, state.model_state)),
    "data": _bytes((arrays, batch)),
  }
  results: Table = {
    "devices": number,
    "batch_size": config.batch_size,
    "flops": flops,
    "model_flops": model_flops,
    "num_parameters": sum(int(np.prod(x.shape)) for x in jax.tree.leaves(program.abstract.params)),
  }
  try:
    compiled = step.lower(state, arrays, batch).compile()
  except jax.errors.JaxRuntimeError as error:
    if NO_ROOM not in str(error):
      raise
    return results | {
      "fits": False,
      "no_room": first_line(error),
      "bytes": held | {"total": sum(held.values())},
    }
  memory = compiled.memory_analysis()
  inputs = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
  total = inputs + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
  total += (replicas - 1) * (held["parameters"] + held["optimizer"]) // replicas
  activations = memory.temp_size_in_bytes
  held |= {"activations": activations, "total": total}
  held["other"] = total - sum(held[name] for name in ("parameters", "optimizer", "data", "activations"))
  sent, counts = _sends(compiled.as_text(), number)
  touched = replicas * (inputs + 2 * activations)
  seconds = step_seconds(chip, config.precision, flops, touched, sent, number)
  return results | {
    "fits": total <= chip.memory,
    "bytes": held,
    "collectives": counts,
    "sent": {name: replicas * nbytes for name, nbytes in sent.items()},
    "step_seconds": list(seconds),
    "mfu": [model_flops / (time * chip.peak) for time in reversed(seconds)],
  }


def step_seconds(
  chip: Chip, precision: str, flops: float, touched: float, sent: dict[str, float], devices: int
) -> tuple[float, float]:
  """Predicts the shortest and the longest time of a step.

  Args:
    chip: the device.
    precision: the number format of the layers; float32 has half the peak on GPUs, as TF32.
    flops: the operations of a step on a device.
    touched: the bytes that a device reads or writes at least: arguments, results, and activations twice.
    sent: the bytes that a device sends `within` and `across` slices.
    devices: their number.
  """
  peak = chip.peak / (2 if precision == "float32" and not chip.device_kind.startswith("TPU") else 1)
  best, usual = (flops / (peak * part) for part in UTILIZATION)
  read, send = touched / chip.bandwidth, chip.send_seconds(sent["within"], sent["across"], devices)
  return max(best, read, send), usual + read + send


def report_lines(results: Table) -> list[str]:
  """Formats the results in a few lines for people."""
  held = results["bytes"]
  what = (
    f"{results['slices']} slices of {results['topology']}" if results["slices"] > 1 else results["topology"]
  )
  chip = CHIPS[results["topology"].partition(":")[0]]
  lines = [
    f"{what}: {results['devices']} devices ({chip.device_kind}), batch of {results['batch_size']}, "
    f"{results['num_parameters'] / 1e6:.2f} M parameters",
    "| bytes on each device | |",
    "| --- | --- |",
    *(f"| {name} | {_gib(nbytes)} |" for name, nbytes in held.items()),
    f"| available | {_gib(chip.memory)} |",
    f"operations on each device in a step: {results['flops'] / 1e9:.2f} GFLOP",
  ]
  if "step_seconds" not in results:
    return lines
  for name, row in results["collectives"].items():
    lines.append(f"{name}: {row['ops']} operations, {row['bytes'] / 1e6:.2f} MB on each device")
  sent = results["sent"]
  lines.append(
    f"sent by each device: {sent['within'] / 1e6:.2f} MB within a slice, {sent['across'] / 1e6:.2f} across"
  )
  short, long = (1e3 * seconds for seconds in results["step_seconds"])
  low, high = (100 * share for share in results["mfu"])
  lines.append(f"predicted: {short:.3g} to {long:.3g} ms a step, MFU {low:.3g} to {high:.3g} %; not measured")
  if not results["is_tpu"]:
    lines.append("activations and collectives come from the CPU's compiler, an estimate for GPUs")
  return lines


def _model_flops(config: Config, data: DataSpec, program: Program, size: int) -> float:
  """Counts the operations without those that rematerialisation repeats."""
  options = config.model[short(config.model.name)]
  if options.get("remat"):
    config = config.copy_and_resolve_references()
    config.model[short(config.model.name)].remat = type(options.remat)()
    program = build(config, data)
  return count_flops(program.train_step, program.abstract, _examples(data, size))


def _sends(text: str, devices: int) -> tuple[dict[str, float], dict[str, dict[str, int]]]:
  """Returns the bytes that a device sends within and across slices, and the collectives by name."""
  counts: dict[str, dict[str, int]] = collections.defaultdict(lambda: {"ops": 0, "arrays": 0, "bytes": 0})
  sent = {"within": 0.0, "across": 0.0}
  for one in collectives(text, devices):
    row = counts[f"{one.kind}, {one.purpose}"]
    row["ops"] += one.times
    row["arrays"] += one.times * len(one.shapes)
    row["bytes"] += one.times * one.nbytes
    sent["across" if one.kind == ACROSS else "within"] += one.sent
  return sent, dict(counts)


def _examples(data: DataSpec, number: int) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of examples as they reach the devices."""
  dtype = jnp.float32 if data.has_numbers else jnp.int32
  inputs = jnp.int32 if is_tokens(data.input_dtype) else data.input_dtype
  return {
    "inputs": jax.ShapeDtypeStruct((number, *data.input_shape), inputs),
    "labels": jax.ShapeDtypeStruct((number, *data.label_shape), dtype),
  }


def _resident_bytes(data: DataSpec) -> int:
  return sum(data.sizes.values()) * int(np.prod(data.input_shape))


def _placed(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _bytes(tree: PyTree) -> int:
  """Adds up the bytes of a tree on one device."""
  total = 0
  for x in jax.tree.leaves(tree):
    shape = x.sharding.shard_shape(x.shape) if x.sharding else x.shape
    width = 8 if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x.dtype.itemsize
    total += int(np.prod(shape)) * width
  return total


def _gib(nbytes: float) -> str:
  """Formats bytes for people."""
  return f"{nbytes / GIB:.2f} GiB" if nbytes >= 0.1 * GIB else f"{nbytes / 2**20:.2f} MiB"
