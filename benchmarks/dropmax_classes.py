"""Whether DropMax begins to learn with many classes: its recipes for 50, 100 and 200 on synthetic images.

    python benchmarks/dropmax_classes.py --recipes dropmax_cub200 --steps 400 --seeds 3

The recipes are those of `configs/`, network, rate, decay and batch included, but not their data: a class is
a smooth random picture of 32x32 pixels, and an image is its picture, shifted, under noise. `dropmax_cifar100`
has ResNet-20 in place of its ResNet-32. Prints the mean training accuracy over the last 50 steps, of softmax
and of DropMax, with and without clipping. What has run is not run again. Further flags go to `run.py`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
from scipy import ndimage, stats

from jaxreg.train.run.log import read_records

ROOT = Path(__file__).resolve().parent.parent
CLASSES = {"dropmax_awa2": 50, "dropmax_cifar100": 100, "dropmax_cub200": 200}
FLAGS = {"dropmax_cifar100": ["--config.model.CifarResNet.depth=20"]}
EXAMPLES = 6000


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--recipes", default=",".join(CLASSES))
  parser.add_argument("--clip", default="0,1", help="values of optimizer.clip_norm, 0 for none")
  parser.add_argument("--methods", default="softmax,dropmax")
  parser.add_argument("--steps", type=int, default=400)
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--out", type=Path, default=Path("runs/dropmax_classes"))
  arguments, flags = parser.parse_known_args()
  arguments.out.mkdir(parents=True, exist_ok=True)
  print("| recipe | classes | method | clip_norm | training accuracy, last 50 steps |")
  print("|---|---|---|---|---|")
  for recipe in arguments.recipes.split(","):
    data = _images(CLASSES[recipe], arguments.out)
    for method in arguments.methods.split(","):
      for clip_norm in arguments.clip.split(","):
        seen = []
        for seed in range(arguments.seeds):
          workdir = arguments.out / f"{recipe}-{method}-{clip_norm}-{arguments.steps}-{seed}"
          command = [sys.executable, ROOT / "run.py", "--config", ROOT / f"configs/{recipe}.py"]
          command += ["--workdir", workdir, "--config.data.name=npz", f"--config.data.npz.path={data}"]
          command += [
            "--config.data.npz.scale=255",
            f"--config.method.name={method}",
            f"--config.seed={seed}",
          ]
          command += [f"--config.steps={arguments.steps}", f"--config.optimizer.clip_norm={clip_norm}"]
          command += ["--config.log_every=10", "--config.checkpoint.every=1000", "--config.eval_every=1000"]
          subprocess.run([*map(str, command), *FLAGS.get(recipe, []), *flags], check=True, stdout=sys.stderr)
          records = [record for record in read_records(workdir) if "train/accuracy" in record]
          seen.append(np.mean([record["train/accuracy"] for record in records[-5:]]))
        print(f"| {recipe} | {CLASSES[recipe]} | {method} | {clip_norm} | {_interval(seen)} |", flush=True)


def _images(classes: int, out: Path) -> Path:
  """An `.npz` of uint8 images; the numbers of classes alone determine it."""
  file = out / f"classes{classes}.npz"
  if not file.is_file():
    rng = np.random.default_rng(classes)
    pictures = ndimage.zoom(rng.normal(size=(classes, 4, 4, 3)), (1, 8, 8, 1), order=1)
    labels = np.arange(EXAMPLES + 2 * classes) % classes
    shifts = rng.integers(-4, 5, (len(labels), 2))
    images = [np.roll(pictures[label], shift, (0, 1)) for label, shift in zip(labels, shifts, strict=True)]
    images = 128 + 40 * (np.stack(images) + rng.normal(size=(len(labels), 32, 32, 3)))
    images = images.clip(0, 255).astype(np.uint8)
    parts = {"x_train": images[:EXAMPLES], "y_train": labels[:EXAMPLES]}
    np.savez(file, **parts, x_test=images[EXAMPLES:], y_test=labels[EXAMPLES:])
  return file


def _interval(values: list[float]) -> str:
  percent = 100 * np.asarray(values)
  if len(values) < 2:
    return f"{percent[0]:.1f} %"
  half = stats.t.ppf(0.975, len(values) - 1) * percent.std(ddof=1) / np.sqrt(len(values))
  return f"{percent.mean():.1f} ± {half:.1f} %"


if __name__ == "__main__":
  main()
