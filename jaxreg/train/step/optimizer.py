# pyright: reportMissingTypeStubs=false
"""The Optax chain of a run, and the optimizers that Optax and `jaxreg.optim` lack."""

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg import optim, paths
from jaxreg._errors import ArgumentError
from jaxreg.train.entries import Chosen, Options
from jaxreg.train.user_modules import short
from jaxreg.typing import Array, Params

# Wrappers that step with the gradient at a second point, which is to be clipped and decayed.
SHARPNESS_AWARE = ("sam", "asam", "gsam")
# Optimizers whose learning rate is one number: the schedule's value at step 0.
NUMBERS = ("polyak_sgd", "rprop", "sm3", "fista")


def step_name(chosen: Options) -> str:
  """Returns the name of the optimizer that `config.optimizer` chooses, alone or within a wrapper."""
  return chosen[short(chosen["name"])].get("inner", chosen["name"])


def make_optimizer(
  chosen: Chosen,
  schedule: optax.Schedule,
  *,
  wrapper: Chosen | None = None,
  weight_decay: float = 0.0,
  decoupled: bool = False,
  mask: str = "kernels_only",
  clip_norm: float = 0.0,
  constraints: Mapping[str, optax.GradientTransformation] | None = None,
  network: Options | None = None,
) -> optax.GradientTransformationExtraArgs:
  """Chains clipping, coupled decay, the named optimizer, decoupled decay and constraints, in that order.

  Coupled decay adds `weight_decay * w` to the gradient (L2, so an adaptive optimizer rescales it too).
  Decoupled decay subtracts `learning_rate * weight_decay * w` from the weights. `adamw` decouples by itself.
  `sam`, `asam` and `gsam` move to a second point along the plain gradient; the gradient there is
  clipped and decayed.

  `mask` names the function in `jaxreg.paths` that says which parameters decay; a norm or a rate of 0 means
  none. `network` has `apply_fn`, `input_shape`, `num_examples` and `prox`, for optimizers that take them. The
  chain's state has each part under its name.
  """
  name, decays, own_decay = chosen.name, getattr(paths, mask), chosen.needs("weight_decay")
  if own_decay and weight_decay and not decoupled:
    raise ArgumentError("decoupled", f"must be True with {name}, which decouples the decay itself")
  rate = schedule(0) if name in NUMBERS else schedule
  rates = {"learning_rate": rate, "max_learning_rate": rate, "weight_decay": weight_decay, "mask": decays}
  step = chosen.bound(**rates, **(network or {}))()
  chain: dict[str, optax.GradientTransformation] = {}
  if clip_norm:
    chain["clip"] = optax.clip_by_global_norm(clip_norm)
  if weight_decay and not decoupled:
    chain["coupled_decay"] = optax.add_decayed_weights(weight_decay, decays)
  if wrapper is not None:
    inner, name = name, wrapper.name
    if name in SHARPNESS_AWARE:
      step, chain = optax.named_chain(*chain.items(), (inner, step)), {}
    step = wrapper.bound()(step)
  chain[name] = step
  if weight_decay and decoupled and not own_decay:

    def rate_of_decay(step: ArrayLike) -> ArrayLike:
      return -weight_decay * schedule(step)

    chain["decoupled_decay"] = optax.add_decayed_weights(rate_of_decay, decays)
  return optax.with_extra_args_support(optax.named_chain(*chain.items(), *(constraints or {}).items()))


def noisy_sgd(
  learning_rate: optax.ScalarOrSchedule, *, variance: float = 0.01, gamma: float = 0.55
) -> optax.GradientTransformationExtraArgs:
  """Builds `optax.noisy_sgd`, with noise drawn from the run's own key."""
  return gradient_noise(optax.sgd(learning_rate), variance=variance, gamma=gamma)


def mahalanobis(
  learning_rate: optax.ScalarOrSchedule, *, metric: tuple[tuple[str, float], ...] = (("*kernel", 1.0),)
) -> optax.GradientTransformationExtraArgs:
  """Builds descent in a diagonal metric.

  Each entry is a glob and a number. The last glob that matches a parameter's name gives its number; the
  number of an unmatched parameter is 1.
  """
  return optim.mahalanobis(learning_rate, solve=_divided(list(map(_entry, metric))))


def gradient_noise(
  inner: optax.GradientTransformation, *, variance: float = 0.01, gamma: float = 0.55
) -> optax.GradientTransformationExtraArgs:
  """Gives the optimizer `inner` noisy gradients."""
  return optax.chain(optim.gradient_noise(variance=variance, gamma=gamma), inner)


def _same(x: Array) -> Array:
  return x


Map = Callable[[Array], Array]
COORDINATES: dict[str, tuple[Map, Map]] = {"linear": (_same, _same), "sinh": (jnp.sinh, jnp.arcsinh)}


def reparameterize(
  inner: optax.GradientTransformation, *, coordinates: str = "sinh", scale: float = 1.0
) -> optax.GradientTransformationExtraArgs:
  """Runs the optimizer `inner` in coordinates `y`: each parameter is `x = scale * f(y)` elementwise."""
  if coordinates not in COORDINATES:
    raise ArgumentError("coordinates", f"must be one of {', '.join(COORDINATES)}, got {coordinates!r}")
  if not scale > 0:
    raise ArgumentError("scale", f"must be above 0, got {scale}")
  forward, inverse = COORDINATES[coordinates]

  def to_params(y: Array) -> Array:
    return scale * forward(y)

  def from_params(x: Array) -> Array:
    return inverse(x / scale)

  return optim.reparameterize(
    inner, functools.partial(jax.tree.map, to_params), functools.partial(jax.tree.map, from_params)
  )


def _entry(entry: object) -> tuple[str, float]:
  match entry:
    case (str(glob), int() | float() as number) if glob and 0 < number < float("inf"):
      return glob, float(number)
    case _:
      raise ArgumentError(
        "metric", f'must have entries such as ("*bias", 4.0), numbers above 0, got {entry!r}'
      )


def _divided(metric: Sequence[tuple[str, float]]) -> Callable[..., Params]:
  def solve(updates: Params, params: Params, **extra_args: object) -> Params:
    def divided(update: Array, *selected: bool) -> Array:
      by = 1.0
      for (_, number), named in zip(metric, selected, strict=True):
        by = number if named else by
      return update / by

    return jax.tree.map(divided, updates, *(paths.select(updates, glob) for glob, _ in metric))

  return solve
