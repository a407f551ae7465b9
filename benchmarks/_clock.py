"""The clock that both processes of a benchmark read; with `BENCH_CLOCK=cpu` the seconds of all cores."""

import os
import time


def now():
  # Of the whole process: what others use of the machine does not count.
  return time.process_time() if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter()
