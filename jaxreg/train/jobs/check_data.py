"""`job = check_data`: reads all data of a run once, before the run."""

import os
import sys

import numpy as np

from jaxreg.train.assemble import compatibility
from jaxreg.train.assemble.load_data import read_source, used_part
from jaxreg.train.config.choices import Config
from jaxreg.train.data.dataset import Dataset, Split
from jaxreg.train.data.undecodable import Faults, find_faults
from jaxreg.train.errors import RunError, printable, shortened
from jaxreg.train.sealed_tables import Table

MOST_SHOWN = 20  # errors of single images


def check_data(config: Config, workdir: str | os.PathLike[str]) -> Table:
  """Reads the data that `config` names, decodes each image once, and returns what there is.

  Nothing is written into `workdir`. The faults of images stay in the user's cache, where a run
  with `data.skip_unreadable` looks for it. Data that a run would refuse, by themselves or with its method and
  sizes, and images that would end it, raise a RunError.
  """
  del workdir
  source = read_source(config)
  faults = find_faults(source, fresh=True)
  # The same file may be in two splits, such as `val` and `test` of one folder.
  messages = sorted({fault for each in faults.values() for fault in each.values()})
  for message in messages[:MOST_SHOWN]:
    print(printable(message), file=sys.stderr)
  if (more := len(messages) - MOST_SHOWN) > 0:
    print(f"... and {more} more", file=sys.stderr)
  data = used_part(config, source)
  spec = data.describe()
  results = {
    "source": config.data.name,
    "sizes": _sizes(data),
    "class_names": list(data.class_names),
    "input_names": list(data.input_names),
    "num_classes": data.num_classes,
    "labels": spec.labels_in_words,
    "streams": data.streams(),
    "images": sum(_sizes(source).values()),
    "unreadable": len(messages),
  }
  if not config.data.skip_unreadable and (ending := _ending(faults, source, data)):
    raise RunError(
      f"data: {len(messages)} of {results['images']} images cannot be decoded, and {len(ending)} of them "
      "would end the run; remove or mend them, or give --config.data.skip_unreadable=True"
    )
  compatibility.length(config, spec.sizes)
  compatibility.check_data(config, spec)
  return results


def report_lines(results: Table) -> list[str]:
  """Formats the results in a few lines for people."""
  sizes = ", ".join(f"{number} {name}" for name, number in results["sizes"].items())
  names = f": {shortened(', '.join(results['class_names']), 1000)}" if results["class_names"] else ""
  lines = [f"data.{results['source']}: {sizes} examples; the labels are {results['labels']}{names}"]
  if inputs := results["input_names"]:
    lines.append(f"{len(inputs)} inputs: {shortened(', '.join(inputs), 1000)}")
  if results["streams"]:
    lines.append(f"{results['images']} images read; {results['unreadable']} of them cannot be decoded")
  return lines


def _splits(data: Dataset) -> dict[str, Split]:
  splits = data.splits() | {"unlabelled": data.unlabelled, "rest": data.rest}
  return {name: split for name, split in splits.items() if split is not None}


def _sizes(data: Dataset) -> dict[str, int]:
  return {name: len(split) for name, split in _splits(data).items()}


def _ending(faults: dict[str, Faults], source: Dataset, data: Dataset) -> set[str]:
  """Describes the faults of the images that a run on `data`, a part of `source`, uses."""
  ending = set()
  for name, split_faults in faults.items():
    images = getattr(source, name).inputs
    used = [split.inputs.numbers for split in _splits(data).values() if split.inputs.store is images.store]
    ends = np.isin(images.numbers[list(split_faults)], np.concatenate(used))
    ending |= {fault for fault, end in zip(split_faults.values(), ends, strict=True) if end}
  return ending
