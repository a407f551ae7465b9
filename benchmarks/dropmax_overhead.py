"""What DropMax adds to a training step: its time over that of softmax, timed alternately in one process.

    python benchmarks/dropmax_overhead.py [--rounds 15]

The whole step of the trainer: augmentation, forward, backward, update, metrics and DropMax's diagnostics.
"""

import argparse
import json

from _steps import alternate, make_steps, median_and_quartiles

CASES = {
  "LeNet, batch 50": ((28, 28, 1), 50, {"model.name": "LeNet"}),
  "ResNet-20, batch 128": (
    (32, 32, 3),
    128,
    {
      "model.name": "CifarResNet",
      "model.CifarResNet.depth": 20,
      "optimizer.name": "sgd",
      "augment.names": ("pad_crop", "flip"),
    },
  ),
}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--rounds", type=int, default=15)
  rounds = parser.parse_args().rounds
  results = {}
  print("| step | softmax, ms | DropMax, ms | ratio (median, quartiles) |\n|---|---|---|---|")
  for case, (image, batch_size, fields) in CASES.items():
    runs = {
      method: make_steps(image, batch_size, {**fields, "method.name": method})
      for method in ("softmax", "dropmax")
    }
    times = alternate(runs, rounds=rounds, seconds=1.0)
    ratios = [dropmax / softmax for softmax, dropmax in zip(*times.values(), strict=True)]
    medians = {method: 1e3 * median_and_quartiles(values)[0] for method, values in times.items()}
    ratio, low, high = median_and_quartiles(ratios)
    print(
      f"| {case} | {medians['softmax']:.1f} | {medians['dropmax']:.1f} "
      f"| {ratio:.3f} ({low:.3f} to {high:.3f}) |",
      flush=True,
    )
    results[case] = {"ms": medians, "ratios": ratios}
  print(json.dumps(results))


if __name__ == "__main__":
  main()
