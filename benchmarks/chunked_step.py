"""Memory and time of the transformer's training step with and without the logits of all tokens.

    BENCH_CLOCK=cpu python benchmarks/chunked_step.py [--rounds 12]

The step of `configs/transformer_multi30k.py` on 40 random source and 40 target tokens. The memory is what the
compiled step needs beside its state and batch, for the batch of the configuration and for a vocabulary of
32 000; these programs are compiled and not run. The time is that of smaller batches, the two forms in turn;
with `BENCH_CLOCK=cpu` it is the time of all cores together. It writes the record `chunked_step`.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from _clock import now  # noqa: E402
from _records import Found  # noqa: E402
from _report import flags, ratios  # noqa: E402

from configs import transformer_multi30k  # noqa: E402
from jaxreg.train.assemble.from_config import build  # noqa: E402
from jaxreg.train.data.dataset import DataSpec  # noqa: E402

LENGTH, CHUNK = 40, 256
FORMS = {"all logits": 0, f"method.chunk_size={CHUNK}": CHUNK}
# By the name of the row: examples of a batch, and the vocabulary.
SIZES = {"2048 x 4000": (2048, 4000), "128 x 32000": (128, 32000)}
TIMED = {"128 x 4000": (128, 4000), "32 x 32000": (32, 32000)}


def programs(batch_size, vocabulary):
  """The compiled step and the program of each form."""
  config = transformer_multi30k.get_config()
  config.batch_size = batch_size
  model = {"vocab_size": vocabulary, "source_length": LENGTH}
  sizes, shape = {"train": batch_size}, (LENGTH,)
  data = DataSpec((2 * LENGTH,), "int32", vocabulary, sizes, label_shape=shape, model=model)
  batch = {
    "inputs": jax.ShapeDtypeStruct((batch_size, 2 * LENGTH), jnp.int32),
    "labels": jax.ShapeDtypeStruct((batch_size, LENGTH), jnp.int32),
  }
  for name, size in FORMS.items():
    config.method.chunk_size = size
    program = build(config, data)
    yield name, program, jax.jit(program.train_step).lower(program.abstract, batch).compile()


def timed(batch_size, vocabulary, rounds):
  """The seconds of the steps of each form, without the first."""
  rng = np.random.default_rng(0)
  batch = {
    "inputs": jnp.asarray(rng.integers(1, vocabulary, (batch_size, 2 * LENGTH)), jnp.int32),
    "labels": jnp.asarray(rng.integers(1, vocabulary, (batch_size, LENGTH)), jnp.int32),
  }
  steps = {name: (step, program.init(0)) for name, program, step in programs(batch_size, vocabulary)}
  times: dict[str, list[float]] = {name: [] for name in steps}
  for _ in range(rounds):
    for name, (step, state) in steps.items():
      start = now()
      jax.block_until_ready(step(state, batch))
      times[name].append(now() - start)
  return {name: values[1:] for name, values in times.items()}


def main() -> None:
  options = flags(__doc__, rounds=12).parse_args()
  found = Found()
  for size, given in ({} if options.quick else SIZES).items():
    for name, _, step in programs(*given):
      found.add(name, f"temporaries, MiB, {size}", step.memory_analysis().temp_size_in_bytes / 2**20, 0)
  for size, (batch_size, vocabulary) in TIMED.items():
    times = timed(batch_size, vocabulary, 2 if options.quick else options.rounds + 1)
    for name, values in times.items():
      found.add(name, f"seconds, {size}", values)
    whole, chunked = times
    found.add(chunked, f"time as a share, {size}", ratios(times[chunked], times[whole]))
  if not options.quick:
    found.write("chunked_step", "BENCH_CLOCK=cpu python benchmarks/chunked_step.py")


if __name__ == "__main__":
  main()
