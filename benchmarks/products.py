"""Training steps beside their matrix products and convolutions alone, ours and PyTorch's.

    python benchmarks/products.py [--rounds 7] [--networks MLP,LeNet,ResNet-20,ViT] [--peer-python PYTHON]

The products alone have their gradients, are one program and keep every output. So their time is an estimate
of their part in a step: it may be above that of the whole step. PyTorch is eager; the contestants and the
order of the rounds are those of `steps`.
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
  heads = "step / PyTorch's step", "products / PyTorch's step", "products / own step"
  report.table("products", "network", "contestant", "step, ms", "products, ms", *heads)
  for network in networks:
    whole = next(iter(found[network].values()))["times"]
    for name in found[network]:
      step, products = (found[task][name]["times"] for task in (network, f"{network}, products"))
      report.row(network, name, *shown(step, products, whole), numbers=[step, products])
  report.close()


def shown(step: list[float], products: list[float], whole: list[float]) -> list[str]:
  """The cells of a row; `whole` has the seconds of PyTorch's step."""
  times = [f"{1000 * statistics.median(each):.1f}" for each in (step, products)]
  pairs = (step, whole), (products, whole), (products, step)
  return [*times, *(spread(ratios(*pair)) for pair in pairs)]


if __name__ == "__main__":
  main()
