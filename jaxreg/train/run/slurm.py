"""SLURM's queue: a job that it told to stop is put back there, and goes on when its turn comes."""

import os
import signal
import subprocess

from jaxreg.train.errors import one_line


def requeue(received: int) -> str | None:
  """Puts this job back into SLURM's queue, if it is one and SIGUSR1 has come; returns what to say of it.

  SIGUSR1 comes of `--signal=USR1@SECONDS`. SIGTERM is not enough: `scancel` sends it too, and then the job is
  to end.
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
