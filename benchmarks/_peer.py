"""A process of its own for what is compared with: the threads of the two sides must not meet."""

import json
import os
import subprocess
import sys
from pathlib import Path


class Peer:
  """Runs a script beside this one that answers lines with lines."""

  def __init__(self, python, script, *arguments, environment=None):
    threads = str(len(os.sched_getaffinity(0)))
    # Waiting threads sleep: spinning they would slow the other side down.
    # It measures the jaxreg beside this file. Packages on PYTHONPATH are of use to the same Python only.
    same = Path(python).resolve() == Path(sys.executable).resolve()
    paths = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "") if same else ""]
    environment = {
      **os.environ,
      "PYTHONPATH": os.pathsep.join(filter(None, paths)),
      "OMP_WAIT_POLICY": "passive",
      "OMP_NUM_THREADS": threads,
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
    try:
      print(json.dumps(request), file=self.process.stdin, flush=True)
      line = self.process.stdout.readline()
    except BrokenPipeError:
      line = ""
    if not line:
      raise SystemExit(f"the peer process ended with {self.process.wait()} at {task}")
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
    self.process.stdin.close()
    self.process.wait()
