"""The train state, which is everything that a checkpoint holds, and its parts."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from jaxreg import constraints
from jaxreg.train.step.averages import Averaging
from jaxreg.train.step.optimizer import evaluation_params
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
    """Returns the state with other values of these fields."""
    return dataclasses.replace(self, **changes)


States = TrainState | tuple[TrainState, ...]  # one stacked state of all replicas, or a state for each


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
    schedule_free: whether the parameters for predictions are in the optimizer's state.
  """

  average: Averaging = dataclasses.field(default_factory=Averaging)
  limits: Mapping[str, Limit] = dataclasses.field(default_factory=dict[str, Limit])
  reference: bool = False
  schedule_free: bool = False

  def init(self, variables: Variables) -> ExtraStates:
    """Returns the extras at the start, and again after the parameters have been replaced."""
    made = {
      "average": self.average.init(variables),
      "multipliers": {name: constraints.dual_init() for name in self.limits},
      # Copies, because a state that holds one buffer twice cannot be donated.
      "reference": jax.tree.map(jnp.copy, variables["params"]) if self.reference else (),
    }
    return {name: part for name, part in made.items() if jax.tree.leaves(part)}

  def update(self, old: TrainState, state: TrainState) -> TrainState:
    """Updates the extras after the parameters; after early stopping, only `step` and the extras change."""
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

    def evaluated(state: TrainState, metric: Array) -> TrainState:
      average = update(state.extras["average"], metric, state.variables)
      return state.replace(extras={**state.extras, "average": average})

    return evaluated

  @property
  def draw(self) -> Callable[[TrainState, Key], TrainState] | None:
    """`(state, key) -> state`, a draw of the parameters for predictions; None where they are not drawn."""
    if (draw := self.average.draw) is None:
      return None

    def drawn(state: TrainState, key: Key) -> TrainState:
      return state.replace(**draw(key, state.extras["average"], state.variables))

    return drawn

  def averaged(self, state: TrainState) -> Variables | None:
    """Returns the averaged parameters and statistics; None without an average."""
    if "average" not in state.extras:
      return None
    return self.average.params(state.extras["average"], state.variables)

  def predicting(self, state: TrainState) -> TrainState:
    """Returns the state with the parameters, and BatchNorm's statistics, for predictions."""
    if self.schedule_free:
      # Without the optimizer's state, a second call changes nothing.
      return state.replace(params=evaluation_params(state.opt_state, state.params), opt_state=())
    averaged = self.averaged(state)
    return state if averaged is None else state.replace(**averaged)
