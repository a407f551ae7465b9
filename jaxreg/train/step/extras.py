"""What a state holds beside its parameters: an average, multipliers of limits, the initial parameters."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from jaxreg import constraints
from jaxreg.train.step.averages import Averaging
from jaxreg.train.step.state import ExtraStates, TrainState, Variables
from jaxreg.typing import Array, Key, Params


@dataclasses.dataclass(frozen=True)
class Limit:
  """The constraint `penalty(params, extras) <= limit`; its multiplier moves with `learning_rate`."""

  penalty: Callable[[Params, ExtraStates], Array]
  limit: float
  learning_rate: float


@dataclasses.dataclass(frozen=True)
class Extras:
  """Builds and updates `TrainState.extras`, which hold only the parts that the run needs.

  Attributes:
    average: gives the parameters for predictions.
    limits: the constraints, by the names of their penalties.
    reference: whether the initial parameters are kept.
  """

  average: Averaging = dataclasses.field(default_factory=Averaging)
  limits: Mapping[str, Limit] = dataclasses.field(default_factory=dict[str, Limit])
  reference: bool = False

  def init(self, variables: Variables) -> ExtraStates:
    """The extras at the start, and again after the parameters have been replaced."""
    made = {
      "average": self.average.init(variables),
      "multipliers": {name: constraints.dual_init() for name in self.limits},
      # Copies, because a state that holds one buffer twice cannot be donated.
      "reference": jax.tree.map(jnp.copy, variables["params"]) if self.reference else (),
    }
    return {name: part for name, part in made.items() if jax.tree.leaves(part)}

  def update(self, old: TrainState, state: TrainState) -> TrainState:
    """Updates the extras after the parameters; a run that has stopped keeps all but `step` and the extras."""
    extras, new = state.extras, dict(state.extras)
    if "average" in extras:
      new["average"] = self.average.step(extras["average"], state.variables, state.step)
    if self.limits:
      new["multipliers"] = {
        name: constraints.dual_step(
          extras["multipliers"][name],
          each.penalty(state.params, extras),
          bound=each.limit,
          learning_rate=each.learning_rate,
        )
        for name, each in self.limits.items()
      }
    state = state.replace(extras=new)
    if self.average.stopped is None:
      return state
    stopped = self.average.stopped(extras["average"])

    def kept(old: Array, new: Array) -> Array:
      return jnp.where(stopped, old, new)

    parts = ("params", "model_state", "opt_state")
    return state.replace(
      **{name: jax.tree.map(kept, getattr(old, name), getattr(state, name)) for name in parts}
    )

  @property
  def evaluated(self) -> Callable[[TrainState, Array], TrainState] | None:
    """`(state, metric) -> state`, called after each evaluation on the validation split, or None."""
    if (update := self.average.evaluated) is None:
      return None
    return lambda state, metric: state.replace(
      extras={**state.extras, "average": update(state.extras["average"], metric, state.variables)}
    )

  @property
  def draw(self) -> Callable[[TrainState, Key], TrainState] | None:
    """`(state, key) -> state`, a draw of the parameters for predictions; None where they are not drawn."""
    if (draw := self.average.draw) is None:
      return None
    return lambda state, key: state.replace(**draw(key, state.extras["average"], state.variables))

  def predicting(self, state: TrainState) -> TrainState:
    """The state with the parameters, and BatchNorm's statistics, for predictions."""
    if "average" not in state.extras:
      return state
    return state.replace(**self.average.params(state.extras["average"], state.variables))
