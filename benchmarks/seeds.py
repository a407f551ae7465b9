"""Trains methods from several seeds through `run.py`, each a run of its own, and prints a table of them.

    python benchmarks/seeds.py --config configs/dropmax_mnist.py:1k --config.data.idx.path=DIR

Every further flag goes to `run.py`. Interrupted, it continues where it was. Each run that has ended becomes a
row of `--record`, a JSON file that is worth keeping: what has a row there is not trained again, on any
machine. Several of these commands, each with some of the methods and seeds, share the work and the file.
"""

import argparse
import fcntl
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

from jaxreg._intervals import interval

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = {"test/error": ("test error", "%", 100), "test/nll": ("NLL", "", 1), "test/ece": ("ECE", "%", 100)}
PACKAGES = ("python", "jax", "flax", "optax")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--config", default=str(ROOT / "configs/dropmax_digits.py"))
  parser.add_argument("--methods", default="softmax,dropmax")
  parser.add_argument("--seeds", default="5", help="how many, from 0 on; or which, with commas: 0,2 or 1,")
  parser.add_argument("--out", type=Path, default=Path("runs/seeds"))
  parser.add_argument("--record", type=Path, help="default: a file in --out")
  arguments, flags = parser.parse_known_args()
  path, _, variant = arguments.config.partition(":")
  stem = Path(path).stem + (f"-{variant}" if variant else "")
  # Other flags are other runs; where the data lie is not.
  chosen = sorted(flag for flag in flags if ".path=" not in flag and "_dir=" not in flag)
  what = " ".join([stem, *chosen])
  stem += f"-{zlib.crc32(' '.join(chosen).encode()):08x}" if chosen else ""
  record = arguments.record or arguments.out / f"{stem}.json"
  record.parent.mkdir(parents=True, exist_ok=True)
  seeds = _seeds(arguments.seeds)

  methods = arguments.methods.split(",")
  for seed in seeds:
    for method in methods:
      if any((row["method"], row["seed"]) == (method, seed) for row in _rows(record, what)):
        continue
      workdir = arguments.out / f"{stem}-{method}-{seed}"
      command = [sys.executable, ROOT / "run.py", "--config", arguments.config, "--workdir", workdir]
      command += [f"--config.method.name={method}", f"--config.seed={seed}", *flags]
      subprocess.run(list(map(str, command)), check=True)
      read = lambda name, workdir=workdir: json.loads((workdir / f"{name}.json").read_text())
      results, versions = read("results"), read("environment")
      numbers = {name: value for name, value in results.items() if name.startswith(("test/", "val/"))}
      numbers["versions"] = {name: versions[name] for name in PACKAGES}
      with open(arguments.out / f"{stem}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _add(record, what, {"method": method, "seed": seed, **numbers})
  print(_table(what, methods, [row for row in _rows(record, what) if row["seed"] in seeds]))


def _seeds(text: str) -> list[int]:
  """The seeds that `--seeds` means: `3` is the first three, `0,2` these two, `1,` this one."""
  try:
    return [int(seed) for seed in text.split(",") if seed.strip()] if "," in text else list(range(int(text)))
  except ValueError:
    sys.exit(f"--seeds: give a number of seeds, or seeds with commas as in 0,2 or 1, got {text!r}")


def _rows(record: Path, what: str) -> list[dict[str, Any]]:
  """The rows of a record, which must be of the same runs."""
  if not record.is_file():
    return []
  content = json.loads(record.read_text())
  if content["runs"] != what:
    sys.exit(f"--record: {record} has runs of {content['runs']!r}, these are {what!r}; give another file")
  return content["rows"]


def _add(record: Path, what: str, row: dict[str, Any]) -> None:
  rows = sorted([*_rows(record, what), row], key=lambda row: (row["seed"], row["method"]))
  partial = record.with_suffix(".partial")
  partial.write_text(json.dumps({"runs": what, "rows": rows}, indent=1) + "\n")
  partial.replace(record)


def _table(what: str, methods: list[str], rows: list[dict[str, Any]]) -> str:
  """Means and 95 % intervals; differences from the first method are taken seed by seed."""
  of = {method: {row["seed"]: row for row in rows if row["method"] == method} for method in methods}
  labels = [label for label, _, _ in COLUMNS.values()]
  lines = [f"| {what} | seeds | " + " | ".join(labels) + f" | error less {methods[0]}'s |"]
  lines.append("|---" * (len(COLUMNS) + 3) + "|")
  for method, runs in of.items():
    cells = [
      _shown([run[name] for run in runs.values()], unit, factor)
      for name, (_, unit, factor) in COLUMNS.items()
    ]
    paired = [seed for seed in runs if seed in of[methods[0]]] if method != methods[0] else []
    less = [runs[seed]["test/error"] - of[methods[0]][seed]["test/error"] for seed in paired]
    cells.append(_shown(less, "%", 100))
    lines.append(f"| {method} | {len(runs)} | " + " | ".join(cells) + " |")
  return "\n".join(lines)


def _shown(values: list[float], unit: str, factor: float) -> str:
  if not values:
    return ""
  digits = 2 if unit else 3
  mean, half = interval(values)
  text = f"{factor * mean:.{digits}f}"
  if len(values) > 1:
    text += f" ± {factor * half:.{digits}f}"
  return f"{text} {unit}".strip()


if __name__ == "__main__":
  main()
