"""Speed, agreement and memory on one GPU or TPU, within 45 minutes.

    python benchmarks/accelerator.py [--parts steps,memory] [--quick]

Each part is a process of its own, in `_accelerator/`, with a time of its own: it may also take what the parts
before it left. A part that fails, or runs out of its time, is a line of the last table; its rows up to then
are kept. On a CPU there is only `--quick`, with toy sizes.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _report import Report, flags

# Seconds for each part, mostly for compiling; with the look at the device less than 45 minutes. On an H200
# agreement, resume and memory took 70 to 85 each, and a row of the steps 20.
PARTS = {
  "agreement": 120,
  "memory": 100,
  "dispatch": 180,
  "replicas": 240,
  "dropmax": 120,
  "group_softmax": 180,
  "flatness": 240,
  "input": 180,
  "resume": 120,
  "epochs": 180,
  "goodput": 120,
  "vit": 240,
  "cifar10": 240,
  "steps": 400,
}
LOOK = 14  # seconds to find the device
PREFIX = "accelerator_"
DEVICE = "import jax; print(jax.default_backend(), jax.local_device_count(), jax.devices()[0].device_kind)"


@dataclasses.dataclass(frozen=True)
class Ended:
  """How a process ended.

  Attributes:
    seconds: its time.
    outcome: `ok`, or what went wrong, in one line.
    found: the contents of its file at the end.
  """

  seconds: float
  outcome: str
  found: dict[str, Any]


def main() -> None:
  parser = flags(__doc__, rounds=5)
  parser.add_argument("--parts", default=",".join(PARTS))
  parser.add_argument("--inside", metavar="PART", help="measure this part in this process")
  options = parser.parse_args()
  if options.inside:
    sys.exit(measure(options.inside, options.json, options.rounds, options.quick))
  asked = options.parts.split(",")
  if unknown := set(asked) - set(PARTS):
    parser.error(f"--parts: {', '.join(sorted(unknown))} unknown; there are {', '.join(PARTS)}")
  # A signal that ends this process ends its parts, too.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  deadline = time.monotonic() + LOOK
  backend, number, kind = device()
  if backend == "cpu" and not options.quick:
    sys.exit("accelerator: JAX finds no GPU or TPU here; --quick runs toy sizes on the CPU")

  report = Report(options.json)
  report.device = f"{number} x {kind}" if number > 1 else kind
  reduced = " (reduced: toy sizes, whose times say nothing)" if options.quick else ""
  print(f"{backend}: {report.device}{reduced}", flush=True)
  rows = {}
  with tempfile.TemporaryDirectory() as folder:
    scratch = Path(folder)
    # The parts share their compiled programs.
    environment = {"JAX_COMPILATION_CACHE_DIR": str(scratch / "compiled"), **os.environ}
    for part in PARTS:
      if part not in asked:
        continue
      print(f"\n-- {part}", flush=True)
      # Toy sizes are not about speed, and a CPU may have other work.
      deadline += PARTS[part] * (20 if options.quick else 1)
      path = scratch / f"{part}.json"
      command = [
        sys.executable,
        __file__,
        "--inside",
        part,
        "--rounds",
        str(options.rounds),
        "--json",
        str(path),
      ]
      command += ["--quick"] * options.quick
      ended = limited(command, path, deadline - time.monotonic(), environment)
      print(f"{part}: {ended.outcome}, {ended.seconds:.0f} s", flush=True)
      report.tables |= ended.found.get("tables", {})
      report.numbers |= ended.found.get("numbers", {})
      rows[part] = f"{ended.seconds:.0f}", ended.outcome
  report.table(f"{PREFIX}parts", "part", "seconds", "outcome")
  for part, cells in rows.items():
    report.row(part, *cells)
  report.close()


def device() -> tuple[str, int, str]:
  """The platform, the number of devices and their kind: by a process, since a process keeps its device."""
  found = subprocess.run([sys.executable, "-c", DEVICE], capture_output=True, text=True, timeout=60)
  if found.returncode:
    sys.exit(f"accelerator: {last_line(found.stderr) or 'JAX finds no device'}")
  backend, number, kind = found.stdout.splitlines()[-1].split(maxsplit=2)
  return backend, int(number), kind.strip()


def limited(
  command: Sequence[str], path: Path, seconds: float, environment: dict[str, str] | None = None
) -> Ended:
  """Runs a command that leaves JSON in `path`; after `seconds` ends it and all that it started."""
  began = time.monotonic()
  with tempfile.TemporaryFile("w+", errors="replace") as errors:
    process = subprocess.Popen(command, stderr=errors, env=environment, start_new_session=True)
    try:
      status = process.wait(max(seconds, 0))
      outcome = "ok"
    except subprocess.TimeoutExpired:
      status, outcome = None, f"stopped after its {seconds:.0f} s"
    finally:
      end_group(process)
    if status:
      errors.seek(0)
      said = errors.read()
      sys.stderr.write(said[-4000:])
      outcome = f"failed: {last_line(said) or f'status {status}'}"
  found = json.loads(path.read_text()) if path.is_file() else {}
  return Ended(time.monotonic() - began, outcome, found)


def end_group(process: subprocess.Popen) -> None:
  """Kills a process and the rest of its session."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)
  process.wait()


def last_line(text: str) -> str:
  """The last line that is not empty, short enough for a cell."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return lines[-1][:160].replace("|", "/") if lines else ""


def measure(part: str, path: Path | None, rounds: int, quick: bool) -> int:
  """Measures a part in this process; its status. The last line of an error says what went wrong."""
  report = Report(path, prefix=PREFIX)
  try:
    importlib.import_module(f"_accelerator.{part}").measure(report, rounds=rounds, quick=quick)
  except Exception as error:
    traceback.print_exc()
    print(in_a_line(error), file=sys.stderr)
    return 1
  report.close()
  return 0


def in_a_line(error: Exception) -> str:
  return last_line(f"{type(error).__name__}: {error}".splitlines()[0])


if __name__ == "__main__":
  main()
