"""Optimizers that Optax and `jaxreg.optim` lack, and what the trainer knows of optimizers by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxreg import optim, paths, symmetry
from jaxreg.train.lookup import short
from jaxreg.typing import Params


def noisy_sgd(
  learning_rate: optax.ScalarOrSchedule, *, variance: float = 0.01, gamma: float = 0.55
) -> optax.GradientTransformationExtraArgs:
  """`optax.noisy_sgd`, with noise drawn from the run's own key."""
  return gradient_noise(optax.sgd(learning_rate), variance=variance, gamma=gamma)


def mahalanobis(
  learning_rate: optax.ScalarOrSchedule, *, metric: tuple[tuple[str, float], ...] = (("*kernel", 1.0),)
) -> optax.GradientTransformationExtraArgs:
  """Descent in a diagonal metric.

  Each entry is a glob and a number. The last glob that matches a parameter's name gives its number; the
  number of an unmatched parameter is 1.
  """
  return optim.mahalanobis(learning_rate, solve=_divided(list(map(_entry, metric))))


def gradient_noise(
  inner: optax.GradientTransformation, *, variance: float = 0.01, gamma: float = 0.55
) -> optax.GradientTransformationExtraArgs:
  """The optimizer `inner` on noisy gradients."""
  return optax.chain(optim.gradient_noise(variance=variance, gamma=gamma), inner)


COORDINATES = {"linear": (lambda y: y, lambda x: x), "sinh": (jnp.sinh, jnp.arcsinh)}


def reparameterize(
  inner: optax.GradientTransformation, *, coordinates: str = "sinh", scale: float = 1.0
) -> optax.GradientTransformationExtraArgs:
  """The optimizer `inner` in the coordinates `y`, where each parameter is `x = scale * f(y)` elementwise."""
  if coordinates not in COORDINATES:
    raise ValueError(f"coordinates must be one of {', '.join(COORDINATES)}, got {coordinates!r}")
  if not scale > 0:
    raise ValueError(f"scale must be above 0, got {scale}")
  forward, inverse = COORDINATES[coordinates]
  there = symmetry.elementwise_coordinates(lambda y: scale * forward(y), lambda x: inverse(x / scale))
  return optim.reparameterize(inner, there.forward, there.inverse)


# Wrappers that step with the gradient at a second point, which is to be clipped and decayed.
SHARPNESS_AWARE = ("sam", "asam", "gsam")
# Optimizers whose learning rate is one number: the schedule's value at step 0.
NUMBERS = ("polyak_sgd", "rprop", "sm3", "fista")


def step_name(chosen: Mapping[str, Any]) -> str:
  """The name of the optimizer that `config.optimizer` chooses, alone or within a wrapper."""
  return chosen[short(chosen["name"])].get("inner", chosen["name"])


def _entry(entry: Any) -> tuple[str, float]:
  glob, number = entry if isinstance(entry, list | tuple) and len(entry) == 2 else ("", 0)
  if not isinstance(number, int | float) or not glob or not 0 < number < float("inf"):
    raise ValueError(f'metric must have entries such as ("*bias", 4.0), numbers above 0, got {entry!r}')
  return glob, float(number)


def _divided(metric: Sequence[tuple[str, float]]) -> Callable[..., Any]:
  def solve(updates: Params, params: Params, **extra_args: Any) -> Params:
    by = jax.tree.map(lambda _: 1.0, updates)
    for names, number in metric:
      pick = lambda before, named, number=number: number if named else before
      by = jax.tree.map(pick, by, paths.select(updates, names))
    return jax.tree.map(jnp.divide, updates, by)

  return solve
