"""Passes over a whole split with a trained state: metrics and outputs."""

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg.calibration import merge
from jaxreg.train.data.batches import Source, batch_axes, gather, in_turn, place
from jaxreg.train.devices.replicas import Loop, Vmap
from jaxreg.train.devices.sharding import num_parts
from jaxreg.train.step.metrics import Sums, to_host
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import States, TrainState
from jaxreg.typing import Array, Batch, PyTree


def make_evaluate(
  program: Program, replicas: Vmap | Loop, batch_size: int, *, stop: Callable[[], bool] = lambda: False
) -> Callable[..., PyTree]:
  """Builds `evaluate(states, source, *, final=True)`: the sums of the metrics over a whole split, by replica.

  With `final=False` it evaluates the current parameters, unless `Averaging.along` asks for the averaged ones.
  The members of an ensemble predict together, and each metric has one value for each ensemble. Once `stop`
  returns True, `evaluate` returns None.
  """

  def shown(state: TrainState, final: bool) -> TrainState:
    # Without its extras, a state predicts with the current parameters.
    averaged = final or program.extras.average.along
    return replicas.gathered(program.predicting(state) if averaged else state.replace(extras={}))

  def by_replica(step: Callable[..., PyTree], final: bool) -> Callable[..., PyTree]:
    return replicas.make_each(
      lambda state, arrays, batch, number: step(shown(state, final), gather(arrays, batch), number)
    )

  def make(final: bool) -> Callable[..., PyTree]:
    if program.ensemble == 1:
      return by_replica(program.eval_step, final)
    predict = by_replica(program.predict_step, final)

    @functools.partial(jax.jit, out_shardings=NamedSharding(replicas.mesh, P()))
    def join(log_probs: PyTree, arrays: dict[str, Array], batch: Batch) -> Sums:
      examples = program.examples(gather(arrays, batch))
      log_probs = jnp.stack(log_probs) if isinstance(log_probs, tuple) else log_probs
      members = log_probs.reshape(-1, program.ensemble, *log_probs.shape[1:])
      means = jax.vmap(program.target.mean)(members)
      return jax.vmap(lambda one: program.target.metrics(one, examples))(means)

    def step(states: States, arrays: dict[str, Array], batch: Batch, number: Array) -> Sums:
      return join(predict(states, arrays, batch, number), arrays, batch)

    return step

  steps = {True: make(True)}
  steps[False] = steps[True] if program.extras.average.along else make(False)

  def evaluate(states: States, source: Source, *, final: bool = True) -> Sums | None:
    total: Sums | None = None
    for number, batch in enumerate(batches(source, batch_size, replicas.mesh)):
      if stop():
        return None
      total = merge(total, to_host(steps[final](states, source.arrays, batch, jnp.uint32(number))))
    return total

  return evaluate


def predicting_state(program: Program, replicas: Vmap | Loop, states: States, replica: int) -> TrainState:
  """Returns the state of one replica with the parameters for predictions, gathered for a forward pass."""
  return replicas.gathered(program.predicting(replicas.pick(states, replica)))


def outputs_over(
  program: Program, mesh: jax.sharding.Mesh, state: TrainState, source: Source, batch_size: int
) -> dict[str, np.ndarray]:
  """Returns the head's `..._logits` and the `predictions` of a `predicting_state` on a split, on the host."""

  @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
  def run(state, arrays, batch, number):
    batch = gather(arrays, batch)
    inputs = program.examples(batch).inputs
    outputs, _ = program.apply_fn(state.params, state.model_state, inputs, key=None, train=False)
    # A head may return more, such as its kernel, which has no batch axis.
    logits = {name: value for name, value in outputs.items() if name.endswith("logits")}
    return {**logits, "predictions": program.predict_step(state, batch, number)}

  parts = [
    jax.device_get(run(state, source.arrays, batch, jnp.uint32(number)))
    for number, batch in enumerate(batches(source, batch_size, mesh))
  ]
  return jax.tree.map(lambda *x: np.concatenate(x)[: len(source)], *parts)


def batches(source: Source, batch_size: int, mesh: jax.sharding.Mesh) -> Iterator[Batch]:
  """Yields the split's batches, weighted and placed on the devices, ready for `gather`."""
  # `batch_size` or the whole split if that is smaller, rounded up to a multiple of the devices per batch.
  parts = num_parts(mesh)
  per_part = -(-min(batch_size, len(source)) // parts)
  for batch in in_turn(mesh, source, per_part * parts):
    yield place(mesh, batch, P(batch_axes(mesh)))
