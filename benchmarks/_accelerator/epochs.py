"""The wall time of 200 epochs of images like CIFAR-10's with ResNet-20, scaled up from a minute of `run.py`.

The whole of it: start, training with batch 128 on data that lie on the device, evaluation and checkpoints.
"""

import json
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from _accelerator.resume import TOY
from _report import Report
from accelerator import last_line
from first_step import run_command, write_images

EPOCHS = 200


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  del rounds
  train, batch_size, seconds = (640, 16, 1.0) if quick else (50_000, 128, 60.0)
  fields = {"batch_size": batch_size, "epochs": EPOCHS, "log_every": 1 if quick else 50}
  if quick:
    fields |= TOY
  with tempfile.TemporaryDirectory() as folder:
    scratch = Path(folder)
    # CIFAR-10's sizes; a tenth of the training images is for validation.
    write_images(
      scratch / "data.npz", {"train": train, "test": train // 5}, (8, 8, 3) if quick else (32, 32, 3)
    )
    seen = watched(run_command(scratch / "run", scratch / "data.npz", fields), scratch, seconds)
  steps_per_epoch = (train - train // 10) // batch_size
  total, made = scaled(seen, EPOCHS * steps_per_epoch)
  report.table("epochs", "run.py", "epochs made", "start, s", "an epoch, s", f"{EPOCHS} epochs")
  report.row(
    "MLP, toy" if quick else "ResNet-20 on 50000 images, DropMax",
    f"{made / steps_per_epoch:.1f}",
    f"{seen[0][0]:.1f}",
    f"{(seen[-1][0] - seen[0][0]) / made * steps_per_epoch:.3g}",
    f"~ {total:.0f} s",
    numbers=seen,
  )


def watched(command: list[str], scratch: Path, seconds: float) -> list[tuple[float, int]]:
  """Runs a command for so long, and says when which step was there: seconds from the start, and steps."""
  began, seen = time.perf_counter(), []
  with open(scratch / "errors", "w+") as errors:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
    records = scratch / "run" / "metrics.jsonl"
    # At least two records: else there is no speed.
    while len(seen) < 2 or time.perf_counter() - began < seconds:
      step = newest(records)
      if step > (seen[-1][1] if seen else 0):
        seen.append((time.perf_counter() - began, step))
      if process.poll() is not None:
        break
      time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.wait()
    if len(seen) < 2:
      errors.seek(0)
      raise RuntimeError(f"run.py ended before its second record: {last_line(errors.read())}")
  return seen


def newest(records: Path) -> int:
  """The step of the last whole record, or 0."""
  lines = records.read_text().split("\n")[:-1] if records.is_file() else []
  return json.loads(lines[-1])["step"] if lines else 0


def scaled(seen: list[tuple[float, int]], steps: int) -> tuple[float, int]:
  """The seconds of `steps` steps, from the first and the last record, and the steps between these two."""
  (first, before), (last, after) = seen[0], seen[-1]
  return first + (steps - before) * (last - first) / (after - before), after - before
