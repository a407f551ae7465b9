"""What the benchmarks of the training step share: the trainer's own compiled step on made-up examples."""

import collections
import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal

from jaxreg._cpu.memory import keep_freed_memory

keep_freed_memory()  # as `run.py` does, before JAX is imported

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from jaxreg import train  # noqa: E402
from jaxreg.train.assemble.from_config import build  # noqa: E402
from jaxreg.train.data.batches import make_source  # noqa: E402
from jaxreg.train.data.dataset import Dataset, Split  # noqa: E402
from jaxreg.train.devices.replicas import Loop, Vmap, make_replicas  # noqa: E402
from jaxreg.train.devices.sharding import make_mesh  # noqa: E402

EXAMPLES = 1024


def made_up(shape: tuple[int, ...], examples: int = EXAMPLES, *, num_classes: int = 10) -> Dataset:
  """Images of noise with random labels."""
  generator = np.random.default_rng(0)
  split = lambda number: Split(
    generator.integers(0, 256, (number, *shape), np.uint8),
    generator.integers(0, num_classes, number, np.int64),
  )
  return Dataset(split(examples), split(1), split(1), num_classes=num_classes, scale=255.0)


def made_up_pairs(length: int, vocab_size: int, examples: int = EXAMPLES) -> Dataset:
  """Sources and targets of random tokens, without padding."""
  generator = np.random.default_rng(0)
  tokens = lambda number, width: generator.integers(4, vocab_size, (number, width), np.int32)
  split = lambda number: Split(tokens(number, 2 * length), tokens(number, length))
  options = {"vocab_size": vocab_size, "source_length": length}
  return Dataset(split(examples), split(1), split(1), num_classes=vocab_size, model=options)


class Steps:
  """The trainer's step on one batch that is there already; calling it trains.

  Attributes:
    program: what the step was made of.
    step, state, arrays, batch: the compiled function and its arguments.
    size: how many steps one call of the function makes.
    ahead: how many calls the host is ahead of the metrics that it reads.
  """

  def __init__(
    self,
    dataset: Dataset,
    batch_size: int,
    fields: dict[str, Any],
    *,
    replicas: int = 1,
    form: Literal["auto", "vmap", "loop"] = "auto",
    size: int = 1,
    ahead: int = 0,
  ):
    config = train.base_config()
    config.update_from_flattened_dict({"batch_size": batch_size, "replicas": replicas, **fields})
    train.check(config)
    unlabelled = config.data.unlabelled.batch_size
    if unlabelled:
      hidden = Split(dataset.train.inputs, np.full(len(dataset.train), -1))
      dataset = dataclasses.replace(dataset, unlabelled=hidden)
    self.program = program = build(config, dataset.describe())
    mesh = make_mesh()
    source = make_source(mesh, dataset.training(), resident=True)
    forms = {"vmap": Vmap(mesh), "loop": Loop(mesh, config.parallel, NamedSharding(mesh, PartitionSpec()))}
    forms["auto"] = make_replicas(
      mesh, number=replicas, params=program.abstract.params, parallel=config.parallel
    )
    form_of = forms[form]
    self.step, place = form_of.make_step(program.train_step, scan=size > 1)
    init = jax.jit(jax.vmap(program.init), out_shardings=form_of.stacked_layout)
    self.state = form_of.unpack(init(np.arange(replicas, dtype=np.uint32)))
    self.arrays, self.size, self.ahead = source.arrays, size, ahead
    shape = (replicas, size) if size > 1 else (replicas,)
    draw = lambda number: np.random.default_rng(1).integers(0, len(dataset.train), (*shape, number), np.int32)
    # Labelled examples first, as the trainer's batches have them.
    indices = np.concatenate([draw(batch_size), len(dataset.train) + draw(unlabelled)], axis=-1)
    self.batch = place(source.batch(indices))

  def lowered(self) -> jax.stages.Lowered:
    """The program before XLA."""
    step = self.step if hasattr(self.step, "lower") else jax.jit(self.step, donate_argnums=0)
    return step.lower(self.state, self.arrays, self.batch)

  def compiled(self) -> tuple[jax.stages.Lowered, jax.stages.Compiled]:
    """The program before and after XLA; from now on calls take the latter."""
    lowered = self.lowered()
    self.step = program = lowered.compile()
    return lowered, program

  def call(self) -> Any:
    """Calls the function once and returns its metrics, unread."""
    self.state, metrics = self.step(self.state, self.arrays, self.batch)
    return metrics

  def __call__(self, number: int) -> float:
    """Trains at least `number` steps, and returns the seconds of one; the first call compiles."""
    calls, unread = math.ceil(number / self.size), collections.deque()
    began = time.perf_counter()
    for _ in range(calls):
      unread.append(self.call())
      # The trainer reads the metrics of every step.
      if len(unread) > self.ahead:
        jax.device_get(unread.popleft())
    jax.device_get(list(unread))
    return (time.perf_counter() - began) / (calls * self.size)


def make_steps(image: tuple[int, ...], batch_size: int, fields: dict[str, Any], **options: Any) -> Steps:
  """`Steps` on made-up images."""
  return Steps(made_up(image), batch_size, fields, **options)


def alternate(
  runs: dict[str, Callable[[int], float]], *, rounds: int, seconds: float
) -> dict[str, list[float]]:
  """Times each in turn, `rounds` times, with as many steps as take about `seconds`.

  Every second round has the reverse order, so that none always follows the same other one.
  """
  numbers = {}
  for name, run in runs.items():
    run(1)
    numbers[name] = max(1, round(seconds / run(1)))
  times: dict[str, list[float]] = {name: [] for name in runs}
  for number in range(rounds):
    for name in list(runs)[:: -1 if number % 2 else 1]:
      times[name].append(runs[name](numbers[name]))
  return times


def median_and_quartiles(values: list[float]) -> tuple[float, float, float]:
  low, median, high = statistics.quantiles(values, n=4)
  return median, low, high
