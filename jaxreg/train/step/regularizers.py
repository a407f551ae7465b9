# pyright: reportMissingTypeStubs=false
"""The penalties, example terms, constraints, noise and augmentations that a configuration names."""

import functools
from collections.abc import Callable, Iterable, Sequence

import optax
from jax.typing import ArrayLike

from jaxreg import constraints, objective
from jaxreg._checks import acts
from jaxreg.objective._terms import ExampleTerm
from jaxreg.objective._terms import Penalty as PenaltyTerm
from jaxreg.train.lookup import Chosen
from jaxreg.train.step.network import Noises
from jaxreg.train.step.objective import Given, LossPass, RegularizersOf
from jaxreg.train.step.state import ExtraStates, Limit
from jaxreg.typing import Array, Batch, Key, Params, PyTree

Mask = Callable[..., PyTree]  # a function of `jaxreg.paths`
Penalty = Callable[[Params, ExtraStates], Array]  # `(params, extras)`, the extras of the state


def make_regularizers(named: Sequence[Chosen], mask: Mask) -> RegularizersOf:
  """Builds `extras -> terms`: the penalties with their weights or multipliers, then the example terms.

  Terms that need no labels count the examples without one, too.
  """

  def penalty(each: Chosen, extras: ExtraStates) -> PenaltyTerm:
    limited = acts(each.options["limit"])
    weight = extras["multipliers"][each.name].multiplier if limited else each.options["weight"]
    return objective.penalty(_penalty(each, mask), weight=weight, extras=extras)

  def term(each: Chosen) -> ExampleTerm:
    function = each.without("weight").bound()

    def of_network(key: Key, view: objective.View) -> Array:
      passed: LossPass = view.aux
      return function(key, passed.view(view))

    weights_fn = None if each.needs("labels") else _all_weights
    return objective.example_term(of_network, weight=each.options["weight"], weights_fn=weights_fn)

  terms = {each.name: term(each) for each in named if each.kind == "term"}
  return lambda extras: {**{each.name: penalty(each, extras) for each in _penalties(named)}, **terms}


def make_limits(named: Sequence[Chosen], mask: Mask, learning_rate: float) -> dict[str, Limit]:
  """The named penalties that have a limit, as constraints."""
  limited = [each for each in _penalties(named) if acts(each.options["limit"])]
  return {each.name: Limit(_penalty(each, mask), each.options["limit"], learning_rate) for each in limited}


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


def make_augmentations(
  named: Sequence[Chosen],
  label_noises: Sequence[Callable[..., Array]],
  *,
  scale: float,
  num_classes: int,
  unlabelled: bool,
) -> list[Callable[[Key, Batch], Batch]]:
  """The augmentations in their order; label noise comes first, before augmentations that mix labels.

  `scale` is the largest value of an input, `num_classes` is 0 for labels that are numbers, which mix as they
  are, and `unlabelled` says whether some examples have no label.
  """
  given = {"value_range": (0.0, scale), "num_classes": num_classes or None}

  def on_labels(noise: Callable[..., Array], key: Key, batch: Batch) -> Batch:
    return {**batch, "labels": noise(key, batch["labels"], num_classes=num_classes)}

  made: list[Callable[[Key, Batch], Batch]] = [functools.partial(on_labels, noise) for noise in label_noises]
  for chosen in named:
    if unlabelled and chosen.needs("num_classes"):
      raise ValueError(f"{chosen.name} mixes labels, and some examples have no label; leave it out")
    made.append(chosen.bound(**given))
  return made
