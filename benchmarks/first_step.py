"""Seconds from the start of `run.py` to its first step, with and without compiled programs.

`python run.py` alone trains on digits; the images of ResNet-20 are made up. The compiled programs are
those of an earlier start with the same cache.

    python benchmarks/first_step.py [--rounds 5]
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _report import Report, flags, spread

ROOT = Path(__file__).resolve().parent.parent
FIELDS = {
  "data.name": "npz",
  "data.npz.scale": 255.0,
  "model.CifarResNet.depth": 20,
  "batch_size": 128,
  "log_every": 1,
}


def main() -> None:
  options = flags(__doc__, rounds=5).parse_args()
  rounds = 1 if options.quick else options.rounds
  report = Report(options.json)
  starts = "without compiled programs", "with programs of an earlier start"
  report.table("first_step", "run", "start", "to its first step, s")
  with tempfile.TemporaryDirectory() as folder:
    scratch = Path(folder)
    write_images(scratch / "data.npz", {"train": 1024, "test": 1024})
    commands = {
      "`python run.py`": lambda to: [
        sys.executable,
        str(ROOT / "run.py"),
        f"--workdir={to}",
        "--config.log_every=1",
      ],
      "ResNet-20": lambda to: run_command(to, scratch / "data.npz", {}),
    }
    for run, command in commands.items():
      times = {start: [] for start in starts}
      for _ in range(rounds):
        cache = Path(tempfile.mkdtemp(dir=scratch))  # empty for the first start, filled for the second
        for start in starts:
          workdir = Path(tempfile.mkdtemp(dir=scratch)) / "run"
          times[start].append(first_step(command(workdir), workdir, cache))
      for start, values in times.items():
        report.row(run, start, spread(values, ".1f"), numbers=values)
  report.close()


def write_images(path: Path, sizes: dict[str, int], shape: tuple[int, ...] = (32, 32, 3)) -> None:
  """Images of noise for `data.name = npz`, as many in each split as `sizes` says."""
  generator = np.random.default_rng(0)
  images = {f"x_{part}": generator.integers(0, 256, (size, *shape), np.uint8) for part, size in sizes.items()}
  labels = {f"y_{part}": np.arange(size) % 10 for part, size in sizes.items()}
  np.savez(path, **images, **labels)


def run_command(workdir: Path, data: Path, fields: dict[str, Any]) -> list[str]:
  """`run.py` with the configuration of CIFAR-10, on the images of a file; a field of None is left out."""
  fields = {**FIELDS, "data.npz.path": data, **fields}
  given = {name: value for name, value in fields.items() if value is not None}
  command = [sys.executable, str(ROOT / "run.py"), f"--config={ROOT}/configs/dropmax_cifar10.py"]
  return [*command, f"--workdir={workdir}", *(f"--config.{name}={value}" for name, value in given.items())]


def first_step(command: list[str], workdir: Path, cache: Path) -> float:
  environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
  environment["XDG_CACHE_HOME"] = str(cache)
  began = time.perf_counter()
  process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  records = workdir / "metrics.jsonl"
  while not (records.is_file() and records.stat().st_size):
    if process.poll() is not None:
      raise SystemExit(f"{' '.join(command)} ended with {process.returncode} before its first step")
    time.sleep(0.02)
  seconds = time.perf_counter() - began
  process.send_signal(signal.SIGTERM)
  process.wait()
  return seconds


if __name__ == "__main__":
  main()
