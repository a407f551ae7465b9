"""What SLURM and Open MPI tell each process that they start: where to meet, how many there are, its number.

JAX reads these variables too. They are read here so that the processes can meet before JAX's service starts.
"""

import os
import re
from collections.abc import Mapping

PORTS = 2**12  # the last ports of all; the number of the job chooses one, so that jobs differ


def detected(environment: Mapping[str, str] = os.environ) -> tuple[str, int, int] | None:
  """The coordinator, the number of processes and the number of this one; None without such a launcher."""
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
