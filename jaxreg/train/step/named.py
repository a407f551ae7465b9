"""Penalties, example terms, constraints, noise and augmentations by name: from options to functions."""

import dataclasses
import functools
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import optax

from jaxreg import augment, constraints, noise, paths, penalties
from jaxreg.train.lookup import find, parameters, short, takes
from jaxreg.train.step import example_terms as terms
from jaxreg.train.step.side_state import Dual
from jaxreg.typing import Array, Key, Params

# The functions by name. `partial` gives a default to each option that has none in the function's signature.
REGULARIZERS: dict[str, Callable[..., Any]] = {
  "l2": penalties.l2,
  "l1": penalties.l1,
  "elastic_net": functools.partial(penalties.elastic_net, ratio=0.5),
  "group_lasso": penalties.group_lasso,
  "hoyer": penalties.hoyer,
  "orthogonality": penalties.orthogonality,
  "gaussian_prior": functools.partial(penalties.gaussian_prior, precision=1.0),
  "laplace_prior": functools.partial(penalties.laplace_prior, rate=1.0),
  "tying": functools.partial(penalties.tying, pairs=()),
  "l2_sp": penalties.l2_sp,
  "learned_dropout": penalties.learned_dropout,
}
CONSTRAINTS: dict[str, Callable[..., Any]] = {
  "max_norm": functools.partial(constraints.max_norm, limit=3.0),
  "unit_norm": constraints.unit_norm,
  "min_max_norm": functools.partial(constraints.min_max_norm, low=0.5, high=3.0),
  "prox_l1": functools.partial(constraints.prox_l1, weight=1e-4),
  "prox_elastic_net": functools.partial(constraints.prox_elastic_net, weight=1e-4, ratio=0.5),
  "prox_group_lasso": functools.partial(constraints.prox_group_lasso, weight=1e-4),
  "prox_l0": functools.partial(constraints.prox_l0, weight=1e-4),
  "prox_non_negative": constraints.prox_non_negative,
}
NOISES: dict[str, Callable[..., Any]] = {
  "gaussian_noise": functools.partial(noise.gaussian_noise, std=0.1),
  "weight_noise": functools.partial(noise.weight_noise, std=0.01),
  "dropconnect_params": functools.partial(noise.dropconnect_params, rate=0.5),
  "label_noise": functools.partial(noise.label_noise, rate=0.1),
}
AUGMENTATIONS: dict[str, Callable[..., Any]] = {
  "pad_crop": augment.pad_crop,
  "flip": augment.flip,
  "translate": augment.translate,
  "rotate": augment.rotate,
  "scale": augment.scale,
  "cutout": augment.cutout,
  "random_erasing": augment.random_erasing,
  "lighting": augment.lighting,
  "rand_augment": augment.rand_augment,
  "auto_augment": augment.auto_augment,
  "augmix": augment.augmix,
  "trivial_augment": augment.trivial_augment,
  "random_resized_crop": augment.random_resized_crop,
  "color_jitter": augment.color_jitter,
  "mixup": augment.mixup,
  "manifold_mixup": functools.partial(augment.manifold_mixup, layers=("backbone", "head")),
  "cutmix": augment.cutmix,
}
# The tables by the group of the configuration that names their rows; a row added later is found, too.
CHOSEN: dict[str, Mapping[str, Callable[..., Any]]] = {
  "regularizers": ChainMap(terms.TERMS, REGULARIZERS),
  "noise": NOISES,
  "optimizer.constraints": CONSTRAINTS,
}

Options = Mapping[str, Any]


def find_regularizer(name: str) -> Callable[..., Any]:
  """The penalty, or the term of `example_terms`, that `regularizers.names` names.

  Raises:
    RunError: if there is none.
  """
  kind = "a function of (params, ...) or of (key, view, ...)"
  fits = lambda found: is_penalty(found) or takes(found, "key", "view")
  return find(name, CHOSEN["regularizers"], "regularizers.names", kind, fits)


def is_penalty(function: Callable[..., Any]) -> bool:
  """Whether a regularizer looks at the parameters; the others look at examples."""
  return takes(function, "params")


def find_constraint(name: str) -> Callable[..., Any]:
  """The projection, or proximal step, that `optimizer.constraints.names` names.

  Raises:
    RunError: if there is none.
  """
  kind = "a function of (params, ...) or of (params, step, ...)"
  return find(name, CONSTRAINTS, "optimizer.constraints.names", kind, lambda found: takes(found, "params"))


def find_noise(name: str) -> Callable[..., Any]:
  """The noise that `noise.names` names.

  Raises:
    RunError: if there is none.
  """
  kind = "a function of (key, x, ...), (key, params, ...) or (key, labels, ...)"
  fits = lambda found: any(takes(found, "key", on) for on in ("x", "params", "labels"))
  return find(name, NOISES, "noise.names", kind, fits)


def find_augmentation(name: str) -> Callable[..., Any]:
  """The augmentation that `augment.names` names.

  Raises:
    RunError: if there is none.
  """
  kind = "a function of (key, batch, ...)"
  return find(name, AUGMENTATIONS, "augment.names", kind, lambda found: takes(found, "key", "batch"))


@dataclasses.dataclass(frozen=True)
class Term:
  """A row of `terms.TERMS` with its options; it adds `weight * function(key, view)` to the loss."""

  function: Callable[[Key, terms.View], Array]
  weight: float
  needs_labels: bool


def make_penalties(options: Options) -> dict[str, Callable[[Params, dict[str, Any]], Array]]:
  """Each named penalty, `(params, extras) -> scalar`, times its weight or, with a limit, its multiplier."""

  def make(name: str) -> Callable[[Params, dict[str, Any]], Array]:
    penalty, own = _penalty(name, options), options[short(name)]
    if own["limit"]:
      return lambda params, extras: extras["duals"][short(name)].multiplier * penalty(params, extras)
    return lambda params, extras: own["weight"] * penalty(params, extras)

  return {short(name): make(name) for name in _penalties(options)}


def make_duals(options: Options) -> dict[str, Dual]:
  """The named penalties that have a limit, as constraints."""
  return {
    short(name): Dual(_penalty(name, options), options[short(name)]["limit"], options["dual_learning_rate"])
    for name in _penalties(options)
    if options[short(name)]["limit"]
  }


def needs_reference(options: Options) -> bool:
  """Whether a named penalty measures the distance to the initial parameters."""
  return any("reference" in parameters(find_regularizer(name)) for name in _penalties(options))


def make_terms(options: Options) -> dict[str, Term]:
  """The named regularizers that look at examples, with their weights and options."""

  def make(term: Callable[..., Array], weight: float, **rest: Any) -> Term:
    return Term(functools.partial(term, **rest), weight, terms.needs_labels(term))

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
  mask = getattr(paths, options["mask"])
  made = {}
  for name in options["names"]:
    function, own = find_constraint(name), options[short(name)]
    if takes(function, "params", "step"):
      made[short(name)] = constraints.proximal(functools.partial(function, **own), schedule, mask=mask)
    else:
      made[short(name)] = constraints.project(_masked(function, own, options["mask"]))
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
