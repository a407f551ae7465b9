"""Trains methods over several seeds through `run.py` and prints a table with 95 % confidence intervals.

    python benchmarks/seeds.py --config configs/dropmax_mnist.py:1k --config.data.idx.path=DIR

Every further flag goes to `run.py`. Interrupted, it continues where it was: finished runs are not run again.
"""

import argparse
import json
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = {"test/error": ("test error", "%", 100), "test/nll": ("NLL", "", 1), "test/ece": ("ECE", "%", 100)}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--config", default=str(ROOT / "configs/dropmax_digits.py"))
  parser.add_argument("--methods", default="softmax,dropmax")
  parser.add_argument("--seeds", type=int, default=5)
  parser.add_argument("--out", type=Path, default=Path("runs/seeds"))
  arguments, flags = parser.parse_known_args()
  path, _, variant = arguments.config.partition(":")
  stem = Path(path).stem + (f"-{variant}" if variant else "")
  # Other flags are other runs; where the data lie is not.
  chosen = sorted(flag for flag in flags if ".path=" not in flag and "_dir=" not in flag)
  stem += f"-{zlib.crc32(' '.join(chosen).encode()):08x}" if chosen else ""

  results = {}
  for method in arguments.methods.split(","):
    for seed in range(arguments.seeds):
      workdir = arguments.out / f"{stem}-{method}-{seed}"
      command = [
        sys.executable,
        str(ROOT / "run.py"),
        "--config",
        arguments.config,
        "--workdir",
        str(workdir),
      ]
      command += [f"--config.method.name={method}", f"--config.seed={seed}", *flags]
      subprocess.run(command, check=True)
      results.setdefault(method, []).append(json.loads((workdir / "results.json").read_text()))

  table = {}
  for method, runs in results.items():
    table[method] = {name: _mean_and_interval([run[name] for run in runs]) for name in COLUMNS}
  (arguments.out / f"{stem}.json").write_text(json.dumps({"table": table, "runs": results}, indent=2) + "\n")

  print(
    f"| {stem}, {arguments.seeds} seeds | " + " | ".join(label for label, _, _ in COLUMNS.values()) + " |"
  )
  print("|---" * (len(COLUMNS) + 1) + "|")
  for method, row in table.items():
    cells = []
    for name, (_, unit, factor) in COLUMNS.items():
      mean, interval = row[name]
      digits = 2 if unit else 3
      cells.append(f"{factor * mean:.{digits}f} ± {factor * interval:.{digits}f} {unit}".strip())
    print(f"| {method} | " + " | ".join(cells) + " |")


def _mean_and_interval(values: list[float]) -> tuple[float, float]:
  """The mean and half the width of its 95 % confidence interval (Student t)."""
  if len(values) < 2:
    return float(values[0]), float("nan")
  half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
  return float(np.mean(values)), float(half)


if __name__ == "__main__":
  main()
