"""Reads many examples in threads, and shows how far it is."""

import concurrent.futures
import os
import sys
import time
from collections.abc import Callable

from jaxreg.train.errors import printable

CHUNK = 256  # examples that a thread reads between two steps of the progress bar
SECONDS = 60  # between two lines in a log, where no bar can be shown


def in_chunks(fill: Callable[[int], int], number: int, what: str, *, size: int = CHUNK) -> None:
  """Calls `fill(start) -> done` for chunks of `number` examples in threads.

  A terminal shows a bar; a log gets a line a minute.

  Args:
    fill: reads the examples from `start` to at most `start + size`, and returns how many these are.
    number: the number of all examples.
    what: what is done, for people.
    size: examples in a chunk.
  """
  from tqdm import tqdm

  terminal = sys.stderr.isatty()
  done, said = 0, time.monotonic()
  with (
    concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool,
    tqdm(total=number, desc=printable(what), unit="image", disable=not terminal) as bar,
  ):
    for read in pool.map(fill, range(0, number, size)):
      bar.update(read)
      done += read
      if not terminal and time.monotonic() - said > SECONDS:
        said = time.monotonic()
        print(f"{printable(what)}: {done} of {number}", file=sys.stderr, flush=True)
