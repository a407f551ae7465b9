# pyright: reportMissingTypeStubs=false
"""The penalties, example terms, constraints and noise of a run: functions of what a configuration names."""

from collections.abc import Callable, Iterable, Sequence

import optax
from jax.typing import ArrayLike

from jaxreg import constraints, objective
from jaxreg._checks import acts
from jaxreg.objective._terms import ExampleTerm
from jaxreg.objective._terms import Penalty as PenaltyTerm
from jaxreg.train.lookup import Chosen, Options
from jaxreg.train.step.extras import Limit
from jaxreg.train.step.network import Noises
from jaxreg.train.step.network_view import Given, LossPass
from jaxreg.train.step.state import ExtraStates
from jaxreg.typing import Array, Key, Params, PyTree

Mask = Callable[..., PyTree]  # a function of `jaxreg.paths`
Penalty = Callable[[Params, ExtraStates], Array]  # `(params, extras)`, the extras of the state
PenaltyOf = Callable[[ExtraStates], PenaltyTerm]


def make_penalties(named: Iterable[Chosen], mask: Mask) -> dict[str, PenaltyOf]:
  """Each named penalty with its weight or, with a limit, its multiplier."""

  def make(name: str, options: Options, penalty: Penalty) -> PenaltyOf:
    def of_extras(extras: ExtraStates) -> PenaltyTerm:
      weight = extras["multipliers"][name].multiplier if acts(options["limit"]) else options["weight"]
      return objective.penalty(penalty, weight=weight, extras=extras)

    return of_extras

  return {each.name: make(each.name, each.options, _penalty(each, mask)) for each in _penalties(named)}


def make_limits(named: Iterable[Chosen], mask: Mask, learning_rate: float) -> dict[str, Limit]:
  """The named penalties that have a limit, as constraints."""
  limited = [each for each in _penalties(named) if acts(each.options["limit"])]
  return {each.name: Limit(_penalty(each, mask), each.options["limit"], learning_rate) for each in limited}


def make_terms(named: Iterable[Chosen]) -> dict[str, ExampleTerm]:
  """The regularizers that look at examples; those that need no labels count the examples without one, too."""

  def make(chosen: Chosen) -> ExampleTerm:
    function = chosen.without("weight").bound()

    def of_network(key: Key, view: objective.View) -> Array:
      passed: LossPass = view.aux
      return function(key, passed.view(view))

    weights_fn = None if chosen.needs("labels") else _all_weights
    return objective.example_term(of_network, weight=chosen.options["weight"], weights_fn=weights_fn)

  return {each.name: make(each) for each in named if each.kind == "term"}


def _all_weights(given: Given) -> Array:
  return given.examples.weights


def _penalties(named: Iterable[Chosen]) -> list[Chosen]:
  return [each for each in named if each.kind == "penalty"]


def _penalty(chosen: Chosen, mask: Mask) -> Penalty:
  penalty = chosen.without("weight", "limit").bound(mask=mask)
  if chosen.needs("reference"):
    return lambda params, extras: penalty(params, reference=extras["reference"])
  return lambda params, extras: penalty(params)


def make_constraints(
  named: Iterable[Chosen], mask: Mask, schedule: optax.Schedule
) -> dict[str, optax.GradientTransformation]:
  """Each named proximal step or projection, as a transform for the end of an Optax chain."""
  return {
    each.name: constraints.proximal(each.bound(mask=mask), schedule)
    if each.kind == "prox"
    else constraints.project(each.bound(mask=mask))
    for each in named
  }


def make_prox(named: Iterable[Chosen], mask: Mask) -> Callable[[Params, ArrayLike], Params]:
  """The named proximal steps and projections, in order, for an optimizer that calls them itself."""
  made = [(each.bound(mask=mask), each.kind == "prox") for each in named]

  def prox(params: Params, step: ArrayLike) -> Params:
    for function, steps in made:
      params = function(params, step) if steps else function(params)
    return params

  return prox


def make_noises(named: Sequence[Chosen], mask: Mask) -> Noises:
  """The noises `(key, x) -> x` under the name of what they perturb: `inputs`, `params` or `labels`."""
  kinds = {"inputs": "input_noise", "params": "params_noise", "labels": "label_noise"}
  return {on: [each.bound(mask=mask) for each in named if each.kind == kinds[on]] for on in kinds}


def most_labels(named: Iterable[Chosen]) -> int:
  """How many classes the label of an example may have after the named augmentations.

  Each augmentation that takes `num_classes` mixes two examples, which doubles the number.
  """
  return 2 ** sum(each.needs("num_classes") for each in named)
