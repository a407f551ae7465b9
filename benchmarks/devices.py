"""What it costs to spread a step over devices, by parts, on one CPU.

    python benchmarks/devices.py [--rounds 7] [--networks MLP,ResNet-20]

The same batch of 128 on 1, 2, 4 and 8 simulated devices of one process, and on one device in each of two
processes. The cores stay the same, so what a step takes longer is the price of spreading it. `dispatch` is a
program that takes and returns all arrays of the step and computes nothing, `sums` the sum of all gradients
over the devices. What is left is smaller products, which use the cores less well.
"""

import socket
import sys
import threading

from _peer import Peer
from _report import Report, flags, milliseconds, ratios, spread
from _steps import alternate

PARTS = ("", ", dispatch", ", sums")


class Pair:
  """Two processes with one device each, which take every step together."""

  def __init__(self) -> None:
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      address = f"127.0.0.1:{free.getsockname()[1]}"
    start = lambda number: Peer(
      sys.executable,
      "_steps_jax.py",
      f"--coordinator={address}",
      f"--process={number}",
      environment={"JAX_NUM_CPU_DEVICES": "1"},
    )
    self.peers = [start(number) for number in range(2)]

  def stepper(self, task: str):
    first, second = (peer.stepper(task) for peer in self.peers)

    def run(number: int) -> float:
      other = threading.Thread(target=second, args=(number,))
      other.start()
      seconds = first(number)
      other.join()
      return seconds

    return run

  def close(self) -> None:
    closing = [threading.Thread(target=peer.close) for peer in self.peers]
    for each in closing:
      each.start()
    for each in closing:
      each.join()


def main() -> None:
  parser = flags(__doc__, rounds=7)
  parser.add_argument("--networks", default="MLP,ResNet-20")
  options = parser.parse_args()
  rounds, seconds = (2, 0.1) if options.quick else (options.rounds, 0.5)
  report = Report(options.json)
  peers: dict[str, Peer | Pair] = {
    f"{number} device{'s' * (number > 1)}": Peer(
      sys.executable, "_steps_jax.py", environment={"JAX_NUM_CPU_DEVICES": str(number)}
    )
    for number in (1, 2, 4, 8)
  }
  peers["2 processes"] = Pair()
  report.table("devices", "network", "on", "step, ms", "time of one device's", "dispatch, ms", "sums, ms")
  for network in options.networks.split(","):
    times = {
      part: alternate(
        {name: peer.stepper(network + part) for name, peer in peers.items()}, rounds=rounds, seconds=seconds
      )
      for part in PARTS
    }
    for name in peers:
      step, *parts = (times[part][name] for part in PARTS)
      share = spread(ratios(step, times[""]["1 device"]))
      cells = (spread(milliseconds(values), ".2f") for values in parts)
      report.row(network, name, spread(milliseconds(step), ".1f"), share, *cells, numbers=[step, *parts])
  for peer in peers.values():
    peer.close()
  report.close()


if __name__ == "__main__":
  main()
