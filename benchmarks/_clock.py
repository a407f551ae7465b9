"""The clocks that both processes of a benchmark read; with `BENCH_CLOCK=cpu` the seconds of all cores."""

import multiprocessing
import os
import time
from pathlib import Path


def now():
  # Of the whole process: what others use of the machine does not count.
  return time.process_time() if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter()


def cpu_seconds():
  """Of this process and of those it has started, so that it counts what one core does whatever else runs."""
  ticks = 0
  for child in multiprocessing.active_children():
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    ticks += int(fields[11]) + int(fields[12])
  return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")
