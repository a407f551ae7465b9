"""The Optax chain of a run, and the optimizers that Optax and `jaxreg.optim` lack."""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from jaxreg import optim, paths
from jaxreg._checks import check_choice
from jaxreg._errors import ArgumentError
from jaxreg.train.entries import Chosen, Options
from jaxreg.train.user_modules import short
from jaxreg.typing import Array, Params, PyTree

# Wrappers that step with the gradient at a second point, which is to be clipped and decayed.
SHARPNESS_AWARE = ("sam", "asam", "gsam")
# Optimizers whose learning rate is one number: the schedule's value at step 0.
NUMBERS = ("polyak_sgd", "rprop", "sm3", "fista")
# Optimizers that find a learning rate, which their decay would have to follow. Ours is a factor or a limit of
# it: by default 1, but in Optax 0.01 for `momo_adam`.
LEARNING_RATE_FREE = ("cocob", "dadapt_adamw", "dog", "dowg", "momo", "momo_adam", "prodigy")


def step_name(chosen: Options) -> str:
  """Returns the name of the optimizer that `config.optimizer` chooses, alone or within a wrapper."""
  return chosen[short(chosen["name"])].get("inner", chosen["name"])


def make_optimizer(
  chosen: Chosen,
  schedule: optax.Schedule,
  *,
  wrapper: Chosen | None = None,
  weight_decay: optax.ScalarOrSchedule = 0.0,
  kind: str = "coupled",
  mask: str = "kernels_only",
  blocks: str = "leaf",
  peak: float | None = None,
  clip_norm: float = 0.0,
  constraints: Mapping[str, optax.GradientTransformation] | None = None,
  network: Options | None = None,
) -> optax.GradientTransformationExtraArgs:
  """Chains clipping, the named optimizer with its weight decay, and constraints, in that order.

  `kind`, `blocks` and `peak` are those of `optim.decay`. Optimizers such as `adamw` do decoupled decay
  themselves. `sam`, `asam` and `gsam` move to a second point along the plain gradient; the gradient there is
  clipped, and gets coupled decay. `schedule_free` averages the steps of an optimizer that decays.

  `mask` names the function in `jaxreg.paths` that says which parameters decay; a norm or a rate of 0 means
  none. `network` has `apply_fn`, `input_shape`, `num_examples` and `prox`, for optimizers that take them. The
  chain's state has each part under its name.
  """
  name, decays, decaying = chosen.name, getattr(paths, mask), callable(weight_decay) or weight_decay > 0
  takes_decay = chosen.needs("weight_decay")
  if takes_decay and decaying and kind == "coupled":
    raise ArgumentError("kind", f"must not be coupled with {name}, which has decoupled decay itself")
  own_decay = takes_decay and kind == "decoupled"
  rate = schedule(0) if name in NUMBERS else schedule
  rates = {"learning_rate": rate, "max_learning_rate": rate, "mask": decays}
  step = chosen.bound(**rates, weight_decay=weight_decay if own_decay else 0.0, **(network or {}))()
  decayed = functools.partial(
    optim.decay,
    learning_rate=schedule,
    rate=weight_decay,
    kind=kind,
    blocks=blocks,
    peak=peak,
    mask=decays,
  )
  decaying = decaying and not own_decay
  chain: dict[str, optax.GradientTransformation] = {}
  if clip_norm:
    chain["clip"] = optax.clip_by_global_norm(clip_norm)
  if wrapper is not None:
    inner, name = name, wrapper.name
    if decaying and (name == "schedule_free" or (name in SHARPNESS_AWARE and kind == "coupled")):
      step, decaying = decayed(step), False
    if name in SHARPNESS_AWARE:
      step, chain = optax.named_chain(*chain.items(), (inner, step)), {}
    step = wrapper.bound(learning_rate=schedule)(step)
  chain[name] = decayed(step) if decaying else step
  return optax.with_extra_args_support(optax.named_chain(*chain.items(), *(constraints or {}).items()))


