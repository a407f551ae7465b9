"""Training steps on a CPU beside PyTorch's, and with a device of JAX for each core.

    python benchmarks/steps.py [--rounds 11] [--networks MLP,LeNet,ResNet-20] [--peer-python PYTHON]
      [--other-python PYTHON] [--no-load]

The trainer's whole step with metrics and augmentation; SGD with momentum, batch 128 (LeNet 50). The
convolutions of ResNet-20 alone, with their gradients, are a floor of its step. Every contestant is a process
of its own, and they run in turn. One contestant has oneDNN's convolutions, where JAX has them, and one leaves
their choice to XLA.
The last table has the steps beside a process on each core that is always busy.
`--peer-python` is a Python with PyTorch. One device for each core is `JAX_NUM_CPU_DEVICES`. Our side keeps
freed memory, as `run.py` does; one contestant leaves that to glibc.
"""

import os
import subprocess
import sys
from collections.abc import Callable

from _convolutions import NAME
from _peer import Peer
from _report import Report, by_instructions, flags, milliseconds, ratios, spread
from _steps import alternate

from jaxreg._onednn import has_onednn

ONEDNN = "jaxreg, onednn=True"
UNCHANGED = {"MALLOC_ARENA_TEST": "8"}  # glibc's own default; a setting of the environment stays


def main() -> None:
  parser = flags(__doc__, rounds=11)
  parser.add_argument("--networks", default=f"MLP,LeNet,ResNet-20,{NAME}")
  parser.add_argument("--peer-python", default=sys.executable, help="a Python with PyTorch")
  parser.add_argument("--other-python", help="a second Python with what jaxreg needs: one more contestant")
  parser.add_argument("--no-load", action="store_true", help="leave out the steps beside busy processes")
  options = parser.parse_args()
  rounds, seconds = (2, 0.1) if options.quick else (options.rounds, 0.5)
  report = Report(options.json)
  cores = len(os.sched_getaffinity(0))
  spread_out = {"JAX_NUM_CPU_DEVICES": str(cores)}
  ours = lambda more, python=sys.executable, *flags: Peer(
    python, "_steps_jax.py", *flags, environment={"JAX_NUM_CPU_DEVICES": "1", **more}
  )
  theirs = lambda more: Peer(options.peer_python, "_steps_torch.py", environment=more)
  peers = {}
  if subprocess.run([options.peer_python, "-c", "import torch"], capture_output=True).returncode == 0:
    peers = {"PyTorch": theirs({})}
  else:
    print(f"{options.peer_python} has no PyTorch: left out; --peer-python names another Python")
  if has_onednn():
    peers[ONEDNN] = ours({}, sys.executable, "--onednn")
  peers |= {
    "jaxreg": ours({}),
    "jaxreg, glibc's memory": ours(UNCHANGED),
    f"jaxreg, {cores} devices": ours(spread_out),
  }
  peers["jaxreg, XLA's convolutions"] = ours({}, sys.executable, "--xla")
  if options.other_python:
    other = f"jaxreg, {versions(options.other_python)}"
    peers[other] = ours({}, options.other_python)
    peers[f"{other}, XLA's convolutions"] = ours({}, options.other_python, "--xla")
  first = next(iter(peers))
  report.table(by_instructions("steps"), "network", "contestant", "ms a step", f"time of {first}'s")
  for network in options.networks.split(","):
    # The floor is of one device, and keeps nothing from call to call.
    left_out = ("devices", "memory") if network == NAME else ()
    runs = {name: peer.stepper(network) for name, peer in peers.items() if not name.endswith(left_out)}
    times = alternate(runs, rounds=rounds, seconds=seconds)
    for name, values in times.items():
      cells = spread(milliseconds(values), ".1f"), spread(ratios(values, times[first]))
      report.row(network, name, *cells, numbers=values)
  if not options.no_load:
    under_load(report, options.networks.split(","), peers, cores, rounds, seconds)
  for peer in peers.values():
    peer.close()
  report.close()


def under_load(
  report: Report, networks: list[str], peers: dict[str, Peer], cores: int, rounds: int, seconds: float
) -> None:
  """The steps of PyTorch and of jaxreg beside a process on each core that is always busy."""

  def beside(run: Callable[[int], float]) -> Callable[[int], float]:
    def busy(number: int) -> float:
      others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
      try:
        return run(number)
      finally:
        for other in others:
          other.kill()
          other.wait()

    return busy

  table = by_instructions("steps_load")
  report.table(table, "network", "contestant", "ms a step", "beside busy processes", "times its quiet step")
  for network in networks:
    if network != NAME:
      names = [name for name in ("PyTorch", ONEDNN, "jaxreg") if name in peers]
      runs = {name: peers[name].stepper(network) for name in names}
      busy = {f"{name}, busy": beside(run) for name, run in runs.items()}
      times = alternate({**runs, **busy}, rounds=rounds, seconds=seconds)
      for name in runs:
        quiet, loaded = times[name], times[f"{name}, busy"]
        cells = (spread(milliseconds(values), ".1f") for values in (quiet, loaded))
        report.row(network, name, *cells, spread(ratios(loaded, quiet)), numbers=[quiet, loaded])


def versions(python: str) -> str:
  program = "import platform, jax; print(f'Python {platform.python_version()}, jax {jax.__version__}')"
  return subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
  main()
