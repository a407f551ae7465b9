"""What the training step sends between devices, and the weak scaling that a ring model predicts of it.

python benchmarks/scaling.py [--devices 1 2 8 64] [--cases MLP LeNet ResNet] [--layouts data head fsdp]
python benchmarks/scaling.py --topology v5e:2x4 [--cases ...]     # compiled by libtpu for TPUs, without one

Nothing is run: the trainer's own step is compiled for so many (fake) devices with a constant batch on each,
and the collectives, the floating-point operations and the memory of one device are read out of the result.

The model: a step computes at `--utilization` of the peak, and a ring all-reduce of B bytes over n devices
sends 2 (n - 1) / n B from each. The efficiency is the time on one device over that on n, as a range: from
nothing sent while it computes, to as much as can be. Left out: latencies (so small networks look better than
they are), data loading, what is sent otherwise than in a ring, and that float32's peak is below bfloat16's.

Peaks (bfloat16, dense) and links, one way:
  TPU v5e   197 TFLOP/s; 400 GB/s both ways a chip, so 200      docs.cloud.google.com/tpu/docs/v5e
  TPU v6e   918 TFLOP/s; 800 GB/s both ways a chip, so 400      docs.cloud.google.com/tpu/docs/v6e
  H100 SXM  989 TFLOP/s; NVLink of 900 GB/s both ways, so 450, within 8; beyond them a network card of
            400 Gb/s each, 50 GB/s                              NVIDIA's datasheets of H100 and DGX H100
  H200 SXM  the same; its memory is larger and faster           NVIDIA's datasheet of H200
"""

import argparse
import collections
import json
import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _collectives import Chip, collectives
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.devices.compile import make_step
from jaxreg.train.devices.sharding import make_layout

CHIPS = {
  "v5e": Chip(197e12, 200e9),
  "v6e": Chip(918e12, 400e9),
  "H100, H200": Chip(989e12, 450e9, node=8, network=50e9),
}
# Images, classes, batch on a device, fields.
CASES: dict[str, tuple[tuple[int, ...], int, int, dict[str, Any]]] = {
  "MLP": ((28, 28, 1), 10, 64, {"model.name": "MLP", "model.MLP.widths": (1024, 1024)}),
  "LeNet": ((28, 28, 1), 10, 64, {"model.name": "LeNet"}),
  "ResNet": (
    (224, 224, 3),
    1000,
    32,
    {"model.name": "ResNet", "model.ResNet.depth": 18, "model.ResNet.stem": "imagenet"},
  ),
}
LAYOUTS = {
  "data": {},
  "head": {"mesh.model": 2, "mesh.shard": ("head",)},
  "fsdp": {"mesh.shard": ("fsdp",)},
}
EXAMPLES = 4096


