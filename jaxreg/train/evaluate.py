"""Running a trained state over a whole split."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg.train.data import Source, gather, padded_indices, place
from jaxreg.train.metrics import merge, summarize, to_host
from jaxreg.train.replicas import Loop, Vmap
from jaxreg.train.setup import Program
from jaxreg.train.state import TrainState
from jaxreg.train.step import prediction_key


def make_evaluate(
  program: Program, replicas: Vmap | Loop, batch_size: int
) -> Callable[[Any, Source, str], dict[str, np.ndarray]]:
  """Builds `evaluate(states, source, prefix) -> {"<prefix>/error": [replicas], ...}`."""
  step = replicas.make_each(
    lambda state, arrays, batch, number: program.eval_step(state, gather(arrays, batch), number)
  )

  def evaluate(states: Any, source: Source, prefix: str) -> dict[str, np.ndarray]:
    total: Any = None
    for number, batch in enumerate(batches(source, batch_size, replicas.mesh)):
      total = merge(total, to_host(step(states, source.arrays, batch, jnp.uint32(number))))
    return summarize(total, prefix)

  return evaluate


def outputs_over(
  program: Program, mesh: jax.sharding.Mesh, state: TrainState, source: Source, batch_size: int
) -> dict[str, np.ndarray]:
  """The head's `..._logits` and the `log_probs` for every example of a split, on the host."""

  @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
  def run(state, arrays, batch, number):
    batch = gather(arrays, batch)
    outputs, _ = program.apply_fn(state.params, state.model_state, batch["inputs"], key=None, train=False)
    key = prediction_key(state, number)
    log_probs = program.method.predict(key, **outputs, **program.predict_options)
    # A head may hand over more, such as its kernel, which is no example's.
    logits = {name: value for name, value in outputs.items() if name.endswith("logits")}
    return {**logits, "log_probs": log_probs}

  parts = [
    jax.device_get(run(state, source.arrays, batch, jnp.uint32(number)))
    for number, batch in enumerate(batches(source, batch_size, mesh))
  ]
  return jax.tree.map(lambda *x: np.concatenate(x)[: len(source)], *parts)


def bins_over(
  program: Program, mesh: jax.sharding.Mesh, state: TrainState, source: Source, batch_size: int
) -> dict[str, np.ndarray]:
  """The sums of `calibration.ece_bins` over a split whose outputs are too large to keep, on the host."""

  @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
  def run(state, arrays, batch, number):
    return program.eval_step(state, gather(arrays, batch), number)["ece"]

  total: Any = None
  for number, batch in enumerate(batches(source, batch_size, mesh)):
    total = merge(total, jax.device_get(run(state, source.arrays, batch, jnp.uint32(number))))
  return total


def batches(source: Source, batch_size: int, mesh: jax.sharding.Mesh) -> Iterator[Any]:
  """A whole split in batches as `gather` takes them, with weights, on the devices."""
  # As many as asked for, but no more than there are, and a multiple of the devices.
  per_device = -(-min(batch_size, len(source)) // mesh.size)
  for indices, weights in padded_indices(len(source), per_device * mesh.size):
    yield place(mesh, {**source.batch(indices), "weights": weights}, P("data"))
