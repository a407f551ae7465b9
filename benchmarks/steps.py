"""Training steps and forward passes on a CPU beside PyTorch's, eager and compiled.

    python benchmarks/steps.py [--runs 3] [--pause 1800] [--rounds 7] [--networks MLP,LeNet,ResNet-20,ViT]
      [--peer-python PYTHON]

The trainer's whole step with metrics and augmentation; SGD with momentum, batch 128 (LeNet 50). The forward
pass is that of an evaluation. Every contestant is a process of its own, stopped while others run. Every
second round has the reverse order.
A ratio is the median over the rounds of a run. The fastest of PyTorch's is chosen in each run, of all its
forms. Runs are `--pause` seconds apart, because neighbours on the machine change within minutes; a cell has
the median, the least and the greatest of the runs.

`--peer-python` is a Python with PyTorch, whose compiler needs a C++ compiler. Our side keeps freed memory, as
`run.py` does; one contestant leaves that to glibc.
"""

import statistics
import subprocess
import sys
import time

from _peer import Peer
from _report import Report, flags, milliseconds, ratios, spread
from _steps import alternate

from jaxreg._cpu.onednn import has_onednn

UNCHANGED = {"MALLOC_ARENA_TEST": "8"}  # glibc's own default; a setting of the environment stays


def main() -> None:
  parser = flags(__doc__, rounds=7)
  parser.add_argument("--networks", default="MLP,LeNet,ResNet-20,ViT")
  parser.add_argument("--runs", type=int, default=3)
  parser.add_argument("--pause", type=float, default=1800, help="seconds between runs")
  parser.add_argument("--peer-python", default=sys.executable, help="a Python with PyTorch")
  options = parser.parse_args()
  rounds, seconds, number = (2, 0.1, 1) if options.quick else (options.rounds, 0.5, options.runs)
  tasks = [task for network in options.networks.split(",") for task in (network, f"{network}, forward")]
  runs = []
  for run in range(number):
    if run:
      print(f"\npause of {options.pause:.0f} s", flush=True)
      time.sleep(options.pause)
    print(f"\nrun {run + 1} of {number}", flush=True)
    runs.append(one_run(tasks, contestants(options.peer_python), rounds, seconds))

  report = Report(options.json)
  heads = "time of eager PyTorch's", "time of the fastest PyTorch's", "first call, s"
  report.table("steps", "network", "contestant", "ms", *heads)
  for task in tasks:
    times, shares = {}, {}
    for name in runs[0][task]:
      times[name] = [statistics.median(run[task][name]["times"]) for run in runs]
      shares[name] = [
        statistics.median(ratios(run[task][name]["times"], next(iter(run[task].values()))["times"]))
        for run in runs
      ]
    for name, cells in shown(times, shares).items():
      first = f"{runs[0][task][name]['first']:.1f}"
      report.row(task, name, *cells, first, numbers=[times[name], shares[name]])
  report.close()


def shown(times: dict[str, list[float]], shares: dict[str, list[float]]) -> dict[str, list[str]]:
  """For each contestant its milliseconds, its shares, and its times over PyTorch's fastest of a run."""
  peers = [shares[name] for name in shares if name.startswith("PyTorch")] or [next(iter(shares.values()))]
  fastest = [min(run) for run in zip(*peers, strict=True)]
  return {
    name: [spread(milliseconds(times[name]), ".1f"), spread(each), spread(ratios(each, fastest))]
    for name, each in shares.items()
  }


def one_run(
  tasks: list[str], peers: dict[str, Peer], rounds: int, seconds: float
) -> dict[str, dict[str, dict]]:
  """Times each contestant at each task: the seconds of its first call, and of a step in each round."""
  found: dict[str, dict[str, dict]] = {}
  for task in tasks:
    # How memory is kept matters to training alone.
    steppers = {n: peer.stepper(task) for n, peer in peers.items() if not ("," in task and "memory" in n)}
    first = {name: run(1) for name, run in steppers.items()}
    times = alternate(steppers, rounds=rounds, seconds=seconds)
    found[task] = {name: {"first": first[name], "times": times[name]} for name in steppers}
    for name, values in times.items():
      share = statistics.median(ratios(values, next(iter(times.values()))))
      print(f"  {task}, {name}: {1000 * statistics.median(values):.1f} ms, {share:.2f}", flush=True)
  for peer in peers.values():
    peer.close()
  return found


def contestants(python: str, *, forms: bool = True) -> dict[str, Peer]:
  """The processes; those of PyTorch come first, where a Python has it. `forms`: compiled, other memory."""
  peers = {}
  if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
    peers["PyTorch"] = Peer(python, "_steps_torch.py")
    for mode in ("default", "max-autotune") if forms else ():
      peers[f"PyTorch, {mode}"] = Peer(python, "_steps_torch.py", "--compile", mode)
  else:
    print(f"{python} has no PyTorch: left out; --peer-python names another Python")
  one = {"JAX_NUM_CPU_DEVICES": "1"}
  if has_onednn():
    peers["jaxreg, onednn=True"] = Peer(sys.executable, "_steps_jax.py", "--onednn", environment=one)
  peers["jaxreg"] = Peer(sys.executable, "_steps_jax.py", environment=one)
  if forms:
    peers["jaxreg, glibc's memory"] = Peer(sys.executable, "_steps_jax.py", environment=one | UNCHANGED)
  return peers


if __name__ == "__main__":
  main()
