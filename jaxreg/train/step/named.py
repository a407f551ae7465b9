"""Penalties, example terms, constraints, noise and augmentations by name: from options to functions."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import optax

from jaxreg import constraints, paths
from jaxreg.train.lookup import find, parameters, short, takes
from jaxreg.train.step import example_terms
from jaxreg.train.step.extras import Limit
from jaxreg.train.step.network_view import NetworkView
from jaxreg.train.step.tables import AUGMENTATIONS, CHOSEN, CONSTRAINTS, NOISES
from jaxreg.typing import Array, Key, Params

Options = Mapping[str, Any]


def find_regularizer(name: str) -> Callable[..., Any]:
  """The penalty, or the term of `example_terms`, that `regularizers.names` names."""
  kind = "a function of (params, ...) or of (key, view, ...)"
  fits = lambda found: is_penalty(found) or takes(found, "key", "view")
  return find(name, CHOSEN["regularizers"], "regularizers.names", kind, fits)


def is_penalty(function: Callable[..., Any]) -> bool:
  """Whether a regularizer looks at the parameters; the others look at examples."""
  return takes(function, "params")


def find_constraint(name: str) -> Callable[..., Any]:
  """The projection, or proximal step, that `optimizer.constraints.names` names."""
  kind = "a function of (params, ...) or of (params, step, ...)"
  return find(name, CONSTRAINTS, "optimizer.constraints.names", kind, lambda found: takes(found, "params"))


def find_noise(name: str) -> Callable[..., Any]:
  """The noise that `noise.names` names."""
  kind = "a function of (key, x, ...), (key, params, ...) or (key, labels, ...)"
  fits = lambda found: any(takes(found, "key", on) for on in ("x", "params", "labels"))
  return find(name, NOISES, "noise.names", kind, fits)


def find_augmentation(name: str) -> Callable[..., Any]:
  """The augmentation that `augment.names` names."""
  kind = "a function of (key, batch, ...)"
  return find(name, AUGMENTATIONS, "augment.names", kind, lambda found: takes(found, "key", "batch"))


@dataclasses.dataclass(frozen=True)
class Term:
  """A row of `example_terms.TERMS` with its options; it adds `weight * function(key, view)` to the loss."""

  function: Callable[[Key, NetworkView], Array]
  weight: float
  needs_labels: bool


def make_penalties(options: Options) -> dict[str, Callable[[Params, dict[str, Any]], Array]]:
  """Each named penalty, `(params, extras) -> scalar`, times its weight or, with a limit, its multiplier."""

  def make(name: str) -> Callable[[Params, dict[str, Any]], Array]:
    penalty, own = _penalty(name, options), options[short(name)]
    if own["limit"]:
      return lambda params, extras: extras["multipliers"][short(name)].multiplier * penalty(params, extras)
    return lambda params, extras: own["weight"] * penalty(params, extras)

  return {short(name): make(name) for name in _penalties(options)}


def make_limits(options: Options) -> dict[str, Limit]:
  """The named penalties that have a limit, as constraints."""
  return {
    short(name): Limit(_penalty(name, options), options[short(name)]["limit"], options["dual_learning_rate"])
    for name in _penalties(options)
    if options[short(name)]["limit"]
  }


def needs_reference(options: Options) -> bool:
  """Whether a named penalty measures the distance to the initial parameters."""
  return any("reference" in parameters(find_regularizer(name)) for name in _penalties(options))


def make_terms(options: Options) -> dict[str, Term]:
  """The named regularizers that look at examples, with their weights and options."""

  def make(term: Callable[..., Array], weight: float, **rest: Any) -> Term:
    return Term(functools.partial(term, **rest), weight, example_terms.needs_labels(term))

  found = {name: find_regularizer(name) for name in options["names"]}
  return {
    short(name): make(term, **options[short(name)]) for name, term in found.items() if not is_penalty(term)
  }


def _penalties(options: Options) -> list[str]:
  return [name for name in options["names"] if is_penalty(find_regularizer(name))]


def _penalty(name: str, options: Options) -> Callable[[Params, dict[str, Any]], Array]:
  rest = {key: value for key, value in options[short(name)].items() if key not in ("weight", "limit")}
  function = find_regularizer(name)
  penalty = _masked(function, rest, options["mask"])
  if "reference" in parameters(function):
    return lambda params, extras: penalty(params, reference=extras["reference"])
  return lambda params, extras: penalty(params)


def make_constraints(options: Options, schedule: optax.Schedule) -> dict[str, optax.GradientTransformation]:
  """Each named proximal step or projection, as a transform for the end of an Optax chain."""
  made = {}
  for name in options["names"]:
    function = find_constraint(name)
    masked = _masked(function, options[short(name)], options["mask"])
    steps = takes(function, "params", "step")
    made[short(name)] = constraints.proximal(masked, schedule) if steps else constraints.project(masked)
  return made


def make_prox(options: Options) -> Callable[[Params, Any], Params]:
  """The named proximal steps and projections, in order, for an optimizer that calls them itself."""
  made = []
  for name in options["names"]:
    function = find_constraint(name)
    steps = takes(function, "params", "step")
    made.append((_masked(function, options[short(name)], options["mask"]), steps))

  def prox(params: Params, step: Any) -> Params:
    for function, steps in made:
      params = function(params, step) if steps else function(params)
    return params

  return prox


def make_noises(options: Options) -> dict[str, list[Callable[[Key, Any], Any]]]:
  """The named noises, functions `(key, x) -> x`, by what they perturb: `inputs`, `params` or `labels`."""
  made: dict[str, list[Callable[[Key, Any], Any]]] = {"inputs": [], "params": [], "labels": []}
  for name in options["names"]:
    function = find_noise(name)
    on = next((kind for kind in ("params", "labels") if kind in parameters(function)), "inputs")
    made[on].append(_masked(function, options[short(name)], options["mask"]))
  return made


def most_labels(names: Iterable[str]) -> int:
  """How many classes the label of an example may have after the named augmentations.

  Each augmentation that takes `num_classes` mixes two examples, which doubles the number.
  """
  return 2 ** sum("num_classes" in parameters(find_augmentation(name)) for name in names)


def _masked(function: Callable[..., Any], options: Options, mask: str) -> Callable[..., Any]:
  """The function with its options, and with the mask if it takes one."""
  takes_mask = "mask" in parameters(function)
  return functools.partial(function, **options, **({"mask": getattr(paths, mask)} if takes_mask else {}))
