"""Running a trained state over a whole split."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg.train.data import gather, padded_indices, place
from jaxreg.train.metrics import merge, summarize
from jaxreg.train.setup import Program
from jaxreg.train.state import TrainState
from jaxreg.train.step import prediction_key
from jaxreg.typing import Array


def make_evaluate(
  program: Program, mesh: jax.sharding.Mesh, batch_size: int
) -> Callable[..., dict[str, float]]:
  """Builds `evaluate(state, data, prefix) -> {"<prefix>/error": ..., ...}` over resident data."""
  step = jax.jit(
    lambda state, data, indices, weights, number: program.eval_step(
      state, gather(data, indices, weights), number
    ),
    out_shardings=NamedSharding(mesh, P()),
  )

  def evaluate(state: TrainState, data: dict[str, Array], prefix: str) -> dict[str, float]:
    total: Any = None
    for number, batch in enumerate(_batches(len(data["labels"]), batch_size, mesh)):
      total = merge(total, step(state, data, *batch, jnp.uint32(number)))
    return summarize(total, prefix)

  return evaluate


def outputs_over(
  program: Program, mesh: jax.sharding.Mesh, state: TrainState, data: dict[str, Array], batch_size: int
) -> dict[str, np.ndarray]:
  """The head's outputs and the `log_probs` for every example of resident data, on the host."""

  @jax.jit
  def run(state, data, indices, weights, number):
    batch = gather(data, indices, weights)
    outputs, _ = program.apply_fn(state.params, state.model_state, batch["inputs"], key=None, train=False)
    key = prediction_key(state, number)
    return {**outputs, "log_probs": program.method.predict(key, **outputs, **program.predict_options)}

  size = len(data["labels"])
  parts = [
    jax.device_get(run(state, data, *batch, jnp.uint32(number)))
    for number, batch in enumerate(_batches(size, batch_size, mesh))
  ]
  return jax.tree.map(lambda *x: np.concatenate(x)[:size], *parts)


def _batches(num_examples: int, batch_size: int, mesh: jax.sharding.Mesh) -> Any:
  # As many as asked for, but no more than there are, and a multiple of the devices.
  per_device = -(-min(batch_size, num_examples) // mesh.size)
  for indices, weights in padded_indices(num_examples, per_device * mesh.size):
    yield place(mesh, (indices, weights), P("data"))
