"""Error and NLL of group softmax against the number of groups, from a finished `compare_group_softmax`.

    python benchmarks/group_softmax_trends.py runs/compare_group_softmax-digits
    python benchmarks/group_softmax_trends.py docs/group_softmax.md --section MNIST-1K --to FILE.png

Type II predicts with its logits divided by the number of groups; from the checkpoints this also makes its NLL
without that. Prints a Markdown table of test error and both NLLs, mean and 95 % interval over the seeds, and
writes `trends.json` and `figures/trends.png` into the folder. The second form draws the same figure from the
table that a page has under a heading, without the runs.
"""

import argparse
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from jaxreg import plots
from jaxreg.train import base_config, load
from jaxreg.train.build.dataset import load_data
from jaxreg.train.build.saved import restore_config
from jaxreg.train.step.metrics import averaged, shown

METRICS = {
  "test/error": ("test error (%)", 100),
  "test/nll": ("NLL, type II scaled (nats)", 1),
  "test/nll_unscaled": ("NLL, not scaled (nats)", 1),
}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("folder", type=Path, help="of the comparison; or a page with its table")
  parser.add_argument("--section", help="of the page: the start of its heading")
  parser.add_argument("--to", type=Path, help="file of the figure that is drawn from a page")
  arguments = parser.parse_args()
  folder = arguments.folder
  if arguments.section:
    rows = rows_of(folder.read_text(), arguments.section)
    draw(rows, f"{arguments.section}, 5 seeds").savefig(arguments.to, dpi=100)
    return
  found = json.loads((folder / "compare.json").read_text())
  data = None
  for label, row in found["rows"].items():
    runs = row["runs"]
    runs["test/nll_unscaled"] = runs["test/nll"]
    if label.startswith("II "):
      cell = next((folder / "rows").glob(f"{label.replace(' ', '_')}-*"))
      config = restore_config(base_config(), cell)
      data = load_data(config) if data is None else data
      scale = config.method.group_softmax.predict.logit_scale
      runs["test/nll_unscaled"] = [
        unscaled_nll(cell, seed, data.test, scale) for seed in range(found["seeds"])
      ]
  print("| | test error, % | NLL | NLL, not scaled |\n|---|---|---|---|")
  for label, row in found["rows"].items():
    means = averaged({name: np.asarray(row["runs"][name]) for name in METRICS})
    cells = [
      shown(means, name, factor=factor, digits=2 if factor == 100 else 3)
      for name, (_, factor) in METRICS.items()
    ]
    print(f"| {label} | {' | '.join(cells)} |")
  (folder / "trends.json").write_text(json.dumps(found["rows"]))
  figure = draw({label: row["runs"] for label, row in found["rows"].items()}, f"{found['seeds']} seeds")
  figure.savefig(folder / "figures" / "trends.png", dpi=100)


def draw(rows: dict[str, dict], title: str) -> Figure:
  series: dict[str, dict[float, dict]] = {}
  for label, runs in rows.items():
    if label != "softmax":
      line, _, number = label.rpartition(" ")
      series.setdefault(line, {})[int(number)] = runs
  return plots.sweep(series, ("softmax", rows["softmax"]), METRICS, xlabel="groups", title=title)


def rows_of(page: str, section: str) -> dict[str, dict[str, list[float]]]:
  """By label, two values for each metric that have the mean and the 95 % interval of the section's table."""
  (text,) = re.findall(rf"^## {re.escape(section)}.*?(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
  pattern = r"^\| (softmax|I.*?) \|" + 3 * r" ([\d.]+) ± ([\d.]+) \|" + "$"
  rows = {}
  for label, *numbers in re.findall(pattern, text, re.MULTILINE):
    rows[label] = {}
    for name, mean, half in zip(METRICS, numbers[::2], numbers[1::2]):
      # Two values at this distance from their mean have this interval.
      away = float(half) / stats.t.ppf(0.975, 1)
      rows[label][name] = (np.array([float(mean) - away, float(mean) + away]) / METRICS[name][1]).tolist()
  return rows


def unscaled_nll(cell: Path, replica: int, split, scale: float) -> float:
  """The log-probabilities of `z / G` are those of `z` when multiplied by `G` and normalised again."""
  predict = load(cell, replica=replica)
  parts = [
    jax.nn.log_softmax(predict(split.inputs[at : at + 1000]) / scale) for at in range(0, len(split), 1000)
  ]
  log_probs = np.asarray(jnp.concatenate(parts), np.float64)
  return float(-np.take_along_axis(log_probs, split.labels[:, None], 1).mean())


if __name__ == "__main__":
  main()
