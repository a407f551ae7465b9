"""Training loss against the step, balanced and unbalanced starts, from a finished comparison of optimizers.

    python benchmarks/optimizer_curves.py runs/compare_optimizers_mnist5k-HASH

Writes `figures/optimizers.png` into the folder and prints the table of docs/sgd.md.
"""

import argparse
import json
import re
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from jaxreg.plots._axes import colors
from jaxreg.train.run.log import read_records
from jaxreg.train.step.metrics import shown

STARTS = {"balanced": "", "unbalanced": " unbalanced"}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("folder", type=Path)
  folder = parser.parse_args().folder
  found = json.loads((folder / "compare.json").read_text())
  rows = found["rows"]
  names = [name for name in rows if not name.endswith(STARTS["unbalanced"])]
  figure = Figure(figsize=(12, 4.5), layout="constrained")
  for axis, (start, suffix) in zip(figure.subplots(1, 2, sharey=True), STARTS.items(), strict=True):
    for number, name in enumerate(names):
      records = [record for record in read_records(_run(folder, name + suffix)) if "train/loss" in record]
      steps, loss = np.array([[r["step"], r["train/loss"]] for r in records]).T
      half = np.array([r.get("train/loss_ci95", 0.0) for r in records])
      color, style = colors(len(names))[number], ("-", "--", ":")[number % 3]
      axis.plot(steps, loss, style, color=color, linewidth=1.4, label=name)
      # A mean that is not larger than its interval has no lower end on a logarithmic axis.
      axis.fill_between(steps, np.maximum(loss - half, loss / 10), loss + half, color=color, alpha=0.15)
    axis.set(title=f"{start} start", xlabel="step", yscale="log")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
  figure.axes[0].set_ylabel(f"training loss (nats), mean of {found['seeds']} seeds\nand its 95 % interval")
  figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", frameon=False)
  (folder / "figures").mkdir(exist_ok=True)
  figure.savefig(folder / "figures/optimizers.png", dpi=100)

  heads = " | ".join(f"{start}: test error, % | NLL | rate" for start in STARTS)
  print(f"| {found['seeds']} seeds | {heads} |")
  print("|---" * 7 + "|")
  for name in names:
    cells = []
    for suffix in STARTS.values():
      entry = rows[name + suffix]
      (rate,) = entry["setting"].values()
      error = shown(entry["mean"], "test/error", factor=100, digits=2)
      cells += [error, shown(entry["mean"], "test/nll", digits=3), f"{rate:g}"]
    print(f"| {name} | " + " | ".join(cells) + " |")


def _run(folder: Path, label: str) -> Path:
  name = re.sub(r"[^0-9A-Za-z_]+", "_", label)
  (run,) = (folder / "rows").glob(f"{name}-????????")
  return run


if __name__ == "__main__":
  main()
