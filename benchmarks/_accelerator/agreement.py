"""Agreement with the CPU: masks and data order bit for bit, and the losses of ten training steps.

A process for the CPU makes the same arrays; products are in full float32 on both.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _accelerator import CASES, TOYS
from _report import Report
from _steps import Steps, made_up
from accelerator import last_line

from jaxreg import noise, train
from jaxreg._dropmax_masks import dropmax_mask
from jaxreg.train.assemble.load_data import make_order
from jaxreg.train.data.batches import gather, make_source
from jaxreg.train.devices.sharding import make_mesh

FOLDER = Path(__file__).resolve().parent.parent
STEPS, TOLERANCE = 10, 1e-4


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  del rounds
  report.table("agreement", "with the CPU's", "of", "apart", "agrees")
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "cpu.npz"
    # The device may be this process's alone.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "_accelerator.agreement", str(path), *["quick"] * quick]
    done = subprocess.run(command, cwd=FOLDER, env=environment, stderr=subprocess.PIPE, text=True)
    if done.returncode:
      raise RuntimeError(f"the process for the CPU: {last_line(done.stderr)}")
    theirs = dict(np.load(path))
  compare(report, made(quick), theirs)


def compare(report: Report, ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
  """A row for each array: exact, or of losses, which may be apart by `TOLERANCE` of themselves."""
  for name, x in ours.items():
    y = theirs[name]
    if name.startswith("losses"):
      apart = np.abs(x / y - 1).max()
      cells = f"{x.size} steps", f"{apart:.1e} of itself", apart <= TOLERANCE
    else:
      apart = int((x != y).sum()) if x.shape == y.shape else x.size
      cells = f"{x.size} {x.dtype}", f"{apart} of them", not apart
    report.row(name, *cells[:2], "yes" if cells[2] else "NO", numbers=float(apart))


def made(quick: bool) -> dict[str, np.ndarray]:
  """The arrays of this process's device."""
  cases = TOYS if quick else CASES
  with jax.default_matmul_precision("highest"):
    return masks() | order() | {f"losses of {name}": trained(*case) for name, case in cases.items()}


def masks() -> dict[str, np.ndarray]:
  shape, maps = (256, 100), jnp.ones((16, 8, 8, 4))
  # Halves, so that no rounding of a sigmoid comes in.
  made = {
    "masks of dropout": noise.dropout(jax.random.key(0), jnp.ones(shape), rate=0.5) != 0,
    "masks of DropMax": dropmax_mask(jax.random.key(1), jnp.zeros(shape)),
    "masks of DropBlock": noise.drop_block(jax.random.key(2), maps, rate=0.2, block_size=3) != 0,
  }
  return {name: np.asarray(mask) for name, mask in made.items()}


def order() -> dict[str, np.ndarray]:
  """The examples of a few steps, gathered on the device."""
  dataset, config, mesh = made_up((8, 8, 1), 128), train.base_config(), make_mesh()
  config.update_from_flattened_dict({"batch_size": 32, "seed": 3})
  source, order = make_source(mesh, dataset.train, resident=True), make_order(config, dataset)
  batches = [jax.jit(gather)(source.arrays, source.batch(order(step)[0])) for step in range(6)]
  return {
    f"{name} of 6 batches": np.stack([np.asarray(batch[name]) for batch in batches])
    for name in ("inputs", "labels")
  }


def trained(image: tuple[int, ...], batch_size: int, fields: dict[str, Any]) -> np.ndarray:
  """The losses of DropMax's first steps."""
  steps = Steps(made_up(image), batch_size, {**fields, "method.name": "dropmax"})
  sums = [jax.device_get(steps.call())[0]["loss"] for _ in range(STEPS)]
  return np.array([float(total / count) for total, count in sums])


if __name__ == "__main__":
  np.savez(sys.argv[1], **made("quick" in sys.argv[2:]))  # type: ignore[arg-type]
