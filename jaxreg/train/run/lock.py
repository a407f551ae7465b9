"""Lets only one run work in a work directory: a lock of the kernel on a disk, a lease in a bucket."""

import contextlib
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from etils.epath import Path

from jaxreg._atomic_files import in_bucket, open_in_place, read_bytes
from jaxreg.train.errors import NothingToSave, RunError, one_line

SLOW = 30  # seconds for which another machine may keep an old view of a folder on NFS
LEASE = 180.0  # seconds after its last renewal when a lease ends; a bucket may be silent for a minute
RENEWAL = 20.0  # seconds between two renewals


@contextlib.contextmanager
def locked(workdir: Path, say: Callable[[str], None] = lambda line: None) -> Iterator[str]:
  """Keeps a second run out of `workdir`; yields a token, by which `check_shared` recognises the folder.

  Of several processes, the first one locks. On a disk the kernel holds the lock, and releases it when the
  process ends. On NFS, Linux asks the server, but some servers and mount options lock within one machine
  only. In a bucket a thread renews a lease. A run that crashed leaves its lease, which ends after `LEASE`
  seconds; whoever waits for that learns it by `say`.
  """
  token = secrets.token_hex(16)
  with contextlib.ExitStack() as held:
    try:
      if in_bucket(workdir):
        held.enter_context(_leased(workdir, token, say))
      else:
        stream = held.enter_context(open_in_place(workdir / "lock", "a"))
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stream.truncate(0)
        stream.write(token)
        stream.flush()
    except BlockingIOError as error:
      raise RunError(f"--workdir: another run is at work in {workdir}; wait, or give another") from error
    except OSError as error:
      raise RunError(f"--workdir: {workdir} cannot be locked ({one_line(error)}); give another") from error
    yield token


@contextlib.contextmanager
def _leased(workdir: Path, token: str, say: Callable[[str], None]) -> Iterator[None]:
  """Holds the object `lock`, by conditional writes alone; raises BlockingIOError if another run renews it."""
  from jaxreg._bucket import write_if  # it needs packages of the extra `gcs`

  file, ended = workdir / "lock", threading.Event()
  content = json.dumps({"token": token, "host": socket.gethostname(), "process": os.getpid()})
  generation = _acquire(file, content.encode(), say)

  def renew() -> None:
    last = generation
    while last is not None and not ended.wait(RENEWAL):
      with contextlib.suppress(OSError):  # the bucket may answer again before the lease ends
        # Only the generation that this run wrote is replaced; None: the lease is lost, see `check_there`.
        last = write_if(file, content.encode(), last)

  thread = threading.Thread(target=renew, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()
    with contextlib.suppress(OSError):  # the lease ends by itself
      if _token(workdir) == token:
        file.unlink()


def _acquire(file: Path, content: bytes, say: Callable[[str], None]) -> str:
  """Creates the lease, or replaces one that has ended; returns its generation."""
  from jaxreg._bucket import read_stored, write_if

  first = None  # the generation of another run's lease when it was first seen
  while True:
    other = read_stored(file)
    holder = {} if other is None else _table(other.content)
    if other is None or other.age > LEASE or not holder:  # a copied `lock` file of a disk is not a lease
      generation = write_if(file, content, other.generation if other else "0")
      if generation is not None:
        return generation
      continue
    if first is None:
      first = other.generation
      say(
        f"{file.parent} is leased by process {holder['process']} on {holder['host']}: waiting for up to "
        f"{LEASE - other.age:.0f} s, after which the lease of a crashed run ends"
      )
    elif other.generation != first:
      raise BlockingIOError  # it has been renewed, so that run is alive
    time.sleep(min(max(LEASE - other.age, 0) + 0.1, 1.0))


def check_there(workdir: Path, token: str) -> None:
  """Checks that `workdir` is still the folder that this run locked."""
  if _token(workdir) == token:
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
  while _token(workdir) != token:
    if time.monotonic() > deadline:
      raise RunError(
        f"--workdir: {workdir} is not the folder of process 0; give all processes one folder on a shared disk"
      )
    time.sleep(0.2)


def _token(workdir: Path) -> str | None:
  """Returns the token of the run that holds the lock; None if it cannot be read."""
  try:
    content = read_bytes(workdir / "lock")
  except (FileNotFoundError, NotADirectoryError):
    return None
  return _table(content).get("token") if in_bucket(workdir) else content.decode(errors="replace")


def _table(content: bytes) -> dict[str, Any]:
  """Reads the content of a lease; returns an empty table for anything else."""
  try:
    return {"host": "?", "process": "?", **json.loads(content)}
  except (ValueError, TypeError):
    return {}
