"""Finds the images that cannot be decoded, before a run meets them."""

import contextlib
import dataclasses
import hashlib
import json

import numpy as np
import PIL

from jaxreg._atomic_files import read_bytes, write_json
from jaxreg.train.data.dataset import Dataset, Split
from jaxreg.train.data.images import Images, in_chunks
from jaxreg.train.errors import ArgumentError, RunError
from jaxreg.train.sealed_tables import parse_table, sealed
from jaxreg.train.user_cache import user_cache

CHUNK = 16  # images that a thread decodes between two steps of the progress bar
FORMAT = 2  # raise it when other images can be decoded, or with other errors

Faults = dict[int, str]  # the error of each image that cannot be decoded, by its position in a split


def find_faults(data: Dataset, *, fresh: bool = False) -> dict[str, Faults]:
  """Finds the faults of each split whose images are decoded batch by batch; each image is read once.

  The user's cache keeps the faults, so that later starts need not read the images again, unless `fresh`.
  """
  return {
    name: _faults(split.inputs, name, fresh=fresh)
    for name, split in data.splits("rest").items()
    if isinstance(split.inputs, Images)
  }


def without_faults(data: Dataset) -> tuple[Dataset, str]:
  """Leaves out images that cannot be decoded; also returns a line that counts them, or ""."""
  faults = {name: some for name, some in find_faults(data).items() if some}
  if not faults:
    return data, ""
  kept = {}
  for name, split_faults in faults.items():
    split: Split = getattr(data, name)
    good = np.setdiff1d(np.arange(len(split)), list(split_faults))
    kept[name] = split.take(good)
    lost = np.setdiff1d(split.labels, kept[name].labels)
    if lost.size and (name == "train" or not good.size):
      raise ArgumentError(
        "",
        f"no image of class {data.class_name(int(lost[0]))} in the {name} split can be decoded; give images "
        "that can, or remove the class",
      )
  number = sum(map(len, faults.values()))
  counts = ", ".join(f"{len(some)} of {name}" for name, some in faults.items())
  first = next(iter(next(iter(faults.values())).values()))
  line = f"{number} images that cannot be decoded ({counts}) are left out; {first}"
  return dataclasses.replace(data, **kept), line


def _faults(images: Images, name: str, *, fresh: bool) -> Faults:
  file = user_cache() / "unreadable" / f"{_key(images)}.json"
  if not fresh:
    with contextlib.suppress(OSError, ValueError):  # it is not there, or damaged
      table = parse_table(read_bytes(file), required=True)
      return {int(position): str(fault) for position, fault in table.items()}
  images = dataclasses.replace(images, hint="")
  faults: Faults = {}
  lasting = True  # whether another try would find the same

  def read(positions: range) -> None:
    nonlocal lasting
    for position in positions:
      try:
        images.cut(position)
      except RunError as error:
        faults[position] = str(error)
        # An error of the system, such as permissions or a network disk, may be gone at the next start.
        lasting = lasting and getattr(error.__cause__, "errno", None) is None

  in_chunks(read, len(images), f"reading the images of {name}", size=CHUNK)
  faults = dict(sorted(faults.items()))
  if lasting:
    with contextlib.suppress(OSError):  # a full or read-only disk only costs the next start some time
      write_json(file, sealed({str(position): fault for position, fault in faults.items()}))
  return faults


def _key(images: Images) -> str:
  """Digests the images and what decodes them."""
  decoding = [images.decoding.size, images.decoding.resize]
  digest = hashlib.sha256(json.dumps([FORMAT, PIL.__version__, *decoding]).encode())
  for array in images.store.stamp(images.numbers):
    digest.update(f"{array.dtype}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
  return digest.hexdigest()[:32]
