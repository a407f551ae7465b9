"""`fast_cifar10` on the images of CIFAR-10: seconds to an accuracy of 94 %, and the accuracy at the end.

The images are those of TFDS, in `$TFDS_DATA_DIR`. The accuracy along the way is that on the images held out,
2 % of the training images; the one at the end is on the test images. Time counts from the start of `run.py`.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _accelerator.resume import TOY
from _report import Report
from accelerator import last_line
from first_step import ROOT, run_command, write_images

TARGET = 0.94


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  del rounds
  with tempfile.TemporaryDirectory() as folder:
    scratch = Path(folder)
    if quick:
      write_images(scratch / "data.npz", {"train": 144, "test": 16}, (8, 8, 3))
      fields = {**TOY, "data.npz.scale": 255.0, "batch_size": 16, "epochs": 2}
      command = run_command(scratch / "run", scratch / "data.npz", fields)
    else:
      command = [sys.executable, str(ROOT / "run.py"), f"--config={ROOT}/configs/fast_cifar10.py"]
      command += [f"--workdir={scratch}/run", "--config.eval_every=1", "--config.checkpoint.every=18"]
    seconds, reached = watched(command, scratch)
    results = json.loads((scratch / "run" / "results.json").read_text())
  report.table(
    "cifar10", "run.py", f"seconds to {TARGET:.0%}", "seconds in all", "accuracy on the test images"
  )
  report.row(
    "MLP, toy" if quick else "fast_cifar10, 18 epochs",
    "not reached" if reached is None else f"{reached:.0f}",
    f"{seconds:.0f}",
    f"{1 - results['test/error']:.2%}",
    numbers={"seconds": seconds, "reached": reached, "error": results["test/error"]},
  )


def watched(command: list[str], scratch: Path) -> tuple[float, float | None]:
  """Runs a command; returns its seconds, and those until a record has the accuracy, or None."""
  began, reached = time.perf_counter(), None
  with open(scratch / "errors", "w+") as errors:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
    while process.poll() is None:
      if reached is None and least_error(scratch / "run" / "metrics.jsonl") <= 1 - TARGET:
        reached = time.perf_counter() - began
      time.sleep(0.1)
    if process.returncode:
      errors.seek(0)
      raise RuntimeError(last_line(errors.read()))
  return time.perf_counter() - began, reached


def least_error(records: Path) -> float:
  """Returns the least error on the validation images so far; 1 before the first."""
  lines = records.read_text().split("\n")[:-1] if records.is_file() else []
  return min((json.loads(line).get("val/error", 1.0) for line in lines), default=1.0)