def compile_step(case: str, layout: str, devices: list[Any]) -> tuple[Any, int]:
  """The compiled step, DropMax with momentum, and the bytes of the parameters."""
  image, num_classes, batch_size, fields = CASES[case]
  config = train.base_config()
  model = LAYOUTS[layout].get("mesh.model", 1)
  parts = len(devices) // model
  config.update_from_flattened_dict(
    {"batch_size": batch_size * parts, "optimizer.name": "sgd", "optimizer.sgd.momentum": 0.9, **fields}
    | LAYOUTS[layout]
  )
  train.check(config)
  data = DataSpec(tuple(image), "uint8", num_classes, {"train": EXAMPLES}, scale=255.0)
  program = build(config, data)
  mesh = jax.make_mesh((parts, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=devices)
  layout_of = make_layout(program.abstract, mesh, config.mesh.shard, config.mesh.min_size)
  step, _ = make_step(program.train_step, mesh, layout=layout_of)
  here = lambda shape, dtype, *spec: jax.ShapeDtypeStruct(
    shape, dtype, sharding=NamedSharding(mesh, P(*spec))
  )
  state = jax.tree.map(
    lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
    program.abstract,
    jax.tree.broadcast(layout_of, program.abstract),
  )
  arrays = {"inputs": here((EXAMPLES, *image), jnp.uint8), "labels": here((EXAMPLES,), jnp.int32)}
  batch = {"indices": here((config.batch_size,), jnp.int32, "data")}
  size = sum(4 * int(np.prod(x.shape)) for x in jax.tree.leaves(program.abstract.params))
  return step.lower(state, arrays, batch).compile(), size


def measure(case: str, layout: str, devices: list[Any], utilization: float) -> dict[str, Any]:
  """What the compiled step sends, computes and holds on one device, and the predicted efficiencies."""
  began = time.perf_counter()
  compiled, parameters = compile_step(case, layout, devices)
  found = collectives(compiled.as_text(), len(devices))
  counts: dict[str, dict[str, int]] = collections.defaultdict(lambda: {"ops": 0, "arrays": 0, "bytes": 0})
  for one in found:
    row = counts[f"{one.kind}, {one.purpose}"]
    row["ops"] += 1
    row["arrays"] += len(one.shapes)
    row["bytes"] += one.nbytes
  flops = compiled.cost_analysis()["flops"]
  memory = compiled.memory_analysis()
  sent = sum(one.sent for one in found)
  return {
    "collectives": dict(counts),
    "parameters": parameters,
    "sent": sent,
    "flops": flops,
    "arguments": memory.argument_size_in_bytes,
    "temporary": memory.temp_size_in_bytes,
    "efficiency": {
      name: chip.efficiencies(flops, sent, len(devices), utilization) for name, chip in CHIPS.items()
    },
    "compile_seconds": time.perf_counter() - began,
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
  parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
  parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=["data"])
  parser.add_argument("--topology", help="of TPUs, such as v5e:2x4, instead of fake devices; needs libtpu")
  parser.add_argument("--utilization", type=float, default=0.4)
  arguments = parser.parse_args()
  if arguments.topology:
    # Of this machine, which need not have any.
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    from jax.experimental import topologies

    everything = topologies.get_topology_desc(platform="tpu", topology_name=arguments.topology).devices
    numbers = [len(everything)]
  else:
    jax.config.update("jax_num_cpu_devices", max(arguments.devices))
    everything, numbers = jax.devices(), arguments.devices
  results = {}
  print(
    "| step | layout | devices | all-reduces of arrays: ops, arrays, MB | of BatchNorm: ops, kB "
    f"| smaller | other | sent by each, MB | GFLOP | temporary, MB | {' | '.join(CHIPS)} |"
  )
  print(f"|{'---|' * (10 + len(CHIPS))}")
  for case in arguments.cases:
    for layout in arguments.layouts:
      for number in numbers:
        if number % LAYOUTS[layout].get("mesh.model", 1):
          continue
        row = measure(case, layout, list(everything[:number]), arguments.utilization)
        results[f"{case}, {layout}, {number}"] = row
        print(line(case, layout, number, row), flush=True)
  print(json.dumps(results))


def line(case: str, layout: str, number: int, row: dict[str, Any]) -> str:
  """A row of the table."""
  counts = row["collectives"]
  none = {"ops": 0, "arrays": 0, "bytes": 0}
  arrays, norms, small = (
    counts.get(f"all-reduce, {purpose}", none) for purpose in ("arrays", "batch_norm", "small")
  )
  others: dict[str, list[float]] = {}
  for name, count in counts.items():
    kind = name.split(",")[0]
    if kind != "all-reduce":
      ops, size = others.get(kind, (0, 0.0))
      others[kind] = [ops + count["ops"], size + count["bytes"] / 1e6]
  other = ", ".join(f"{ops} {kind} {size:.2f} MB" for kind, (ops, size) in others.items())
  chips = " | ".join(f"{low:.3f} to {high:.3f}" for low, high in row["efficiency"].values())
  return (
    f"| {case} | {layout} | {number} | {arrays['ops']}, {arrays['arrays']}, {arrays['bytes'] / 1e6:.2f} "
    f"| {norms['ops']}, {norms['bytes'] / 1e3:.1f} | {small['ops']} | {other} | {row['sent'] / 1e6:.2f} "
    f"| {row['flops'] / 1e9:.2f} | {row['temporary'] / 1e6:.1f} | {chips} |"
  )


if __name__ == "__main__":
  main()
