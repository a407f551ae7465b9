"""The host's memory allocator, set for programs whose steps run on a CPU."""

import ctypes
import os
import sys

# From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
  """Lets glibc keep the memory that a step frees for the next step; returns whether it does.

  XLA frees the temporary arrays of a step on a CPU. By default glibc gives large ones back to the system, and
  the system clears the same pages anew for the next step: up to 30 % of the time of a large network's step.

  Call it before the first import of JAX. Threads that are there already may have heaps of their own, which
  still give memory back. It does nothing without glibc, or where the environment sets up malloc.
  """
  if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
    return False
  mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
  if mallopt is None:
    return False
  # One heap for all threads, no block outside of it, and nothing given back from its end.
  return all([mallopt(_ARENA_MAX, 1), mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, -1)])
