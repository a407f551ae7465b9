"""The extras in a run's state, beside its parameters: averages, multipliers, the initial parameters."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg import constraints
from jaxreg.train.step.averages import Averaging
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Key, ModelState, Params


@dataclasses.dataclass(frozen=True)
class Dual:
  """A constraint `penalty(params, extras) <= bound`; its multiplier climbs with `learning_rate`."""

  penalty: Callable[[Params, dict[str, Any]], Array]
  bound: float
  learning_rate: float


@dataclasses.dataclass(frozen=True)
class Extras:
  """Builds and updates `TrainState.extras`, which hold only the parts that the run needs.

  Attributes:
    average: gives the parameters for predictions.
    duals: the constraints, by the names of their penalties.
    reference: whether the initial parameters are kept.
  """

  average: Averaging = dataclasses.field(default_factory=Averaging)
  duals: Mapping[str, Dual] = dataclasses.field(default_factory=dict)
  reference: bool = False

  def init(self, params: Params, model_state: ModelState) -> dict[str, Any]:
    """The extras at the start, and again after the parameters have been replaced."""
    made = {
      "average": self.average.init(_variables(params, model_state)),
      "duals": {name: constraints.dual_init() for name in self.duals},
      # Copies, because a state that holds one buffer twice cannot be donated.
      "reference": jax.tree.map(jnp.copy, params) if self.reference else (),
    }
    return {name: part for name, part in made.items() if jax.tree.leaves(part)}

  def update(self, old: TrainState, state: TrainState) -> TrainState:
    """Updates the extras after the parameters; a run that has stopped keeps all but `step` and the extras."""
    extras, params = state.extras, state.params
    new = dict(extras)
    if "average" in extras:
      new["average"] = self.average.step(extras["average"], _variables(params, state.model_state), state.step)
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
    state = state.replace(extras=new)
    if self.average.stopped is None:
      return state
    stopped = self.average.stopped(extras["average"])
    rests = lambda name: jax.tree.map(
      lambda old, new: jnp.where(stopped, old, new), getattr(old, name), getattr(state, name)
    )
    return state.replace(**{name: rests(name) for name in ("params", "model_state", "opt_state")})

  @property
  def evaluated(self) -> Callable[[TrainState, Array], TrainState] | None:
    """`(state, metric) -> state`, applied after each evaluation on the validation split; None for nothing."""
    remember = self.average.evaluated
    if remember is None:
      return None

    def evaluated(state: TrainState, metric: Array) -> TrainState:
      average = remember(state.extras["average"], metric, _variables(state.params, state.model_state))
      return state.replace(extras={**state.extras, "average": average})

    return evaluated

  @property
  def draw(self) -> Callable[[TrainState, Key], TrainState] | None:
    """`(state, key) -> state`, a draw of the parameters for predictions; None where they are not drawn."""
    drawn = self.average.draw
    if drawn is None:
      return None

    def draw(state: TrainState, key: Key) -> TrainState:
      return state.replace(**drawn(key, state.extras["average"], _variables(state.params, state.model_state)))

    return draw

  def predicting(self, state: TrainState) -> TrainState:
    """The state with the parameters, and BatchNorm's statistics, for predictions."""
    if "average" not in state.extras:
      return state
    return state.replace(
      **self.average.params(state.extras["average"], _variables(state.params, state.model_state))
    )


def _variables(params: Params, model_state: ModelState) -> dict[str, Any]:
  return {"params": params, "model_state": model_state}