def muon(
  learning_rate: optax.ScalarOrSchedule,
  *,
  beta: float = 0.95,
  ns_steps: int = 5,
  nesterov: bool = True,
  consistent_rms: float | None = None,
  b1: float = 0.9,
  b2: float = 0.999,
) -> optax.GradientTransformation:
  """Builds `optax.contrib.muon`: kernels with two axes or more get Muon, all other parameters Adam.

  Args:
    beta: decay of Muon's momentum.
    ns_steps: steps of the Newton-Schulz iteration.
    nesterov: whether the momentum is Nesterov's.
    consistent_rms: root mean square that the updates of a kernel are scaled to, such as 0.2.
    b1, b2: the decays of Adam.
  """
  return optax.contrib.muon(
    learning_rate,
    ns_steps=ns_steps,
    beta=beta,
    nesterov=nesterov,
    adam_b1=b1,
    adam_b2=b2,
    muon_weight_dimension_numbers=_matrices,
    consistent_rms=consistent_rms,
  )


def _matrices(params: Params) -> PyTree:
  """Says for each kernel which of its axes make the rows and the columns of a matrix; None for others."""

  def axes(name: str, w: Array, is_kernel: bool) -> optax.contrib.MuonDimensionNumbers | None:
    rows, stacked = paths.incoming_axes(name, w.ndim), "stacked" in name.split("/")[:-1]
    columns = tuple(axis for axis in range(int(stacked), w.ndim) if axis not in rows)
    takes = is_kernel and rows and columns and paths.last_name(name) != "embedding"
    return optax.contrib.MuonDimensionNumbers(rows, columns) if takes else None

  leaves, structure = jax.tree.flatten(params)
  kernels = paths.chosen(params, paths.kernels_only)
  return structure.unflatten(map(axes, paths.leaf_names(params), leaves, kernels))


def sophia(
  learning_rate: optax.ScalarOrSchedule,
  *,
  b1: float = 0.965,
  b2: float = 0.99,
  eps: float = 1e-8,
  gamma: float = 0.01,
  clip_threshold: float | None = 1.0,
  update_interval: int = 10,
) -> optax.GradientTransformationExtraArgs:
  """Builds `optax.contrib.sophia`; Hutchinson's estimator gives the Hessian's diagonal of the batch's loss.

  Args:
    b1, b2: decays of the averages of the gradient and of the diagonal.
    eps: lower bound of the denominator.
    gamma: factor of the diagonal.
    clip_threshold: largest entry of an update over the learning rate.
    update_interval: steps between estimates of the diagonal.
  """
  tx = optax.contrib.sophia(
    learning_rate,
    b1=b1,
    b2=b2,
    eps=eps,
    weight_decay=0.0,
    gamma=gamma,
    clip_threshold=clip_threshold,
    update_interval=update_interval,
  )

  def update(updates: Params, state: PyTree, params: Params | None = None, **extra_args: Any) -> Any:
    return tx.update(updates, state, params, obj_fn=extra_args["value_fn"])

  return optax.GradientTransformationExtraArgs(tx.init, update)


def schedule_free(
  inner: optax.GradientTransformation,
  *,
  learning_rate: optax.ScalarOrSchedule,
  b1: float = 0.9,
  weight_lr_power: float = 2.0,
) -> optax.GradientTransformationExtraArgs:
  """Gives the optimizer `inner`, which should have no momentum, Schedule-Free's interpolation and average.

  Args:
    b1: weight of the average in the point where gradients are taken.
    weight_lr_power: power of the learning rate in the weight of an iterate.
  """
  return optax.contrib.schedule_free(inner, learning_rate, b1, weight_lr_power)


def evaluation_params(opt_state: PyTree, params: Params) -> Params:
  """Returns the average that `schedule_free` evaluates, from a chain's state; `params` without one."""

  def is_state(x: object) -> bool:
    return isinstance(x, optax.contrib.ScheduleFreeState)

  for each in filter(is_state, jax.tree.leaves(opt_state, is_leaf=is_state)):
    return optax.contrib.schedule_free_eval_params(each, params)
  return params


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
  check_choice(coordinates, "coordinates", COORDINATES)
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
