"""The penalties, example terms, constraints, noise and augmentations that a configuration names."""

# pyright: reportMissingTypeStubs=false

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import optax
from jax.typing import ArrayLike

from jaxreg import constraints, objective
from jaxreg.train.entries import Chosen
from jaxreg.train.step.network import Noises
from jaxreg.train.step.state import ExtraStates, Limit
from jaxreg.train.step.step import label_weights
from jaxreg.train.step.terms import Divergence, TeacherFn
from jaxreg.typing import Array, Batch, Key, Params, PyTree

Term = Any  # what `jaxreg.objective` makes of a penalty or a function of examples
Mask = Callable[..., PyTree]  # a function of `jaxreg.paths`


def make_regularizers(
  named: Sequence[Chosen], mask: Mask, *, teacher: TeacherFn | None, divergence: Divergence | None
) -> dict[str, Term]:
  """Builds the terms of an objective by name: penalties, and terms that look at the examples.

  Terms that need no labels count the examples without one, too.
  """
  terms: dict[str, Term] = {}
  for each in named:
    if each.kind == "penalty":
      terms[each.name] = _penalty_term(each, mask)
    else:
      function = each.without("weight").bound(teacher=teacher, divergence=divergence)
      weights_fn = label_weights if each.needs("labels") else _all_weights
      terms[each.name] = objective.example_term(
        function, weight=each.options["weight"], weights_fn=weights_fn
      )
  return terms


def make_limits(named: Iterable[Chosen], mask: Mask, learning_rate: float) -> dict[str, Limit]:
  """Builds the constraints: the named penalties that have a limit."""
  return {
    each.name: Limit(_bound_penalty(each, mask), each.options["limit"], learning_rate)
    for each in named
    if each.kind == "penalty" and each.options["limit"]
  }


def _penalty_term(each: Chosen, mask: Mask) -> Term:
  """Makes a penalty, or a term that sees the state for a multiplier as weight or a reference."""
  limited = bool(each.options["limit"])
  if not limited and not each.needs("reference"):
    return objective.penalty(each.without("weight", "limit").bound(mask=mask), weight=each.options["weight"])
  penalty = _bound_penalty(each, mask)

  def penalty_fn(key: Key, view: objective.View) -> Array:
    del key
    extras = view.batch["state"].extras
    weight = extras["multipliers"][each.name].multiplier if limited else each.options["weight"]
    return weight * penalty(view.params, extras)

  return objective.example_term(penalty_fn, weight=1.0)


def _bound_penalty(each: Chosen, mask: Mask) -> Callable[[Params, ExtraStates], Array]:
  """Makes a penalty of `(params, extras)`."""
  penalty = each.without("weight", "limit").bound(mask=mask)

  def with_extras(params: Params, extras: ExtraStates) -> Array:
    return penalty(params, reference=extras["reference"]) if each.needs("reference") else penalty(params)

  return with_extras


def _all_weights(batch: Mapping[str, Any]) -> Array:
  return batch["examples"].weights


def make_constraints(
  named: Iterable[Chosen], mask: Mask, schedule: optax.Schedule
) -> dict[str, optax.GradientTransformation]:
  """Makes each named proximal step or projection, as a transform for the end of an Optax chain."""
  return {
    each.name: constraints.proximal(each.bound(mask=mask), schedule)
    if each.kind == "prox"
    else constraints.project(each.bound(mask=mask))
    for each in named
  }


def make_prox(named: Iterable[Chosen], mask: Mask) -> Callable[[Params, ArrayLike], Params]:
  """Makes the named proximal steps and projections, in order, for an optimizer that calls them itself."""
  made = [(each.bound(mask=mask), each.kind == "prox") for each in named]

  def prox(params: Params, step: ArrayLike) -> Params:
    for function, steps in made:
      params = function(params, step) if steps else function(params)
    return params

  return prox


def make_noises(named: Sequence[Chosen], mask: Mask) -> Noises:
  """Makes the noises `(key, x) -> x` under the name of what they perturb: `inputs`, `params` or `labels`."""
  kinds = {"inputs": "input_noise", "params": "params_noise", "labels": "label_noise"}
  return {on: [each.bound(mask=mask) for each in named if each.kind == kinds[on]] for on in kinds}


def most_labels(named: Iterable[Chosen]) -> int:
  """Counts the classes that a label may have after the named augmentations.

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
  """Makes the augmentations in their order; label noise comes first, before augmentations that mix labels.

  `scale` is the maximum of an input. `num_classes` is 0 for labels that are numbers, which mix as they are.
  `unlabelled` says whether some examples have no label.
  """
  data_options = {"value_range": (0.0, scale), "num_classes": num_classes or None}

  def on_labels(noise: Callable[..., Array], key: Key, batch: Batch) -> Batch:
    return {**batch, "labels": noise(key, batch["labels"], num_classes=num_classes)}

  made: list[Callable[[Key, Batch], Batch]] = [functools.partial(on_labels, noise) for noise in label_noises]
  for chosen in named:
    if unlabelled and chosen.needs("num_classes"):
      raise ValueError(f"{chosen.name} mixes labels, and some examples have no label; leave it out")
    made.append(chosen.bound(**data_options))
  return made
