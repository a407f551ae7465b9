"""Whether DropMax begins to learn with many classes: its recipes for 50, 100 and 200 on synthetic images.

    python -m papers.dropmax.classes --recipes dropmax_cub200 --steps 400 --seeds 3

Each recipe is a configuration in `configs/`, with its network, rate, decay and batch, but with other data: a
class is a smooth random picture of 32x32 pixels, and an image is its picture, shifted, under noise.
`dropmax_cifar100` has ResNet-20 in place of its ResNet-32. Prints the mean training accuracy over the last 50
steps. What has run is not run again. Further flags go to `run.py`.
"""

import argparse
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from jaxreg._intervals import interval
from jaxreg.train.errors import unknown
from jaxreg.train.run.metrics_file import read_records
from papers._command import one_line_errors

ROOT = Path(__file__).resolve().parents[2]
CLASSES = {"dropmax_awa2": 50, "dropmax_cifar100": 100, "dropmax_cub200": 200}
FLAGS = {"dropmax_cifar100": ["--config.model.CifarResNet.depth=20"]}
EXAMPLES = 6000


@one_line_errors()
def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--recipes", default=",".join(CLASSES))
  parser.add_argument("--clip", default="0,1", help="values of optimizer.clip_norm, 0 for none")
  parser.add_argument("--methods", default="softmax,dropmax")
  parser.add_argument("--steps", type=int, default=400)
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--out", type=Path, default=Path("runs/dropmax_classes"))
  arguments, flags = parser.parse_known_args()
  recipes = arguments.recipes.split(",")
  if wrong := [recipe for recipe in recipes if recipe not in CLASSES]:
    raise unknown("--recipes", wrong[0], CLASSES)
  arguments.out.mkdir(parents=True, exist_ok=True)
  print("| recipe | classes | method | clip_norm | training accuracy, last 50 steps |")
  print("|---|---|---|---|---|")
  chosen = (recipes, arguments.methods.split(","), arguments.clip.split(","))
  for recipe, method, clip_norm in itertools.product(*chosen):
    own = [f"--config.method.name={method}", f"--config.optimizer.clip_norm={clip_norm}", *flags]
    name = f"{recipe}-{method}-{clip_norm}"
    seen = [
      _accuracy(recipe, name, arguments, [*own, f"--config.seed={n}"], n) for n in range(arguments.seeds)
    ]
    print(f"| {recipe} | {CLASSES[recipe]} | {method} | {clip_norm} | {_interval(seen)} |", flush=True)


def _accuracy(recipe: str, name: str, arguments: argparse.Namespace, flags: list[str], seed: int) -> float:
  """The mean training accuracy of a run's last 50 steps."""
  workdir = arguments.out / f"{name}-{arguments.steps}-{seed}"
  command = [sys.executable, ROOT / "run.py", "--config", ROOT / f"configs/{recipe}.py", "--workdir", workdir]
  command += ["--config.data.name=npz", "--config.data.npz.scale=255", f"--config.steps={arguments.steps}"]
  command += [f"--config.data.npz.path={_images(CLASSES[recipe], arguments.out)}", "--config.log_every=10"]
  command += ["--config.checkpoint.every=1000", "--config.eval_every=1000", *FLAGS.get(recipe, []), *flags]
  if status := subprocess.run(list(map(str, command)), stdout=sys.stderr).returncode:
    sys.exit(status)  # run.py has said why
  records = [record for record in read_records(workdir) if "train/accuracy" in record]
  return float(np.mean([record["train/accuracy"] for record in records[-5:]]))


def _images(classes: int, out: Path) -> Path:
  """An `.npz` of uint8 images; the numbers of classes alone determine it."""
  file = out / f"classes{classes}.npz"
  if not file.is_file():
    rng = np.random.default_rng(classes)
    pictures: Any = ndimage.zoom(rng.normal(size=(classes, 4, 4, 3)), (1, 8, 8, 1), order=1)
    labels = np.arange(EXAMPLES + 2 * classes) % classes
    shifts = rng.integers(-4, 5, (len(labels), 2))
    moved = zip(labels.tolist(), shifts.tolist(), strict=True)
    images = [np.roll(pictures[label], shift, (0, 1)) for label, shift in moved]
    images = 128 + 40 * (np.stack(images) + rng.normal(size=(len(labels), 32, 32, 3)))
    images = images.clip(0, 255).astype(np.uint8)
    parts = {"x_train": images[:EXAMPLES], "y_train": labels[:EXAMPLES]}
    np.savez(file, **parts, x_test=images[EXAMPLES:], y_test=labels[EXAMPLES:])
  return file


def _interval(values: list[float]) -> str:
  mean, half = interval(100 * np.asarray(values))
  return f"{mean:.1f} ± {half:.1f} %" if len(values) > 1 else f"{mean:.1f} %"


if __name__ == "__main__":
  main()
