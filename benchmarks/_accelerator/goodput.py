"""The goodput of a run in a local folder: the share of its wall time in steps, and the lost time by kind."""

import json
import subprocess
import tempfile
from pathlib import Path

from _accelerator.resume import TOY
from _report import Report
from accelerator import last_line
from first_step import run_command, write_images

EPOCHS = 4


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  del rounds
  train, batch_size = (144, 16) if quick else (50_000, 128)
  fields = {"data.npz.scale": 255.0, "batch_size": batch_size, "epochs": EPOCHS, "checkpoint.every": 1}
  if quick:
    fields |= TOY
  with tempfile.TemporaryDirectory() as folder:
    scratch = Path(folder)
    shape = (8, 8, 3) if quick else (32, 32, 3)
    write_images(scratch / "data.npz", {"train": train, "test": train // 4}, shape)
    command = run_command(scratch / "run", scratch / "data.npz", fields)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
      raise RuntimeError(f"{last_line(done.stderr)} ({' '.join(command[1:])})")
    goodput = json.loads((scratch / "run" / "results.json").read_text())["goodput"]
  wall, seconds = goodput["wall_seconds"], goodput["seconds"]
  lost = sorted(((value, name) for name, value in seconds.items() if name != "steps" and value), reverse=True)
  report.table("goodput", "run.py", "wall time, s", "in steps that count", "lost, s")
  report.row(
    "MLP, toy" if quick else f"ResNet-20 on {train} images, DropMax, {EPOCHS} epochs",
    f"{wall:.1f}",
    f"{seconds['steps'] / wall:.1%}",
    ", ".join(f"{name} {value:.1f}" for value, name in lost),
    numbers=goodput,
  )
