"""What training several seeds side by side gains: time per step and seed, one program against a loop.

python benchmarks/replicas.py [--rounds 7]
"""

import argparse
import json

from _steps import alternate, make_steps, median_and_quartiles

CASES = {
  "MLP 784-256-10, batch 64": ((28, 28, 1), 64, {"model.name": "MLP"}),
  "LeNet, batch 50": ((28, 28, 1), 50, {"model.name": "LeNet"}),
}
NUMBERS = (1, 5, 20)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--rounds", type=int, default=7)
  rounds = parser.parse_args().rounds
  results = {}
  print("| step of one seed, DropMax | seeds | loop, ms | one program (vmap), ms | vmap / loop (quartiles) |")
  print("|---|---|---|---|---|")
  for case, (image, batch_size, fields) in CASES.items():
    for number in NUMBERS:
      runs = {
        form: make_steps(image, batch_size, {**fields, "method.name": "dropmax"}, replicas=number, form=form)
        for form in ("loop", "vmap")
      }
      times = alternate(runs, rounds=rounds, seconds=1.0)
      medians = {form: 1e3 * median_and_quartiles(values)[0] / number for form, values in times.items()}
      ratios = [vmap / loop for loop, vmap in zip(*times.values(), strict=True)]
      ratio, low, high = median_and_quartiles(ratios)
      print(
        f"| {case} | {number} | {medians['loop']:.2f} | {medians['vmap']:.2f} "
        f"| {ratio:.2f} ({low:.2f} to {high:.2f}) |",
        flush=True,
      )
      results[f"{case}, {number}"] = {"ms": medians, "ratios": ratios}
  print(json.dumps(results))


if __name__ == "__main__":
  main()
