"""What it costs to spread a step over devices, by parts, on one CPU.

    python benchmarks/devices.py [--rounds 5] [--networks MLP]

The same batch on 1, 2, 4 and 8 simulated devices of one process, and on two processes with a device each. The
cores stay the same, so what a step takes longer is the price of spreading it. `dispatch` is a program that
takes and returns all arrays of the step and computes nothing, `sums` the sum of all gradients over the
devices. The rest is not measured by parts: products are smaller, and each device makes the whole update.
"""

import sys

from _peer import Pair, Peer
from _report import Report, flags, milliseconds, ratios, spread
from _steps import alternate

PARTS = ("", ", dispatch", ", sums")


def main() -> None:
  parser = flags(__doc__, rounds=5)
  parser.add_argument("--networks", default="MLP")
  options = parser.parse_args()
  rounds, seconds = (2, 0.1) if options.quick else (options.rounds, 0.5)
  report = Report(options.json)
  peers: dict[str, Peer | Pair] = {
    f"{number} device{'s' * (number > 1)}": Peer(
      sys.executable, "_steps_jax.py", environment={"JAX_NUM_CPU_DEVICES": str(number)}
    )
    for number in (1, 2, 4, 8)
  }
  peers["2 processes"] = Pair("_steps_jax.py")
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
