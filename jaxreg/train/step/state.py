"""The train state: everything that a checkpoint holds."""

import dataclasses
from typing import Any

import jax

from jaxreg.typing import Array, Key, ModelState, Params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """Immutable; a pytree. The root `key` never changes, so `(seed, step)` determines every draw.

  Attributes:
    step: int32 scalar, number of updates made.
    key: the run's root key.
    params: trainable parameters.
    model_state: other variables of the model, by collection.
    opt_state: state of the Optax chain.
    extras: state of whatever else keeps some, by name.
  """

  step: Array
  key: Key
  params: Params
  model_state: ModelState
  opt_state: Any
  extras: dict[str, Any] = dataclasses.field(default_factory=dict)

  def replace(self, **changes: Any) -> "TrainState":
    return dataclasses.replace(self, **changes)
