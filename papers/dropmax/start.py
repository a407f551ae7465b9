"""The first steps of DropMax and softmax on CIFAR-10, with and without clipping, and a figure of them.

    python -m papers.dropmax.start --out runs/dropmax_start --config.data.tfds.data_dir=DIR

Four runs of `configs/dropmax_cifar10.py` (ResNet-32, the whole set), each of `--steps` steps, recorded at
every one. Further flags go to `run.py`. What has run is not run again.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from jaxreg.train.run.metrics_file import read_records
from papers._command import one_line_errors
from papers.dropmax import plots

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {"appendix C, as printed": 0.0, "with clip_norm = 1": 1.0}
METHODS = {"DropMax": "dropmax", "softmax": "softmax"}


@one_line_errors()
def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--steps", type=int, default=150)
  parser.add_argument("--out", type=Path, default=Path("runs/dropmax_start"))
  arguments, flags = parser.parse_known_args()
  if arguments.steps < 5:
    parser.error(f"--steps: must be at least 5, over which the figure averages, got {arguments.steps}")
  columns = {}
  for recipe, clip_norm in RECIPES.items():
    columns[recipe] = {}
    for label, method in METHODS.items():
      workdir = arguments.out / f"{method}-{clip_norm:g}"
      command = [sys.executable, ROOT / "run.py", "--config", ROOT / "configs/dropmax_cifar10.py", *flags]
      command += ["--workdir", workdir, "--config.log_every=1", f"--config.steps={arguments.steps}"]
      command += [f"--config.method.name={method}", f"--config.optimizer.clip_norm={clip_norm}"]
      if status := subprocess.run(list(map(str, command))).returncode:
        sys.exit(status)  # run.py has said why
      columns[recipe][label] = read_records(workdir)
  figure = plots.first_steps(columns, title="ResNet-32 on CIFAR-10, first steps, seed 0")
  file = arguments.out / "dropmax_start.png"
  figure.savefig(file, dpi=120)
  print(file)


if __name__ == "__main__":
  main()
