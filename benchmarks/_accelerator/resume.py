"""Whether a run that was continued equals one in one go, bit for bit, under deterministic operations."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _report import Report
from accelerator import last_line
from first_step import run_command, write_images

from jaxreg.train.finished.restore import restore_run

STEPS = 16  # before it is continued: whole dispatches
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
FIELDS = {"data.npz.scale": 255.0, "batch_size": 16, "checkpoint.wait": True}
TOY = {"model.CifarResNet.depth": None, "model.name": "MLP", "model.MLP.widths": "(8,)"}


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  del rounds
  steps = 4 if quick else STEPS
  report.table("resume", "run.py", "array values", "apart", "records apart")
  with tempfile.TemporaryDirectory() as folder:
    scratch = Path(folder)
    write_images(scratch / "data.npz", {"train": 144, "test": 16}, (8, 8, 3) if quick else (32, 32, 3))
    whole, parts = scratch / "whole", scratch / "parts"
    for workdir, last in ((whole, 2 * steps), (parts, steps), (parts, 2 * steps)):
      fields = {**FIELDS, **(TOY if quick else {}), "steps": last}
      finish(run_command(workdir, scratch / "data.npz", fields))
    one, other = state(whole), state(parts)
    values, apart = difference(one, other)
    records = sum(a != b for a, b in zip(losses(whole), losses(parts), strict=True))
  name = "MLP, toy" if quick else "ResNet-20, DropMax"
  text = f"{name}: {2 * steps} steps against {steps} + {steps}"
  report.row(text, values, apart, records, numbers={"apart": apart, "records": records})


def finish(command: list[str]) -> None:
  flags = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {DETERMINISTIC}"}
  done = subprocess.run(command, env={**os.environ, **flags}, capture_output=True, text=True)
  if done.returncode:
    raise RuntimeError(f"{last_line(done.stderr)} ({' '.join(command[1:])})")


def state(workdir: Path) -> Any:
  return restore_run(workdir, "latest", 0)[1]


def losses(workdir: Path) -> list[tuple[int, float]]:
  records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  return [(record["step"], record["train/loss"]) for record in records if "train/loss" in record]


def difference(one: Any, other: Any) -> tuple[int, int]:
  """How many values two trees have, and how many of them differ in their bits."""
  plain = lambda x: np.asarray(
    jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
  )
  pairs = [
    (plain(a).ravel(), plain(b).ravel())
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  ]
  bits = lambda x: x.view(f"u{x.dtype.itemsize}")
  return sum(a.size for a, _ in pairs), sum(int((bits(a) != bits(b)).sum()) for a, b in pairs)
