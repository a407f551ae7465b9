"""Penalties, constraints and noise by name: from options to functions."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import optax

from jaxreg import constraints, noise, paths, penalties
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
}
# By the group of the configuration that names them.
CHOSEN = {"regularizers": REGULARIZERS, "noise": NOISES, "optimizer.constraints": CONSTRAINTS}

Options = Mapping[str, Any]


def make_penalties(options: Options) -> dict[str, Callable[[Params], Array]]:
  """Each named penalty times its weight."""

  def make(weight: float, name: str, **rest: Any) -> Callable[[Params], Array]:
    penalty = _masked(getattr(penalties, name), rest, options["mask"])
    return lambda params: weight * penalty(params)

  return {name: make(name=name, **options[name]) for name in options["names"]}


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
  """What perturbs the `inputs`, and what the `params`: functions `(key, x) -> x`."""
  made: dict[str, list[Callable[[Key, Any], Any]]] = {"inputs": [], "params": []}
  for name in options["names"]:
    function = getattr(noise, name)
    kind = "params" if "params" in inspect.signature(function).parameters else "inputs"
    made[kind].append(_masked(function, options[name], options["mask"]))
  return made


def _masked(function: Callable[..., Any], options: Options, mask: str) -> Callable[..., Any]:
  """With its options, and the mask if it takes one."""
  takes_mask = "mask" in inspect.signature(function).parameters
  return functools.partial(function, **options, **({"mask": getattr(paths, mask)} if takes_mask else {}))
