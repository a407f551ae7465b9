"""What `jaxreg compile` predicts of the step of each config, and of ViT-S/16 on several slices.

    python benchmarks/compiled.py [NAME ...] [--vit] [--libtpu DIR]

Nothing is run. `--libtpu` names the folder of `pip install --target DIR libtpu`, if it is not installed.
MNIST, Multi30k and the sets of UCI lie in `$JAXREG_TEST_DATA`. The sizes of CIFAR and of photographs stand
here or in their configs. A batch that 16 devices do not divide becomes the next larger one that they do, or
the next smaller one where the examples end. The records are `compiled_configs` and `compiled_vit`; with
NAMEs, their rows alone are replaced.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _records import FOLDER, ROOT, Found

from jaxreg.train import cli
from jaxreg.train.config.config_files import load_file
from jaxreg.train.devices.topology import parse_topology
from jaxreg.train.errors import RunError
from jaxreg.train.jobs.compile import compile

CONFIGS = ROOT / "configs"
ROW = "compiled: "  # before the results of a row
TOPOLOGY, DEVICES = "v5e:4x4", 16
# Shape, classes and training examples of data that may not be here, for configs without sizes of their own.
SIZES = {
  "cifar10": ((32, 32, 3), 10, 50_000),
  "cifar100": ((32, 32, 3), 100, 50_000),
  "dropmax_awa2": ((224, 224, 3), 50, 34_822),
  "group_softmax_caltech256": ((224, 224, 3), 257, 15_420),
  "image_folder": ((224, 224, 3), 100, 10_000),
}
VIT = "vit_s16_imagenet"
REMAT = "--config.model.ViT.remat=nothing_saveable"
SLICES = ("--config.mesh.slices=2", "--config.mesh.shard=('fsdp',)")
VIT_ROWS = {
  "v5e:4x4": ("v5e:4x4",),
  "v5e:4x4, remat": ("v5e:4x4", REMAT),
  "v5e:8x8": ("v5e:8x8",),
  "v5e:8x8, remat": ("v5e:8x8", REMAT),
  "v6e:4x4": ("v6e:4x4",),
  "2 slices of v5e:4x4, fsdp": ("v5e:4x4", *SLICES),
  "gpu:8": ("gpu:8",),
}


def main() -> int:
  if sys.argv[1:2] == ["--inside"]:
    return inside(json.loads(sys.argv[2]))
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("names", nargs="*", metavar="NAME", help="configs, by default all of configs/")
  parser.add_argument("--vit", action="store_true", help="only the rows of ViT-S/16")
  parser.add_argument("--libtpu", help="a folder that has the package libtpu")
  options = parser.parse_args()
  configs = sorted(path.stem for path in CONFIGS.glob("[!_]*.py"))
  if unknown := set(options.names) - set(configs):
    parser.error(f"there is no config {', '.join(sorted(unknown))}")
  failed = []
  if not options.vit:
    rows = {name: (name, flags(name)) for name in options.names or configs}
    failed += record("compiled_configs", rows, options.libtpu, keep=bool(options.names))
  if options.vit or not options.names:
    rows = {row: (VIT, ["--topology", topology, *more]) for row, (topology, *more) in VIT_ROWS.items()}
    failed += record("compiled_vit", rows, options.libtpu, keep=False)
  if failed:
    print(f"ended by a fault: {', '.join(failed)}", file=sys.stderr)
  return bool(failed)


def record(name: str, rows: dict[str, tuple[str, list[str]]], libtpu: str | None, *, keep: bool) -> list[str]:
  """Compiles each row and writes the record after each; returns the rows that ended with a fault."""
  found, failed = Found(), []
  if keep and (FOLDER / f"{name}.json").is_file():
    old = json.loads((FOLDER / f"{name}.json").read_text())
    found.rows, found.digits = old["rows"], old["digits"]
  for gpu in (False, True):
    part = {row: each for row, each in rows.items() if any(text.startswith("gpu") for text in each[1]) == gpu}
    for row, results in compiled(part, libtpu):
      found.rows.pop(row, None)
      if "fault" in results:
        failed.append(row)
      elif "line" in results:
        found.rows[row] = {"runs": {}, "setting": results}
      else:
        add(found, row, results)
      if keep:
        found.rows = {name: found.rows[name] for name in sorted(found.rows)}
      found.write(name, "python benchmarks/compiled.py")
  return failed


def compiled(
  rows: dict[str, tuple[str, list[str]]], libtpu: str | None
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Compiles the rows in one process, since libtpu takes its time to load; yields each with its results."""
  path = os.pathsep.join(filter(None, [libtpu, str(ROOT), os.environ.get("PYTHONPATH")]))
  if not rows:
    return
  with subprocess.Popen(
    [sys.executable, __file__, "--inside", json.dumps(rows)],
    env={**os.environ, "PYTHONPATH": path},
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    for line in process.stdout or ():
      if line.startswith(ROW):
        row, seconds, results = json.loads(line.removeprefix(ROW))
        print(f"{row}: {seconds:.0f} s {results.get('line', results.get('fault', ''))}", flush=True)
        yield row, results


def inside(rows: dict[str, tuple[str, list[str]]]) -> int:
  """Compiles in this process and writes a line for each row; a mistake is one line."""
  for row, (config, flags) in rows.items():
    began = time.perf_counter()
    try:
      results = one(["--config", str(CONFIGS / f"{config}.py"), *flags])
    except RunError as error:
      results = {"line": str(error)}
    except Exception:
      results = {"fault": traceback.format_exc()}
    print(f"{ROW}{json.dumps([row, time.perf_counter() - began, results])}", flush=True)
  return 0


def one(arguments: Sequence[str]) -> dict[str, Any]:
  """Compiles as `jaxreg compile` does with these arguments."""
  call = cli.parse(["compile", *arguments], CONFIGS)
  assert call.config
  parse_topology(call.config.compile.topology, call.config.mesh.slices).prepare()
  return compile(call.config, Path())


def flags(name: str) -> list[str]:
  """Returns the flags of a config: where its data are or their sizes, and a batch that 16 devices divide."""
  config, _ = load_file(str(CONFIGS / f"{name}.py"), CONFIGS)
  given = ["--topology", TOPOLOGY]
  data = os.environ.get("JAXREG_TEST_DATA", "data")
  source = config.data.name.rpartition(":")[2]
  if source in ("idx", "parallel_text", "uci"):
    given.append(f"--config.data.{source}.path={data}/{Path(config.data[source].path).name}")
  sizes = SIZES.get(config.data.tfds.name if config.data.name == "tfds" else name)
  if sizes:
    fields = ("input_shape", "num_classes", "num_examples")
    given += [f"--config.compile.{field}={value}" for field, value in zip(fields, sizes, strict=True)]
  parts = DEVICES * config.accumulate
  if rest := config.batch_size % parts:
    larger = config.batch_size - rest + parts
    fits = not sizes or larger <= sizes[2]
    given.append(f"--config.batch_size={larger if fits else larger - parts}")
  return given


def add(found: Found, row: str, results: dict[str, Any]) -> None:
  """Adds the results of a compilation to a record."""
  found.add(row, "batch", results["batch_size"], 0)
  for name in ("parameters", "optimizer", "data", "activations", "total"):
    if name in results["bytes"]:
      found.add(row, f"{name}, MiB", results["bytes"][name] / 2**20, 2)
  found.add(row, "GFLOP", results["flops"] / 1e9, 3)
  found.rows[row]["setting"] = {"fits": str(results["fits"])}
  if "step_seconds" not in results:
    return
  kinds: dict[str, list[float]] = {}
  for name, count in results["collectives"].items():
    ops, nbytes = kinds.setdefault(name.split(",")[0], [0, 0.0])
    kinds[name.split(",")[0]] = [ops + count["ops"], nbytes + count["bytes"] / 1e6]
  for kind, (ops, size) in sorted(kinds.items()):
    found.add(row, f"{kind}: operations", ops, 0)
    found.add(row, f"{kind}, MB", size, 2)
  found.add(row, "collectives", sum(ops for ops, _ in kinds.values()), 0)
  found.add(row, "sent, MB", (results["sent"]["within"] + results["sent"]["across"]) / 1e6, 2)
  for bound, seconds in zip(("least", "most"), results["step_seconds"], strict=True):
    found.add(row, f"ms, at {bound}", 1e3 * seconds, 3)
  for bound, share in zip(("least", "most"), results["mfu"], strict=True):
    found.add(row, f"MFU, %, at {bound}", 100 * share, 1)


if __name__ == "__main__":
  sys.exit(main())
