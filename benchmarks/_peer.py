"""A process of its own for what is compared with: the threads of the two sides must not meet."""

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


class Peer:
  """Runs a script beside this one that answers lines with lines.

  The process is stopped while it has nothing to answer. Threads of OpenMP wait by spinning, and would take a
  core from whoever runs next. To let them sleep instead makes PyTorch's own steps up to a third longer. Where
  the seconds of all cores are counted they sleep, because waiting would count as work.
  """

  def __init__(self, python, script, *arguments, environment=None):
    threads = str(len(os.sched_getaffinity(0)))
    # It measures the jaxreg beside this file. Packages on PYTHONPATH are of use to the same Python only.
    same = Path(python).resolve() == Path(sys.executable).resolve()
    paths = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "") if same else ""]
    environment = {
      **os.environ,
      "PYTHONPATH": os.pathsep.join(filter(None, paths)),
      "OMP_NUM_THREADS": threads,
      **({"OMP_WAIT_POLICY": "passive"} if os.environ.get("BENCH_CLOCK") == "cpu" else {}),
      **(environment or {}),
    }
    command = [str(python), str(Path(__file__).parent / script), *map(str, arguments)]
    self.process = subprocess.Popen(
      command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    self.notes: dict[str, dict] = {}

  def ask(self, task, save=None, **options):
    """The seconds that a task took, by the peer's own clock."""
    request = {"task": task, "options": options, "save": str(save) if save else None}
    self.process.send_signal(signal.SIGCONT)
    try:
      print(json.dumps(request), file=self.process.stdin, flush=True)
      line = self.process.stdout.readline()
    except BrokenPipeError:
      line = ""
    if not line:
      raise SystemExit(f"the peer process ended with {self.process.wait()} at {task}")
    self.process.send_signal(signal.SIGSTOP)
    answer = json.loads(line)
    self.notes[task] = answer["notes"]
    return answer["seconds"]

  def runner(self, task, **options):
    """`run(n)`, which has it done `n` times and returns the seconds of one."""
    return lambda number: sum(self.ask(task, **options) for _ in range(number)) / number

  def stepper(self, task):
    """`run(n)`, which has it take `n` steps of a task at once and returns the seconds of one."""
    return lambda number: self.ask(task, number=number) / number

  def close(self):
    self.process.send_signal(signal.SIGCONT)
    self.process.stdin.close()
    self.process.wait()


class Pair:
  """Two peers that do each task together, as two processes of one program of JAX with a device each."""

  def __init__(self, script):
    with socket.socket() as free:
      free.bind(("localhost", 0))
      address = f"localhost:{free.getsockname()[1]}"
    names = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_NUM_CPU_DEVICES": "1"}
    self.peers = [
      Peer(sys.executable, script, environment={**names, "JAX_PROCESS_ID": str(number)})
      for number in range(2)
    ]

  def stepper(self, task):
    """Does what `Peer.stepper` does; the slower process counts."""

    def run(number):
      with ThreadPoolExecutor(2) as pool:
        return max(pool.map(lambda peer: peer.ask(task, number=number), self.peers)) / number

    return run

  def close(self):
    for peer in self.peers:
      peer.process.send_signal(signal.SIGCONT)
    for peer in self.peers:
      peer.close()
