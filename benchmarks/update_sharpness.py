"""Critical and directional sharpness and the gradient noise scale along four trainings of one network.

    python -m benchmarks update_sharpness

The 1078 training digits, an MLP of 64-128-128-10, batches of 512, 300 steps at a constant rate without any
regularizer; three seeds. The trainer measures with `log.sharpness_every`. The script writes the record
`update_sharpness`, and `python -m benchmarks --render` draws the figure.
"""

import tempfile
from pathlib import Path

import numpy as np
from _records import Found
from _report import Report, flags

from jaxreg import train
from jaxreg.train.config.choices import add_options, base_config
from jaxreg.train.run.metrics_file import read_records
from jaxreg.train.user_cache import keep_compiled_programs

STEPS, EVERY, SEEDS = 300, 10, 3
QUICK = {"STEPS": 20, "EVERY": 5, "SEEDS": 2}
ROWS = {
  "SGD": ("sgd", 0.2, {}),
  "Adam": ("adam", 1e-3, {}),
  "SAM": ("sam", 0.2, {"optimizer.sam.inner": "sgd", "optimizer.sam.rho": 0.05}),
  "Muon": ("muon", 0.01, {}),
}


def run(name: str, rate: float, fields: dict[str, object], seed: int) -> list[dict[str, float]]:
  """Trains, and returns the records of the sharpness."""
  config = base_config()
  config.optimizer.name = name
  config = add_options(config)
  config.update_from_flattened_dict(
    {
      "data.name": "digits",
      "method.name": "softmax",
      "model.name": "MLP",
      "model.MLP.widths": (128, 128),
      "model.MLP.dropout_rate": 0.0,
      "optimizer.learning_rate": rate,
      "optimizer.schedule.name": "constant",
      "batch_size": 512,
      "steps": STEPS,
      "seed": seed,
      "eval_every": 1000,
      "checkpoint.every": 1000,
      "log.sharpness_every": EVERY,
      "log.trackers": (),
      **fields,
    }
  )
  with tempfile.TemporaryDirectory() as folder:
    workdir = Path(folder) / "run"
    train.train(config, str(workdir))
    return [record for record in read_records(workdir) if "update/critical_sharpness" in record]


def main() -> None:
  options = flags(__doc__ or "", rounds=1).parse_args()
  if options.quick:
    globals().update(QUICK)
  keep_compiled_programs("benchmarks")
  found = Found()
  for label, (name, rate, fields) in ROWS.items():
    runs = [run(name, rate, fields, seed) for seed in range(SEEDS)]
    for quantity in ("critical", "directional", "normalized"):
      values = np.array([[each[f"update/{quantity}_sharpness"] for each in records] for records in runs])
      for record, at_step in zip(runs[0], values.T, strict=True):
        if np.isfinite(at_step).all():
          found.add(label, f"{quantity} sharpness at {record['step']}", at_step, 2)
      found.add(label, f"{quantity} sharpness at the end", np.median(values[:, -10:], axis=1), 2)
    # Windows of five measurements: single estimates of the squared gradient may be negative.
    for start in range(0, len(runs[0]) - 4, 5):
      trace, square = (
        np.array(
          [np.mean([each[f"update/{part}"] for each in records[start : start + 5]]) for records in runs]
        )
        for part in ("noise_trace", "squared_gradient")
      )
      if (square > 0).all():
        found.add(label, f"noise scale at {runs[0][start + 2]['step']}", trace / square, 0)
    if not options.quick:
      found.write("update_sharpness", "python -m benchmarks update_sharpness")
  Report(options.json).close()


if __name__ == "__main__":
  main()
