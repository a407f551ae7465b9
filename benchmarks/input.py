"""What the input path costs: images a second of the ImageNet-size pipeline, and whether a step waits for it.

    python benchmarks/input.py [--rounds 7] [--peer-python PYTHON]

First, JPEG files of about 500 x 375 pixels to random crops of 224, by the trainer's own feed: with threads,
and with one and two worker processes. If `--peer-python` has torchvision and simplejpeg, these stand beside:
the loader of torchvision, and a thread that decodes with Pillow, as ours do, or with simplejpeg. Then the
step of the trainer on data that lie on the device, each batch through the whole input path, against the step
on one batch that is there already, timed alternately in one process.
"""

import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _clock import cpu_seconds
from _peer import Peer
from _report import Report, flags, milliseconds, ratios, spread
from _steps import alternate, made_up
from PIL import Image

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data, make_order
from jaxreg.train.data.batches import make_feed, make_source
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.devices.replicas import make_replicas
from jaxreg.train.devices.sharding import make_mesh
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


def make_folder(root: Path, files: int = FILES) -> None:
  """Photograph-like files: noise of all scales, as large as such files are."""
  generator = np.random.default_rng(0)
  for split, number in (("train", files), ("val", 2)):
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
  datasets: dict[str, Dataset], fields: dict[str, Any], *, resident: bool = True, warm_up: int = 0
) -> dict[str, Callable[[int], float]]:
  """`run(n)`, the seconds of one of `n` steps, with the input path of each data set and on a fixed batch.

  All take the same compiled step. Each call leaves out its first `warm_up` batches, in which decoding starts.
  """
  config = train.base_config()
  config.update_from_flattened_dict(fields)
  train.check(config)
  first = next(iter(datasets.values()))
  program, mesh = build(config, first.describe()), make_mesh()
  sources = {name: make_source(mesh, data.train, resident=resident) for name, data in datasets.items()}
  order, arrays = make_order(config, first), next(iter(sources.values())).arrays
  replicas = make_replicas(mesh, number=1, params=program.abstract.params, parallel=config.parallel)
  step_fn, place = replicas.make_step(program.train_step)
  init = jax.jit(jax.vmap(program.init))
  state = {name: replicas.unpack(init(np.zeros(1, np.uint32))) for name in (*datasets, "fixed batch")}
  position = 0
  with make_feed(mesh, sources[next(iter(sources))], order, start=0, stop=10**9) as feed:
    fixed = place(feed(range(1, 2)))

  def run(name: str, number: int) -> float:
    nonlocal position
    recorder = Recorder(Silent(), every=10**9, examples=1)
    source = sources.get(name)
    with contextlib.ExitStack() as stack:
      if source is not None:
        feed = stack.enter_context(make_feed(mesh, source, order, start=position, stop=10**9))
        for _ in range(warm_up):
          position += 1
          feed(range(position, position + 1))
      began = time.perf_counter()
      for _ in range(number):
        steps = range(position + 1, position + 2)
        batch = fixed if source is None else place(feed(steps))
        state[name], metrics = step_fn(state[name], arrays, batch)
        recorder.add(steps, metrics)
        position += source is not None
      recorder.flush()
      return (time.perf_counter() - began) / number

  return {name: lambda number, name=name: run(name, number) for name in state}


def peers(python: str, folder: str) -> dict[str, Callable[[int], tuple[float, float]]]:
  """Rates as `images_per_second` has them, if this Python has what the other side needs."""
  if subprocess.run([python, "-c", "import torchvision, simplejpeg"], capture_output=True).returncode:
    print(f"{python} has no torchvision or simplejpeg: left out; --peer-python names another Python")
    return {}
  peer = Peer(python, "_input_torch.py")

  def rate(task: str, _: int) -> tuple[float, float]:
    seconds = peer.ask(task, folder=folder, batches=BATCHES)
    images = BATCHES * BATCH_SIZE
    return images / seconds, images / peer.notes[task]["cpu"]

  tasks = ("torchvision, 1 worker", "torchvision, 2 workers", "Pillow", "simplejpeg")
  return {task: partial(rate, task) for task in tasks}


def main() -> None:
  parser = flags(__doc__, rounds=7)
  parser.add_argument(
    "--peer-python", default=sys.executable, help="a Python with torchvision and simplejpeg"
  )
  options = parser.parse_args()
  rounds, seconds = (1, 0.2) if options.quick else (options.rounds, 1.0)
  report = Report(options.json)
  report.table("input", "JPEG to random crops of 224, by", "images a second", "a second of one core")
  with tempfile.TemporaryDirectory() as folder:
    make_folder(Path(folder))
    contestants = {
      "threads": partial(images_per_second, Path(folder), 0),
      "1 worker": partial(images_per_second, Path(folder), 1),
      "2 workers": partial(images_per_second, Path(folder), 2),
      **peers(options.peer_python, folder),
    }
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for number in range(rounds):
      for name, rate in contestants.items():
        rates[name].append(rate(number))
  for name, found in rates.items():
    columns = [spread(list(values), ".0f") for values in zip(*found, strict=True)]
    report.row(name, *columns, numbers=found)

  report.table("input_wait", "step", "whole input path, ms", "one fixed batch, ms", "path / fixed")
  for case, (image, examples, fields) in CASES.items():
    runs = make_runs({"input path": made_up(image, examples)}, fields)
    times = alternate(runs, rounds=2 if options.quick else 2 * rounds + 1, seconds=seconds)
    path, fixed = times.values()
    medians = [f"{statistics.median(milliseconds(values)):.2f}" for values in (path, fixed)]
    report.row(case, *medians, spread(ratios(path, fixed)), numbers=times)
  report.close()


if __name__ == "__main__":
  main()
