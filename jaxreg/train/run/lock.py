"""A lock that lets only one run work in a work directory."""

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from jaxreg._atomic_files import no_link_or_pipe
from jaxreg.train.devices.processes import is_first
from jaxreg.train.errors import NothingToSave, RunError

SLOW = 30  # seconds for which another machine may keep an old view of a folder on NFS


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[str]:
  """Keeps a second run out of `workdir`; a killed run leaves no lock behind.

  Of several processes, the first one locks. The kernel holds the lock, and releases it when the process ends.
  On NFS, Linux asks the server, but some servers and mount options lock within one machine only. Yields the
  token of this session, by which `check_shared` recognises the folder. It is in the lock file, with the
  number of the file on its disk, so that a copy of the file is another one.
  """
  with contextlib.ExitStack() as held:
    try:
      stream = held.enter_context(open(workdir / "lock", "a", opener=no_link_or_pipe))
      fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
      token = f"{secrets.token_hex(16)}-{os.fstat(stream.fileno()).st_ino}"
      stream.truncate(0)
      stream.write(token)
      stream.flush()
    except BlockingIOError as error:
      raise RunError(f"--workdir: another run is at work in {workdir}; wait, or give another") from error
    except OSError as error:
      raise RunError(f"--workdir: {workdir} cannot be locked ({error}); give another") from error
    yield token


def check_there(workdir: Path, token: str) -> None:
  """Checks that `workdir` is still the folder that this run locked, and that its lock is the same file."""
  if _is_locked_by(workdir, token):
    return
  if (workdir / "config.json").is_file():
    raise NothingToSave(
      f"--workdir: {workdir / 'lock'} was removed or replaced under this run, so that another run may be at "
      "work there; the same command continues from the last checkpoint"
    )
  raise NothingToSave(
    f"--workdir: {workdir} was removed or moved under this run; after a move, give its new place"
  )


def check_shared(workdir: Path, token: str) -> None:
  """Checks that `workdir` is the folder that the first process locked, and not a folder on another disk."""
  deadline = time.monotonic() + SLOW
  while True:
    if _is_locked_by(workdir, token):
      return
    if time.monotonic() > deadline:
      raise RunError(
        f"--workdir: {workdir} is not the folder of process 0; give all processes one folder on a shared disk"
      )
    time.sleep(0.2)


def _is_locked_by(workdir: Path, token: str) -> bool:
  """Whether the lock is the file that `locked` wrote the token into, and no copy, link or pipe."""
  try:
    with open(workdir / "lock", "rb", opener=no_link_or_pipe) as stream:
      # On some shared disks, other machines give the file another number.
      same_file = not is_first() or token.endswith(f"-{os.fstat(stream.fileno()).st_ino}")
      return same_file and stream.read(len(token) + 1) == token.encode()
  except OSError:
    return False
