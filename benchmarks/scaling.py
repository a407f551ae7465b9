"""The weak scaling that a ring model predicts of the collectives of three training steps.

python benchmarks/scaling.py [--devices 1 2 8 64] [--cases MLP LeNet ResNet] [--layouts data head fsdp]
python benchmarks/scaling.py --topology v5e:2x4 [--cases ...]     # compiled by libtpu for TPUs, without one

Nothing is run: as `jaxreg compile` does, this compiles the trainer's own step, with a constant batch on each
of several simulated devices.

The model: a step computes at `--utilization` of the peak, and a ring all-reduce of B bytes over n devices
sends 2 (n - 1) / n B from each. The efficiency is the time on one device over that on n, as a range: from
nothing sent while it computes, to as much as can be. Left out: latencies (so small networks look better than
they are), data loading, what is sent otherwise than in a ring, and that float32's peak is below bfloat16's.
`jaxreg/train/devices/topology.py` has the peaks and the links.
"""

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from jaxreg import train
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.devices.topology import CHIPS, Chip, parse_topology
from jaxreg.train.jobs.compile import compile_step

NAMES = {"v5e": "v5e", "v6e": "v6e", "h100": "H100, H200"}
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


def measure(case: str, layout: str, devices: Sequence[Any], chip: Chip, utilization: float) -> dict[str, Any]:
  """Compiles the step, DropMax with momentum, and adds the predicted efficiencies to its results."""
  began = time.perf_counter()
  image, num_classes, batch_size, fields = CASES[case]
  config = train.base_config()
  parts = len(devices) // LAYOUTS[layout].get("mesh.model", 1)
  config.update_from_flattened_dict(
    {"batch_size": batch_size * parts, "optimizer.name": "sgd", "optimizer.sgd.momentum": 0.9, **fields}
    | LAYOUTS[layout]
  )
  train.check(config)
  data = DataSpec(tuple(image), "uint8", num_classes, {"train": EXAMPLES}, scale=255.0)
  row = compile_step(config, data, devices, chip, resident=True)
  row["efficiency"] = {
    title: efficiencies(CHIPS[name], row, len(devices), utilization) for name, title in NAMES.items()
  }
  return row | {"compile_seconds": time.perf_counter() - began}


def efficiencies(chip: Chip, row: dict[str, Any], devices: int, utilization: float) -> tuple[float, float]:
  """Predicts weak scaling with nothing sent while a device computes, and with as much as possible."""
  compute = row["flops"] / (chip.peak * utilization)
  send = chip.send_seconds(row["sent"]["within"], row["sent"]["across"], devices)
  return compute / (compute + send), compute / max(compute, send)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
  parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
  parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=["data"])
  parser.add_argument("--topology", help="of TPUs, such as v5e:2x4, instead of simulated ones; needs libtpu")
  parser.add_argument("--utilization", type=float, default=0.4)
  arguments = parser.parse_args()
  topology = parse_topology(arguments.topology or f"gpu:{max(arguments.devices)}")
  topology.prepare()
  everything = topology.devices()
  numbers = [topology.size] if arguments.topology else arguments.devices
  results = {}
  print(
    "| step | layout | devices | all-reduces of arrays: ops, arrays, MB | of BatchNorm: ops, kB "
    f"| smaller | other | sent by each, MB | GFLOP | activations, MB | {' | '.join(NAMES.values())} |"
  )
  print(f"|{'---|' * (10 + len(NAMES))}")
  for case in arguments.cases:
    for layout in arguments.layouts:
      for number in numbers:
        if number % LAYOUTS[layout].get("mesh.model", 1):
          continue
        row = measure(case, layout, everything[:number], topology.chip, arguments.utilization)
        results[f"{case}, {layout}, {number}"] = row
        print(line(case, layout, number, row), flush=True)
  print(json.dumps(results))


def line(case: str, layout: str, number: int, row: dict[str, Any]) -> str:
  """Formats a row of the table."""
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
    f"| {norms['ops']}, {norms['bytes'] / 1e3:.1f} | {small['ops']} | {other} "
    f"| {row['sent']['within'] / 1e6:.2f} | {row['flops'] / 1e9:.2f} "
    f"| {row['bytes']['activations'] / 1e6:.1f} | {chips} |"
  )


if __name__ == "__main__":
  main()
