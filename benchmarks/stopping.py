"""Early stopping by three metrics, before and after the temperature that suits the validation images.

    python benchmarks/stopping.py RUN

RUN is the folder of a finished `configs/compare_toolbox_mnist1k.py:stopping`. The script writes the record
`stopping`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from _records import Found

from jaxreg import calibration, train


def quality(log_probs: Any, labels: Any) -> dict[str, float]:
  total, count = calibration.nll(log_probs, labels)
  ece = calibration.ece(calibration.ece_bins(log_probs, labels))
  return {"NLL": float(total / count), "ECE, %": 100 * float(ece)}


def measured(folder: Path, replica: int) -> dict[str, float]:
  """The quality of one network on the test images, and that of its tempered probabilities."""
  run = train.load(folder, replica=replica)
  held_out, test = run.dataset.val, run.dataset.test
  log_probs = run(test.inputs)
  temperature = calibration.fit_temperature(run(held_out.inputs), held_out.labels)
  tempered = quality(calibration.temper(log_probs, temperature=temperature), test.labels)
  return {
    "error, %": 100 * float(np.mean(np.asarray(log_probs).argmax(-1) != test.labels)),
    **quality(log_probs, test.labels),
    "temperature": float(temperature),
    **{f"tempered {name}": value for name, value in tempered.items()},
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("run", type=Path, metavar="RUN", help="the folder of the comparison")
  folder = parser.parse_args().run
  if not (folder / "compare.json").is_file():
    parser.error(f"RUN must be the folder of a finished comparison, got {folder}, without compare.json")
  compared, record = json.loads((folder / "compare.json").read_text()), Found()
  for label in compared["rows"]:
    (row,) = (folder / "rows").glob(f"{label.replace(' ', '_')}-*")
    found = [measured(row, replica) for replica in range(compared["seeds"])]
    for name in found[0]:
      record.add(label, name, [each[name] for each in found], 3 if "NLL" in name else 2)
  record.write("stopping", "python benchmarks/stopping.py RUN")


if __name__ == "__main__":
  main()
