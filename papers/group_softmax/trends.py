"""Error and NLL of group softmax against the number of groups, from a finished `compare_group_softmax`.

    python -m papers.group_softmax.trends runs/compare_group_softmax-digits

Type II predicts with its logits divided by the number of groups; from the checkpoints this also makes its NLL
without that. Writes `figures/trends.png` into the folder, and `trends.json`, which is `compare.json` with
this NLL as `test/nll_unscaled`.
"""

import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np
from etils.epath import Path
from matplotlib.figure import Figure

from jaxreg.train import RunError, base_config, load
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.finished.restore import restore_config
from jaxreg.train.jobs.train import figure_title
from papers._command import one_line_errors, read_comparison, row_folder
from papers.group_softmax._sweep import sweep

METRICS = {
  "test/error": ("test error (%)", 100),
  "test/nll": ("NLL, type II scaled (nats)", 1),
  "test/nll_unscaled": ("NLL, not scaled (nats)", 1),
}


@one_line_errors()
def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("folder", type=Path, help="of the comparison")
  folder = parser.parse_args().folder
  found = read_comparison(folder)
  if "softmax" not in found["rows"] or not any(label.startswith("II ") for label in found["rows"]):
    raise RunError(f"folder: {folder} must compare softmax and group softmax, got {', '.join(found['rows'])}")
  config = restore_config(base_config(), row_folder(folder, "softmax"))
  data = load_data(config)
  for label, row in found["rows"].items():
    runs = row["runs"]
    runs["test/nll_unscaled"] = runs["test/nll"]
    if label.startswith("II "):
      cell = row_folder(folder, label)
      config = restore_config(base_config(), cell)
      scale = config.method.group_softmax.predict.logit_scale
      runs["test/nll_unscaled"] = [
        unscaled_nll(cell, seed, data.test, scale) for seed in range(found["seeds"])
      ]
  (folder / "trends.json").write_text(json.dumps(found, indent=1) + "\n")
  title = f"{figure_title(config)}, {found['seeds']} seeds"
  figure = draw({label: row["runs"] for label, row in found["rows"].items()}, title)
  figure.savefig(folder / "figures" / "trends.png", dpi=100)


def draw(rows: dict[str, dict], title: str) -> Figure:
  series: dict[str, dict[float, dict]] = {}
  for label, runs in rows.items():
    if label != "softmax":
      line, _, number = label.rpartition(" ")
      series.setdefault(line, {})[int(number)] = runs
  return sweep(series, ("softmax", rows["softmax"]), METRICS, xlabel="groups", title=title)


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
