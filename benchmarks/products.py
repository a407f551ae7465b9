"""Training steps beside their matrix products and convolutions alone, ours and PyTorch's.

    python benchmarks/products.py [--runs 3] [--pause 60] [--rounds 7] [--networks MLP,LeNet,ResNet-20,ViT]
      [--peer-python PYTHON]

The products alone, with their gradients and in one program, are a floor of a step: nothing in it can be left
out. Where ours take longer than PyTorch's whole step, no other part of ours can make up for it.
Contestants and rounds are those of `steps`, PyTorch is eager.
"""

import statistics
import sys
import time

from _report import Report, flags, ratios, spread
from steps import contestants, one_run


def main() -> None:
  parser = flags(__doc__, rounds=7)
  parser.add_argument("--networks", default="MLP,LeNet,ResNet-20,ViT")
  parser.add_argument("--runs", type=int, default=3)
  parser.add_argument("--pause", type=float, default=60, help="seconds between runs")
  parser.add_argument("--peer-python", default=sys.executable, help="a Python with PyTorch")
  options = parser.parse_args()
  rounds, seconds, number = (2, 0.1, 1) if options.quick else (options.rounds, 0.5, options.runs)
  networks = options.networks.split(",")
  tasks = [task for network in networks for task in (network, f"{network}, products")]
  runs = []
  for run in range(number):
    if run:
      time.sleep(options.pause)
    print(f"\nrun {run + 1} of {number}", flush=True)
    runs.append(one_run(tasks, contestants(options.peer_python, forms=False), rounds, seconds))

  report = Report(options.json)
  report.table(
    "products", "network", "contestant", "step, ms", "products, ms", "of its step", "of PyTorch's step"
  )
  for network in networks:
    median = lambda task, name: [statistics.median(run[task][name]["times"]) for run in runs]
    peer = median(network, next(iter(runs[0][network])))
    for name in runs[0][network]:
      step, products = median(network, name), median(f"{network}, products", name)
      times = [spread([1000 * value for value in values], ".1f") for values in (step, products)]
      shares = [spread(ratios(products, whole)) for whole in (step, peer)]
      report.row(network, name, *times, *shares, numbers=[step, products])
  report.close()


if __name__ == "__main__":
  main()
