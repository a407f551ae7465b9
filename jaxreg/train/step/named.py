"""Penalties, constraints and noise by name: from options to functions."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import optax

from jaxreg import constraints, noise, paths, penalties
from jaxreg.train.step import example_terms as terms
from jaxreg.train.step.side_state import Dual
from jaxreg.typing import Array, Key, Params

# By name, the options that have no default in the function's signature.
REGULARIZERS = {
  "l2": {},
  "l1": {},
  "elastic_net": {"ratio": 0.5},
  "group_lasso": {},
  "orthogonality": {},
  "gaussian_prior": {"precision": 1.0},
  "laplace_prior": {"rate": 1.0},
  "tying": {"pairs": ()},
  "l2_sp": {},
  "learned_dropout": {},
}
CONSTRAINTS = {
  "max_norm": {"limit": 3.0},
  "unit_norm": {},
  "min_max_norm": {"low": 0.5, "high": 3.0},
  "prox_l1": {"weight": 1e-4},
  "prox_elastic_net": {"weight": 1e-4, "ratio": 0.5},
  "prox_group_lasso": {"weight": 1e-4},
  "prox_l0": {"weight": 1e-4},
  "prox_non_negative": {},
}
NOISES = {
  "gaussian_noise": {"std": 0.1},
  "weight_noise": {"std": 0.01},
  "dropconnect_params": {"rate": 0.5},
  "label_noise": {"rate": 0.1},
}
# By the group of the configuration that names them.
CHOSEN = {
  "regularizers": {**REGULARIZERS, **terms.TERMS},
  "noise": NOISES,
  "optimizer.constraints": CONSTRAINTS,
}

Options = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Term:
  """A row of `terms.TERMS` with its options: `function(key, view)`, times `weight`."""

  function: Callable[[Key, terms.View], Array]
  weight: float
  needs_labels: bool


def make_penalties(options: Options) -> dict[str, Callable[[Params, dict[str, Any]], Array]]:
  """Each named penalty, `(params, extras) -> scalar`, times its weight, or its multiplier under a limit."""

  def make(name: str) -> Callable[[Params, dict[str, Any]], Array]:
    penalty, weight = _penalty(name, options), options[name]["weight"]
    if options[name]["limit"]:
      return lambda params, extras: extras["duals"][name].multiplier * penalty(params, extras)
    return lambda params, extras: weight * penalty(params, extras)

  return {name: make(name) for name in options["names"] if name in REGULARIZERS}


def make_duals(options: Options) -> dict[str, Dual]:
  """The named penalties that have a limit, as constraints."""
  return {
    name: Dual(_penalty(name, options), options[name]["limit"], options["dual_learning_rate"])
    for name in options["names"]
    if name in REGULARIZERS and options[name]["limit"]
  }


def make_terms(options: Options) -> dict[str, Term]:
  """The named terms."""

  def make(weight: float, name: str, **rest: Any) -> Term:
    return Term(functools.partial(getattr(terms, name), **rest), weight, terms.TERMS[name])

  return {name: make(name=name, **options[name]) for name in options["names"] if name in terms.TERMS}


def _penalty(name: str, options: Options) -> Callable[[Params, dict[str, Any]], Array]:
  rest = {key: value for key, value in options[name].items() if key not in ("weight", "limit")}
  penalty = _masked(getattr(penalties, name), rest, options["mask"])
  if "reference" in inspect.signature(getattr(penalties, name)).parameters:
    return lambda params, extras: penalty(params, reference=extras["reference"])
  return lambda params, extras: penalty(params)


def make_constraints(options: Options, schedule: optax.Schedule) -> dict[str, optax.GradientTransformation]:
  """Each named proximal step, or projection, as a transform that comes last in a chain."""
  mask = getattr(paths, options["mask"])
  made = {}
  for name in options["names"]:
    if name.startswith("prox_"):
      prox = functools.partial(getattr(constraints, name), **options[name])
      made[name] = constraints.proximal(prox, schedule, mask=mask)
    else:
      made[name] = constraints.project(_masked(getattr(constraints, name), options[name], options["mask"]))
  return made


def make_noises(options: Options) -> dict[str, list[Callable[[Key, Any], Any]]]:
  """What perturbs the `inputs`, the `params`, and the `labels`: functions `(key, x) -> x`."""
  made: dict[str, list[Callable[[Key, Any], Any]]] = {"inputs": [], "params": [], "labels": []}
  for name in options["names"]:
    function = getattr(noise, name)
    parameters = inspect.signature(function).parameters
    kind = next((kind for kind in ("params", "labels") if kind in parameters), "inputs")
    made[kind].append(_masked(function, options[name], options["mask"]))
  return made


def _masked(function: Callable[..., Any], options: Options, mask: str) -> Callable[..., Any]:
  """With its options, and the mask if it takes one."""
  takes_mask = "mask" in inspect.signature(function).parameters
  return functools.partial(function, **options, **({"mask": getattr(paths, mask)} if takes_mask else {}))
