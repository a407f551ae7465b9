"""The signals that end a run, and SLURM's requeue; without JAX, so that no signal waits for its import."""

import os
import signal
import subprocess
from collections.abc import Callable
from types import FrameType

from jaxreg.train.errors import one_line

# SLURM can send SIGUSR1 before a job's time is over; a terminal that closes sends SIGHUP.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], object] | int | None  # of `signal.signal`


def set_handler(number: int, handler: Handler) -> Handler:
  """Calls `signal.signal`, except for an ignored SIGHUP (`nohup`). Returns the previous handler."""
  before = signal.getsignal(number)
  kept = number == signal.SIGHUP and before == signal.SIG_IGN
  return before if kept else signal.signal(number, handler)


def requeue(received: int) -> str | None:
  """Requeues this SLURM job if SIGUSR1 has come; returns a line about it for people, or None.

  `--signal=USR1@SECONDS` makes SLURM send SIGUSR1. SIGTERM does not requeue: `scancel` sends it to end a
  job for good. A preemption sends it too, but then SLURM itself requeues the job, if its site allows that.
  """
  job = os.environ.get("SLURM_JOB_ID")
  if job is None or received != signal.SIGUSR1:
    return None
  try:
    subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, text=True, timeout=60)
  except subprocess.CalledProcessError as error:
    return f"SLURM does not requeue job {job} ({' '.join(error.stderr.split()) or error.returncode})"
  except (OSError, subprocess.TimeoutExpired) as error:
    return f"SLURM does not requeue job {job} ({one_line(error)})"
  return f"SLURM was asked to requeue job {job}"
