"""What a run keeps beside its parameters, in its state: averages, multipliers, where it started."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg import constraints
from jaxreg.train.averages import Average
from jaxreg.train.state import TrainState
from jaxreg.typing import Array, Params


@dataclasses.dataclass(frozen=True)
class Dual:
  """A constraint `penalty(params, extras) <= bound`, whose multiplier climbs at the learning rate."""

  penalty: Callable[[Params, dict[str, Any]], Array]
  bound: float
  learning_rate: float


@dataclasses.dataclass(frozen=True)
class Extras:
  """Builds and moves `TrainState.extras`; what is not asked for is not there.

  Attributes:
    average: what is predicted with.
    duals: the constraints, by the names of their penalties.
    reference: whether the parameters of the start are kept.
  """

  average: Average = dataclasses.field(default_factory=Average)
  duals: Mapping[str, Dual] = dataclasses.field(default_factory=dict)
  reference: bool = False

  def init(self, params: Params) -> dict[str, Any]:
    """At the start, and again once the parameters have been replaced."""
    made = {
      "average": self.average.init(params),
      "duals": {name: constraints.dual_init() for name in self.duals},
      # Copies: a state in which a buffer occurs twice cannot be donated.
      "reference": jax.tree.map(jnp.copy, params) if self.reference else (),
    }
    return {name: part for name, part in made.items() if jax.tree.leaves(part)}

  def update(self, extras: dict[str, Any], params: Params, step: Array) -> dict[str, Any]:
    """After `step` updates of the parameters."""
    new = dict(extras)
    if "average" in extras:
      new["average"] = self.average.step(extras["average"], params, step)
    if self.duals:
      new["duals"] = {
        name: constraints.dual_step(
          extras["duals"][name],
          dual.penalty(params, extras),
          bound=dual.bound,
          learning_rate=dual.learning_rate,
        )
        for name, dual in self.duals.items()
      }
    return new

  @property
  def evaluated(self) -> Callable[[TrainState, Array], TrainState] | None:
    """What an evaluation on the validation split does to a state, given the metric; None for nothing."""
    remember = self.average.evaluated
    if remember is None:
      return None

    def evaluated(state: TrainState, metric: Array) -> TrainState:
      average = remember(state.extras["average"], metric, state.params)
      return state.replace(extras={**state.extras, "average": average})

    return evaluated

  def predicting(self, params: Params, extras: dict[str, Any]) -> Params:
    """The parameters to predict with."""
    return self.average.params(extras["average"], params) if "average" in extras else params
