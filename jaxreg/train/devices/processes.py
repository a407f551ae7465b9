"""Several processes that train one model: how they start together and exchange values of the host."""

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxreg.train.errors import RunError, first_line, one_line, program

T = TypeVar("T")
PEER_TIMEOUT = 100  # seconds; JAX's own
START_TIMEOUT = 45  # seconds
GRACE = 3  # seconds that the first process, which hosts JAX's service, gives others to report their errors

# Environment variables of launchers that JAX knows, with a pattern of values that mean several processes.
LAUNCHERS = {
  "JAX_COORDINATOR_ADDRESS": r".",
  "SLURM_STEP_NUM_TASKS": r"(?!1$)\d+$",
  "OMPI_COMM_WORLD_SIZE": r"(?!1$)\d+$",
  "TPU_WORKER_HOSTNAMES": r".*,",
  "TPU_PROCESS_ADDRESSES": r".*,",
}
# Words of JAX's errors when a process that takes part in an operation is gone.
LOST = re.compile(r"Gloo|NCCL|coordination service|[Cc]onnection (closed|reset|refused)|[Ss]ocket closed")


def start(
  coordinator: str | None,
  num_processes: int | None,
  process_id: int | None,
  *,
  distributed: bool = False,
  peer_timeout: int = PEER_TIMEOUT,
  start_timeout: int = START_TIMEOUT,
) -> None:
  """Joins the other processes, before the first use of a device; does nothing in a run of one process.

  The arguments are the flags of the command line. With `distributed`, JAX asks the environment even if it
  shows no sign of several processes.
  """
  # These two variables are read here and not by JAX.
  num_processes = _from_environment("JAX_NUM_PROCESSES", num_processes)
  process_id = _from_environment("JAX_PROCESS_ID", process_id)
  coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
  flags = {"--coordinator": coordinator, "--num_processes": num_processes, "--process_id": process_id}
  missing = [name for name, value in flags.items() if value is None]
  if missing and len(missing) < 3:
    present = [name for name in flags if name not in missing]
    raise RunError(f"{', '.join(missing)}: must be given too, with {', '.join(present)}")
  for name, seconds in (("peer_timeout", peer_timeout), ("start_timeout", start_timeout)):
    if seconds < 1:
      raise RunError(f"--{name}: must be at least 1 second, got {seconds}")
  launcher = next((name for name in LAUNCHERS if re.match(LAUNCHERS[name], os.environ.get(name, ""))), None)
  if missing and not distributed and launcher is None:
    return
  if not missing:
    _check(coordinator, num_processes, process_id)
  # JAX aborts the program where a process does not come; this thread ends it before, with one line.
  late = threading.Timer(start_timeout, _end_late, [start_timeout])
  late.daemon = True
  late.start()
  try:
    jax.distributed.initialize(
      coordinator,
      num_processes,
      process_id,
      initialization_timeout=start_timeout + 60,
      heartbeat_timeout_seconds=peer_timeout,
      shutdown_timeout_seconds=peer_timeout,
    )
    same("--num_processes", num_processes or jax.process_count())
  except RunError:
    raise
  except Exception as error:  # JAX asks other machines, through packages with exceptions of their own.
    if not missing:
      raise RunError(f"--coordinator: the processes cannot meet ({one_line(error)})") from error
    sign = f"{launcher}={os.environ[launcher]}" if launcher else "--distributed"
    unset = f", or unset {launcher}" if launcher else ""
    raise RunError(
      f"{sign}: JAX does not learn where several processes meet ({one_line(error)}); give --coordinator, "
      f"--num_processes and --process_id{unset}"
    ) from error
  finally:
    late.cancel()


def check_platform() -> None:
  """Checks that JAX finds a device, before anything is read."""
  try:
    jax.local_devices()
  except (RuntimeError, AssertionError) as error:  # without a message, if the platform is not installed
    names = ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES")
    where = ", ".join(f"{name}={os.environ[name]}" for name in names if os.environ.get(name))
    reason = one_line(error) if str(error) else "it is not installed"
    raise RunError(f"{where or 'JAX'}: no device can be used ({reason})") from error


def lost(error: BaseException) -> str | None:
  """Describes an error that the loss of another process caused; None for any other error."""
  if not jax.distributed.is_initialized() or not LOST.search(str(error)):
    return None
  return f"another process is gone; the same commands continue from the last checkpoint ({first_line(error)})"


def end(status: int) -> None:
  """Ends this process if it is one of several: JAX's own shutdown would wait for those that may be gone."""
  if jax.distributed.is_initialized():
    sys.stdout.flush()
    with contextlib.suppress(RuntimeError):  # no device can be used, and no process knows its number
      if is_first():
        time.sleep(GRACE)
    os._exit(status)


def is_first() -> bool:
  """Tells whether this process is the one that logs, and writes the files that are written once."""
  return jax.process_index() == 0


def exchange(value: T) -> list[T]:
  """Returns the values of all processes, in their order; values must have JSON's types."""
  if jax.process_count() == 1:
    return [value]
  text = np.frombuffer(json.dumps(value).encode(), np.uint8)
  lengths = multihost_utils.process_allgather(np.asarray(len(text), np.int32))
  padded = np.pad(text, (0, int(lengths.max()) - len(text)))
  texts = multihost_utils.process_allgather(padded)
  return [json.loads(bytes(row[:length])) for row, length in zip(texts, lengths, strict=True)]


def first(call: Callable[[], T]) -> T:
  """Calls `call` in the first process, and returns its result, of JSON's types, in all processes."""
  return _agreed(call, ask=is_first())[0]


def everywhere(call: Callable[[], T]) -> T:
  """Calls `call` in every process and returns its own result; if one call raises, all processes raise."""
  result: list[T] = []
  _agreed(lambda: result.append(call()), ask=True)
  return result[0]


def same(what: str, value: object) -> None:
  """Checks that `value` is the same in all processes."""
  values = exchange(value)
  differ = [number for number, other in enumerate(values) if other != values[0]]
  if differ:
    raise RunError(f"{what}: process {differ[0]} has another value than process 0; start all processes alike")


def _agreed(call: Callable[[], T], *, ask: bool) -> list[T]:
  results, error = list[T](), None
  if ask:
    try:
      results.append(call())
    except Exception as raised:  # Of any type, because the other processes wait for the outcome.
      error = raised
  outcomes = exchange((results, None if error is None else one_line(error, limit=1000)))
  if error is not None:
    raise error
  for number, (_, problem) in enumerate(outcomes):
    if problem is not None:
      raise RunError(f"process {number}: {problem}")
  return [result for results, _ in outcomes for result in results]


def _end_late(seconds: int) -> None:
  line = f"--num_processes: not all processes came within {seconds} seconds, or they disagree on their number"
  print(f"{program()}: error: {line}", file=sys.stderr, flush=True)
  os._exit(1)


def _from_environment(name: str, value: int | None) -> int | None:
  if value is not None or name not in os.environ:
    return value
  try:
    return int(os.environ[name])
  except ValueError:
    raise RunError(f"{name}: must be an integer, got {os.environ[name]!r}") from None


def _check(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
  host, _, port = (coordinator or "").rpartition(":")
  if not host.strip() or not port.isdigit() or not 0 < int(port) < 2**16:
    raise RunError(f"--coordinator: must be host:port, got {coordinator!r}")
  if num_processes is None or num_processes < 1:
    raise RunError(f"--num_processes: must be at least 1, got {num_processes}")
  if process_id is None or not 0 <= process_id < num_processes:
    raise RunError(
      f"--process_id: must be at least 0 and below --num_processes={num_processes}, got {process_id}"
    )
