"""Programs that keep freed memory run their steps without page faults."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.thorough

# A step makes an array of 48 MiB. For a dozen steps, more or fewer, the pieces that freed arrays leave do not
# hold the next one, and the heap grows; so the quietest of the last steps counts.
PROGRAM = """
import resource, sys
from jaxreg._cpu.memory import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else False
import jax, jax.numpy as jnp
step, x, faults = jax.jit(lambda x: x + 1), jnp.ones(12 * 2**20), []
for _ in range(60):
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  step(x).block_until_ready()
  faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(kept, min(faults[30:]))
"""


def faults(argument, **environment):
  plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
  command = [sys.executable, "-c", PROGRAM, argument]
  out = subprocess.run(command, env=plain | environment, capture_output=True, text=True, check=True).stdout
  kept, number = out.split()
  return kept == "True", int(number)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_a_step_reuses_the_memory_of_the_last():
  kept, number = faults("keep")
  assert kept
  assert number < 1000
  assert faults("leave")[1] > 10000  # 48 MiB in pages of 4 KiB


def test_settings_of_the_environment_stay():
  assert faults("keep", MALLOC_ARENA_MAX="2")[0] is False
