"""The train state: everything that a checkpoint holds."""

import dataclasses

import jax

from jaxreg.typing import Array, Key, ModelState, Params, PyTree

Variables = dict[str, PyTree]  # `params` and `model_state`, which are averaged
ExtraStates = dict[str, PyTree]  # of averages, multipliers and references, by name


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """Immutable; a pytree. The root `key` never changes, so `(seed, step)` determines every draw.

  Attributes:
    step: int32 scalar, the number of updates so far.
    key: the run's root key.
    params: trainable parameters.
    model_state: other variables of the model, by collection.
    opt_state: the state of the Optax chain.
    extras: the states of averages, multipliers and references, by name.
  """

  step: Array
  key: Key
  params: Params
  model_state: ModelState
  opt_state: PyTree
  extras: ExtraStates = dataclasses.field(default_factory=dict[str, PyTree])

  @property
  def variables(self) -> Variables:
    """The parameters and the other variables of the model."""
    return {"params": self.params, "model_state": self.model_state}

  def replace(self, **changes: PyTree) -> "TrainState":
    """The state with other values of these fields."""
    return dataclasses.replace(self, **changes)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SweptState(TrainState):
  """The state of a run beside others in one program, with its own values of fields, by name."""

  strengths: dict[str, Array] = dataclasses.field(default_factory=dict[str, Array])


States = TrainState | tuple[TrainState, ...]  # one stacked state of all replicas, or a state for each
