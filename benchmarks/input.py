"""What the input path costs: images a second of the ImageNet-size pipeline, and whether a step waits for it.

    python benchmarks/input.py [--rounds 7]

First, JPEG files of about 500 x 375 pixels to random crops of 224, by the trainer's own feed: with threads,
and with one and two worker processes. Then the trainer's step on data that lie on the device, each batch
through the whole input path, against the step on one batch that is there already, timed alternately in one
process.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _report import Report, flags, milliseconds, ratios, spread
from _steps import alternate
from PIL import Image

from jaxreg import train
from jaxreg.train.build.dataset import load_data, make_order
from jaxreg.train.build.program import build
from jaxreg.train.data.dataset import Dataset, Split
from jaxreg.train.data.placement import make_source
from jaxreg.train.data.stream import make_feed
from jaxreg.train.devices.mesh import make_mesh
from jaxreg.train.devices.replicas import make_replicas
from jaxreg.train.run.log import Silent
from jaxreg.train.run.recorder import Recorder

FILES, BATCH_SIZE = 160, 32
WARM_UP, BATCHES = 4, 12  # of a round: the first, in which processes start, are not counted
CASES: dict[str, Any] = {
  "MNIST-like, LeNet, batch 100": (
    (28, 28, 1),
    55000,
    {"model.name": "LeNet", "method.name": "dropmax", "batch_size": 100},
  ),
  "CIFAR-like, ResNet-20, batch 128": (
    (32, 32, 3),
    45000,
    {
      "model.name": "CifarResNet",
      "model.CifarResNet.depth": 20,
      "method.name": "dropmax",
      "optimizer.name": "sgd",
      "augment.names": ("pad_crop", "flip"),
      "batch_size": 128,
    },
  ),
}


def make_folder(root: Path) -> None:
  """Photograph-like files: noise of all scales, as large as such files are."""
  generator = np.random.default_rng(0)
  for split, number in (("train", FILES), ("val", 2)):
    for i in range(number):
      width, height = (int(side * generator.uniform(0.9, 1.1)) for side in (500, 375))
      pixels = np.zeros((height, width, 3))
      for scale in (1, 4, 16, 64):
        coarse = generator.uniform(-1, 1, (height // scale + 2, width // scale + 2, 3))
        pixels += 12 * scale**0.5 * np.kron(coarse, np.ones((scale, scale, 1)))[:height, :width]
      folder = root / split / f"class{i % 2}"
      folder.mkdir(parents=True, exist_ok=True)
      image = Image.fromarray(np.clip(pixels + 128, 0, 255).astype(np.uint8))
      image.save(folder / f"{i:04d}.jpg", quality=85)


def cpu_seconds() -> float:
  """Of this process and of those it has started, so that it counts what one core does whatever else runs."""
  ticks = 0
  for child in multiprocessing.active_children():
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    ticks += int(fields[11]) + int(fields[12])
  return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def images_per_second(folder: Path, workers: int, round_number: int) -> tuple[float, float]:
  """Of a feed that has been running for a while: of time, and of one core's."""
  config = train.base_config()
  config.update_from_flattened_dict(
    {
      "data.name": "image_folder",
      "data.image_folder.path": str(folder),
      "data.stream.workers": workers,
      "batch_size": BATCH_SIZE,
      "seed": round_number,
    }
  )
  train.check(config)
  mesh, dataset = make_mesh(), load_data(config)
  source = make_source(mesh, dataset.train, resident=False)
  with make_feed(mesh, source, make_order(config, dataset), start=0, stop=10**6) as feed:
    for step in range(1, WARM_UP + 1):
      feed(range(step, step + 1))
    began, used = time.perf_counter(), cpu_seconds()
    for step in range(WARM_UP + 1, WARM_UP + BATCHES + 1):
      feed(range(step, step + 1))
    images = BATCHES * BATCH_SIZE
    return images / (time.perf_counter() - began), images / (cpu_seconds() - used)


def make_runs(
  image: tuple[int, ...], examples: int, fields: dict[str, Any]
) -> dict[str, Callable[[int], float]]:
  """`run(n)` with the input path and on a fixed batch, of one compiled step: the seconds of a step."""
  config = train.base_config()
  config.update_from_flattened_dict(fields)
  train.check(config)
  generator = np.random.default_rng(0)
  made_up = lambda number: Split(
    generator.integers(0, 256, (number, *image), np.uint8), generator.integers(0, 10, number, np.int64)
  )
  dataset = Dataset(made_up(examples), made_up(1), made_up(1), num_classes=10, scale=255.0)
  program, mesh = build(config, dataset.describe()), make_mesh()
  source, order = make_source(mesh, dataset.train, resident=True), make_order(config, dataset)
  replicas = make_replicas(mesh, "auto", number=1, params=program.abstract.params, parallel=config.parallel)
  step_fn, place = replicas.make_step(program.train_step)
  init = jax.jit(jax.vmap(program.init))
  state = {name: replicas.unpack(init(np.zeros(1, np.uint32))) for name in ("input path", "fixed batch")}
  position = 0
  fixed = place(source.batch(order(0)))

  def run(name: str, number: int) -> float:
    nonlocal position
    recorder = Recorder(Silent(), every=10**9, examples=1)
    with make_feed(mesh, source, order, start=position, stop=10**9) as feed:
      began = time.perf_counter()
      for _ in range(number):
        steps = range(position + 1, position + 2)
        batch = place(feed(steps)) if name == "input path" else fixed
        state[name], metrics = step_fn(state[name], source.arrays, batch)
        recorder.add(steps, metrics)
        position += name == "input path"
      recorder.flush()
      return (time.perf_counter() - began) / number

  return {name: lambda number, name=name: run(name, number) for name in state}


def main() -> None:
  options = flags(__doc__, rounds=7).parse_args()
  rounds, seconds = (1, 0.2) if options.quick else (options.rounds, 1.0)
  report = Report(options.json)
  report.table("input", "JPEG to random crops of 224, by", "images a second", "a second of one core")
  rates: dict[int, list[tuple[float, float]]] = {0: [], 1: [], 2: []}
  with tempfile.TemporaryDirectory() as folder:
    make_folder(Path(folder))
    for number in range(rounds):
      for workers, found in rates.items():
        found.append(images_per_second(Path(folder), workers, number))
  for workers, found in rates.items():
    name = f"{workers} worker{'s' * (workers > 1)}" if workers else "threads"
    columns = [spread(list(values), ".0f") for values in zip(*found, strict=True)]
    report.row(name, *columns, numbers=found)

  report.table("input_wait", "step", "whole input path, ms", "one fixed batch, ms", "path / fixed")
  for case, described in CASES.items():
    times = alternate(make_runs(*described), rounds=2 if options.quick else 2 * rounds + 1, seconds=seconds)
    path, fixed = times.values()
    medians = [f"{statistics.median(milliseconds(values)):.2f}" for values in (path, fixed)]
    report.row(case, *medians, spread(ratios(path, fixed)), numbers=times)
  report.close()


if __name__ == "__main__":
  main()
