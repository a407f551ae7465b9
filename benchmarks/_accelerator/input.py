"""Whether ResNet-50 waits for JPEG files: the trainer's feed against one batch that is there already."""

import os
import tempfile
from pathlib import Path

import input as feeds
from _accelerator.steps import RESNET
from _report import Report, milliseconds, ratios, spread
from _steps import alternate

from jaxreg import train
from jaxreg.train.assemble.load_data import load_data

NETWORK = {**RESNET, "model.ResNet.depth": 50, "precision": "bfloat16"}
TOY = {"model.name": "MLP", "model.MLP.widths": (8,)}
WARM_UP = 20  # batches: more than its threads decode at once


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  files, batch_size, size, network = (16, 8, 32, TOY) if quick else (feeds.FILES, 128, 224, NETWORK)
  fields = {
    **network,
    "batch_size": batch_size,
    "data.name": "image_folder",
    "data.stream.size": size,
  }
  cores = len(os.sched_getaffinity(0))
  workers = {"threads": 0} if quick else {"threads": 0, f"{cores // 2 or 1} workers": cores // 2 or 1}
  with tempfile.TemporaryDirectory() as folder:
    feeds.make_folder(Path(folder), files)
    fields["data.image_folder.path"] = folder
    config = train.base_config()
    config.update_from_flattened_dict(fields)
    data = load_data(config)
    datasets = {
      name: data.decoded_by(**{**config.data.stream, "workers": number}) for name, number in workers.items()
    }
    runs = feeds.make_runs(datasets, fields, resident=False, warm_up=1 if quick else WARM_UP)
    times = alternate(runs, rounds=1 if quick else 3, seconds=0.05 if quick else 2.0)
  fixed = times["fixed batch"]
  report.table(
    "input",
    f"{'ResNet, toy' if quick else 'ResNet-50, bfloat16'}, batch {batch_size}",
    "ms a step",
    "images a second",
    "path / fixed",
  )
  for name, values in times.items():
    report.row(
      f"JPEG by {name}" if name in datasets else name,
      spread(milliseconds(values), ".3g"),
      spread([batch_size / value for value in values], ".0f"),
      spread(ratios(values, fixed)),
      numbers=values,
    )
