"""What the benchmarks of the training step share: the trainer's own compiled step on made-up images."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxreg import train
from jaxreg.train.data.dataset import Split
from jaxreg.train.data.placement import make_source
from jaxreg.train.devices.mesh import make_mesh
from jaxreg.train.devices.replicas import make_replicas

EXAMPLES = 1024


def make_steps(
  image: tuple[int, ...], batch_size: int, fields: dict[str, Any], *, replicas: int = 1, form: str = "auto"
) -> Callable[[int], float]:
  """`run(n)`, which trains `n` steps and returns the seconds of one; the first call compiles."""
  config = train.base_config()
  config.update_from_flattened_dict({"batch_size": batch_size, "replicas": replicas, **fields})
  program = train.make_program(
    config, input_shape=image, num_classes=10, num_examples=EXAMPLES, input_dtype="uint8", scale=255.0
  )
  generator = np.random.default_rng(0)
  split = Split(
    generator.integers(0, 256, (EXAMPLES, *image), np.uint8), generator.integers(0, 10, EXAMPLES, np.int64)
  )
  mesh = make_mesh()
  source = make_source(mesh, split, resident=True)
  form_of = make_replicas(
    mesh, form, number=replicas, params=program.abstract.params, parallel=config.parallel
  )
  step, place = form_of.make_step(program.train_step)
  state = form_of.unpack(jax.jit(jax.vmap(program.init))(np.arange(replicas, dtype=np.uint32)))
  batch = place(source.batch(generator.integers(0, EXAMPLES, (replicas, batch_size), np.int32)))

  def run(number: int) -> float:
    nonlocal state
    began = time.perf_counter()
    for _ in range(number):
      state, metrics = step(state, source.arrays, batch)
      # As the trainer does, which reads the metrics of every step.
      jax.device_get(metrics)
    return (time.perf_counter() - began) / number

  return run


def alternate(
  runs: dict[str, Callable[[int], float]], *, rounds: int, seconds: float
) -> dict[str, list[float]]:
  """Times each in turn, `rounds` times, with as many steps as take about `seconds`."""
  numbers = {}
  for name, run in runs.items():
    run(1)
    numbers[name] = max(1, round(seconds / run(1)))
  times: dict[str, list[float]] = {name: [] for name in runs}
  for _ in range(rounds):
    for name, run in runs.items():
      times[name].append(run(numbers[name]))
  return times


def median_and_quartiles(values: list[float]) -> tuple[float, float, float]:
  low, median, high = statistics.quantiles(values, n=4)
  return median, low, high
