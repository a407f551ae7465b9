"""Training steps beside their matrix products and convolutions alone, ours and PyTorch's.

    python benchmarks/products.py [--rounds 7] [--networks MLP,LeNet,ResNet-20,ViT] [--peer-python PYTHON]

The products alone, with their gradients and in one program, are a floor of a step: no step can do without
them. Where ours take longer than PyTorch's whole step, no other part of ours can make up for it. PyTorch is
eager; the contestants and the order of the rounds are those of `steps`.
"""

import statistics
import sys

from _report import Report, flags, ratios, spread
from steps import contestants, one_run


def main() -> None:
  parser = flags(__doc__, rounds=7)
  parser.add_argument("--networks", default="MLP,LeNet,ResNet-20,ViT")
  parser.add_argument("--peer-python", default=sys.executable, help="a Python with PyTorch")
  options = parser.parse_args()
  networks, rounds = options.networks.split(","), 4 if options.quick else options.rounds
  tasks = [task for network in networks for task in (network, f"{network}, products")]
  seconds = 0.1 if options.quick else 0.5
  found = one_run(tasks, contestants(options.peer_python, forms=False), rounds, seconds)

  report = Report(options.json)
  report.table("products", "network", "contestant", "step, ms", "products, ms", "share of PyTorch's step")
  for network in networks:
    whole = next(iter(found[network].values()))["times"]
    for name, step in found[network].items():
      products = found[f"{network}, products"][name]["times"]
      times = [f"{1000 * statistics.median(each):.1f}" for each in (step["times"], products)]
      report.row(network, name, *times, spread(ratios(products, whole)), numbers=[step["times"], products])
  report.close()


if __name__ == "__main__":
  main()
