"""Copies data from a bucket to the disk of this machine, once, with a checksum of each file."""

import base64
import concurrent.futures
import fcntl
import hashlib
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from tqdm import tqdm

from jaxreg._atomic_files import write_json
from jaxreg.train.errors import ArgumentError, one_line
from jaxreg.train.user_cache import user_cache

CHUNK = 2**24  # bytes of a request
THREADS = 8


def staged(path: Any, argument: str) -> Path:
  """Returns a local copy of a file or folder in a bucket; errors name the `argument`.

  The copy lies in the cache of the user, under a name from the address and the checksums of all files. A
  second process of the same machine waits for the first one. After an interruption, whole files are kept.
  """
  from jaxreg._bucket import listing  # it needs packages of the extra `gcs`

  try:
    files = listing(path)
  except OSError as error:
    raise ArgumentError(argument, f"{path} cannot be read ({one_line(error)})") from error
  if not files:
    raise ArgumentError(argument, f"got {str(path)!r}, where the bucket has nothing")
  sums = sorted((name, each.size, each.crc32c) for name, each in files.items())
  named = hashlib.sha256(json.dumps([str(path), sums]).encode()).hexdigest()[:16]
  folder = user_cache() / "staged" / named
  whole, target = folder / "whole.json", folder / path.name  # the name has an ending that readers look at
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a") as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      if not whole.is_file():
        _copy(path, files, target, argument)
        write_json(whole, {"from": str(path), "files": sums})
  except OSError as error:
    raise ArgumentError(argument, f"{path} cannot be copied to {folder} ({one_line(error)})") from error
  return target


def origin(path: Path) -> str:
  """Returns the address in a bucket of a copy that `staged` made, and the path itself of all else."""
  whole = path.parent / "whole.json"
  if path.parent.parent != user_cache() / "staged" or not whole.is_file():
    return str(path)
  return json.loads(whole.read_text())["from"]


def _copy(path: Any, files: dict[str, Any], target: Path, argument: str) -> None:
  """Copies the files that are not there yet, with a bar of their bytes."""
  places = {name: target / name if name else target for name in files}
  left = {name: place for name, place in places.items() if not place.is_file()}
  total, free = sum(files[name].size for name in left), shutil.disk_usage(target.parent).free
  if total > free:
    raise ArgumentError(
      argument,
      f"{path} has {total / 1e9:.2f} GB, and the disk of {target.parent} has {free / 1e9:.2f} GB free; "
      "let $XDG_CACHE_HOME name a folder of a larger disk",
    )
  stop, every = threading.Event(), 0.1 if sys.stderr.isatty() else 30.0
  with (
    tqdm(total=total, desc=f"copying {path}", unit="B", unit_scale=True, mininterval=every) as bar,
    concurrent.futures.ThreadPoolExecutor(THREADS) as threads,
  ):
    copies = [threads.submit(_copy_file, files[name], place, bar, stop) for name, place in left.items()]
    try:
      for each in concurrent.futures.as_completed(copies):
        each.result()
    except BaseException:
      stop.set()
      raise


def _copy_file(stored: Any, place: Path, bar: Any, stop: threading.Event) -> None:
  """Copies one file in chunks; its name appears once its checksum is right."""
  import google_crc32c

  from jaxreg._bucket import read_range

  place.parent.mkdir(parents=True, exist_ok=True)
  partial, checksum = place.with_name(place.name + ".partial"), google_crc32c.Checksum()
  with open(partial, "wb") as stream:
    for start in range(0, stored.size, CHUNK):
      if stop.is_set():
        return
      content = read_range(stored, start, min(start + CHUNK, stored.size))
      checksum.update(content)
      stream.write(content)
      bar.update(len(content))
  if base64.b64encode(checksum.digest()).decode() != stored.crc32c:
    raise OSError(f"the copy of {stored.name} does not have its checksum; try again")
  os.replace(partial, place)
