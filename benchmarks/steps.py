"""Training steps on a CPU beside PyTorch's, and with a device of JAX for each core.

    python benchmarks/steps.py [--rounds 7] [--networks MLP,LeNet,ResNet-20] [--peer-python PYTHON]

The trainer's whole step with metrics and augmentation, batch 128 (LeNet 50). Every contestant is a process of
its own, and they run in turn. `--peer-python` is a Python with PyTorch. One device for each core is
`JAX_NUM_CPU_DEVICES`; huge pages are `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`, for both sides.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from _peer import Peer
from _steps import alternate, median_and_quartiles

PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--rounds", type=int, default=7)
  parser.add_argument("--networks", default="MLP,LeNet,ResNet-20")
  parser.add_argument("--peer-python", default=sys.executable)
  parser.add_argument("--json", type=Path)
  options = parser.parse_args()
  cores = len(os.sched_getaffinity(0))
  spread = {"JAX_NUM_CPU_DEVICES": str(cores)}
  ours = lambda more: Peer(sys.executable, "_steps_jax.py", environment={"JAX_NUM_CPU_DEVICES": "1", **more})
  theirs = lambda more: Peer(options.peer_python, "_steps_torch.py", environment=more)
  peers = {
    "PyTorch": theirs({}),
    "PyTorch, huge pages": theirs(PAGES),
    "jaxreg": ours({}),
    "jaxreg, huge pages": ours(PAGES),
    f"jaxreg, {cores} devices": ours(spread),
    f"jaxreg, {cores} devices, huge pages": ours(spread | PAGES),
  }
  found = {}
  print(f"| milliseconds of a step, median of {options.rounds} (quartiles) | time of PyTorch's |")
  for network in options.networks.split(","):
    runs = {name: peer.stepper(network) for name, peer in peers.items()}
    times = alternate(runs, rounds=options.rounds, seconds=0.5)
    found[network] = times
    least = median_and_quartiles(times["PyTorch"])[0]
    for name, values in times.items():
      median, low, high = (1000 * value for value in median_and_quartiles(values))
      cells = f"{median:.2f} ({low:.2f}, {high:.2f}) | {median / 1000 / least:.2f}"
      print(f"| {network}, {name} | {cells} |", flush=True)
  for peer in peers.values():
    peer.close()
  if options.json:
    options.json.write_text(json.dumps({"cores": cores, "seconds": found}, indent=1))


if __name__ == "__main__":
  main()
