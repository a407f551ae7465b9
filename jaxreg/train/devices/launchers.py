"""What a launcher tells each process that it starts: where to meet, how many there are, its number.

JAX finds this out too. It is found out here so that the processes can meet before JAX's service starts.
"""

import os
import re
from collections.abc import Callable, Mapping

from jaxreg.train.errors import RunError, one_line

# Environment variables of launchers, with a test for a value that means several processes.
LAUNCHERS: dict[str, Callable[[str], bool]] = {
  "JAX_COORDINATOR_ADDRESS": bool,
  "SLURM_STEP_NUM_TASKS": lambda value: int(value) > 1,
  "OMPI_COMM_WORLD_SIZE": lambda value: int(value) > 1,
  "TPU_WORKER_HOSTNAMES": lambda value: "," in value,
  "TPU_PROCESS_ADDRESSES": lambda value: "," in value,
}
PORTS = 2**12  # the last ports of all; the number of the job chooses one, so that jobs differ


def says_several(environment: Mapping[str, str] = os.environ) -> str | None:
  """The first variable of a launcher that means several processes, or None."""
  for name, several in LAUNCHERS.items():
    try:
      if name in environment and several(environment[name]):
        return name
    except ValueError:  # it is no number
      continue
  return None


def asked(timeout: int) -> tuple[str, int, int] | None:
  """What JAX's own detection says, also of TPU pods and Kubernetes, as `detected` does.

  The detection is private to JAX. Where it has moved, this is None.
  """
  try:
    from jax._src.clusters import ClusterEnv

    ask = ClusterEnv.auto_detect_unset_distributed_params
  except (ImportError, AttributeError):
    return None
  try:
    coordinator, num_processes, process_id, _ = ask(None, None, None, (), None, timeout)
  except TypeError:
    return None
  except Exception as error:  # It asks other machines, through packages with exceptions of their own.
    raise RunError(f"--coordinator: the launcher does not tell where to meet ({one_line(error)})") from error
  if coordinator is None or num_processes is None or process_id is None:
    found = says_several()
    raise RunError(
      f"{f'{found}={os.environ[found]}' if found else '--distributed'}: no launcher tells where several "
      "processes meet; give --coordinator, --num_processes and --process_id"
      + (f", or unset {found}" if found else "")
    )
  return coordinator, num_processes, process_id


def detected(environment: Mapping[str, str] = os.environ) -> tuple[str, int, int] | None:
  """The coordinator, the number of processes and the number of this one, as SLURM or Open MPI tell them.

  None without these launchers, or for one process.
  """
  for launcher in (_slurm, _open_mpi):
    try:
      coordinator, num_processes, process_id = launcher(environment)
    except (KeyError, ValueError, AttributeError):
      continue
    if 0 <= process_id < num_processes and num_processes > 1:
      return coordinator, num_processes, process_id
  return None


def _slurm(environment: Mapping[str, str]) -> tuple[str, int, int]:
  # Lists of nodes: `a`, `a,b`, `n[01-15],b`, `n[01,07-15]`.
  first = re.match(r"([^,\[]+)(?:\[([^,\-\]]+))?", environment["SLURM_STEP_NODELIST"])
  host = "".join(part or "" for part in first.groups())  # pyright: ignore[reportOptionalMemberAccess]
  number, process_id = int(environment["SLURM_STEP_NUM_TASKS"]), int(environment["SLURM_PROCID"])
  return f"{host}:{_port(environment, int(environment['SLURM_JOB_ID']))}", number, process_id


def _open_mpi(environment: Mapping[str, str]) -> tuple[str, int, int]:
  # `1531576320.0;tcp://10.96.0.1,10.148.0.1:34911`, or `...;tcp6://[fe80::b9b,2620::2]:43370`.
  uri = environment["OMPI_MCA_orte_hnp_uri"]
  found = re.match(r"(\d+)\..*?(?:tcp://([^,:]+)|tcp6://\[([^,\]]+))", uri)
  job, host, host6 = found.groups()  # pyright: ignore[reportOptionalMemberAccess]
  number, process_id = int(environment["OMPI_COMM_WORLD_SIZE"]), int(environment["OMPI_COMM_WORLD_RANK"])
  # All numbers of jobs are multiples of 2**12.
  return f"{host or f'[{host6}]'}:{_port(environment, int(job) // 2**12)}", number, process_id


def _port(environment: Mapping[str, str], job: int) -> str:
  return environment.get("JAX_COORDINATOR_PORT") or str(2**16 - PORTS + job % PORTS)
