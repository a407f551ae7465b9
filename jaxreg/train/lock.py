"""One run in one work directory."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from jaxreg.train.errors import RunError


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
  """Keeps a second run out of `workdir`; a run that was killed holds nothing up.

  Of several processes the first one locks. The kernel keeps the lock, and lets go when the process is gone.
  On NFS, Linux asks the server, but some servers and mount options lock within one machine only.

  Raises:
    RunError: if another run is at work there, or the folder cannot be written.
  """
  with contextlib.ExitStack() as held:
    try:
      stream = held.enter_context(open(workdir / "lock", "w"))
      fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise RunError(
        f"--workdir: another run is at work in {workdir}; wait for it or give another"
      ) from error
    except OSError as error:
      raise RunError(f"--workdir: {workdir} cannot be locked ({error}); give another") from error
    yield
