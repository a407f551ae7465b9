"""Time and memory of `losses.linear` beside the loss of all logits: value and gradients, timed alternately.

    python benchmarks/linear_loss.py [--rounds 15]

Cross-entropy of float32 features and kernel. The memory is what the compiled program needs beside its
arguments and results, at 8192 examples and 32768 classes, which are compiled and not run. It writes the
record `linear_loss`.
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from _records import Found  # noqa: E402
from _report import flags, ratios  # noqa: E402

from jaxreg import losses  # noqa: E402

LARGE = 8192, 64, 32768
TIMED = (1024, 64, 8192), (1024, 256, 8192), (2048, 64, 16384)


def plain(features, kernel, labels):
  return losses.softmax_cross_entropy(features @ kernel, labels).mean()


def linear(features, kernel, labels):
  return losses.linear(losses.softmax_cross_entropy, features, kernel, labels).mean()


def compiled(loss, examples, features, classes):
  shapes = ((examples, features), jnp.float32), ((features, classes), jnp.float32), ((examples,), jnp.int32)
  arguments = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
  return jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*arguments).compile()


def seconds(run, arguments):
  start = time.perf_counter()
  jax.block_until_ready(run(*arguments))
  return time.perf_counter() - start


def main() -> None:
  options = flags(__doc__, rounds=15).parse_args()
  found, both = Found(), {"all logits": plain, "losses.linear": linear}
  for name, loss in both.items():
    found.add(
      name, "temporaries, MiB", compiled(loss, *LARGE).memory_analysis().temp_size_in_bytes / 2**20, 0
    )
  for examples, features, classes in TIMED[:1] if options.quick else TIMED:
    rng = np.random.default_rng(0)
    arguments = [
      jnp.asarray(rng.normal(size=(examples, features)), jnp.float32),
      jnp.asarray(rng.normal(size=(features, classes)) / 8, jnp.float32),
      jnp.asarray(rng.integers(0, classes, examples), jnp.int32),
    ]
    runs = {name: compiled(loss, examples, features, classes) for name, loss in both.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(2 if options.quick else options.rounds + 1):
      for name, run in runs.items():
        times[name].append(seconds(run, arguments))
    size = f"{examples} x {features} x {classes}"
    for name, values in times.items():
      found.add(name, f"seconds, {size}", values[1:], 4)
    share = ratios(times["losses.linear"][1:], times["all logits"][1:])
    found.add("losses.linear", f"time as a share, {size}", share)
    print("  quartiles", np.percentile(share, [25, 50, 75]).round(3), flush=True)
  if not options.quick:
    found.write("linear_loss", "python benchmarks/linear_loss.py")


if __name__ == "__main__":
  main()
