"""Seconds from the start of `run.py` to its first step: ResNet-20, with and without compiled programs.

The images are made up; the compiled programs are those of an earlier start with the same cache.

    python benchmarks/first_step.py [--rounds 5]
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
  report.table("first_step", "start of ResNet-20", "to its first step, s")
  times = {"without compiled programs": [], "with those of an earlier start": []}
  with tempfile.TemporaryDirectory() as folder:
    scratch = Path(folder)
    generator = np.random.default_rng(0)
    images = {part: generator.integers(0, 256, (1024, 32, 32, 3), np.uint8) for part in ("train", "test")}
    arrays = {f"x_{part}": x for part, x in images.items()}
    labels = {f"y_{part}": np.arange(1024) % 10 for part in images}
    np.savez(scratch / "data.npz", **arrays, **labels)
    for number in range(rounds):
      cache = scratch / f"cache{number}"  # empty for the first start, filled for the second
      for start, seconds in times.items():
        seconds.append(first_step(scratch / f"run{number}-{start[:7]}", scratch / "data.npz", cache))
  for start, values in times.items():
    report.row(start, spread(values, ".1f"), numbers=values)
  report.close()


def first_step(workdir: Path, data: Path, cache: Path) -> float:
  fields = {**FIELDS, "data.npz.path": data}
  command = [sys.executable, str(ROOT / "run.py"), f"--config={ROOT}/configs/dropmax_cifar10.py"]
  command += [f"--workdir={workdir}", *(f"--config.{name}={value}" for name, value in fields.items())]
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
