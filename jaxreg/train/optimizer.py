"""Optax chains and schedules from options."""

import collections
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg import optim, paths, symmetry
from jaxreg.typing import Array, Key, Params

# Functions of `jaxreg.optim`, and aliases of Optax that take a schedule and plain numbers.
OURS = (
  "exact_adagrad",
  "exact_rmsprop",
  "exact_adam",
  "adaptive",
  "trust_region",
  "p_norm_sgd",
  "path_sgd",
  "sgld",
)
ALIASES = ("sgd", "adam", "adamw", "rmsprop", "adagrad")
MORE_ALIASES = ("adabelief", "adamax", "amsgrad", "lamb", "lion", "nadam", "radam", "sign_sgd", "yogi")
OPTIMIZERS = (*ALIASES, *MORE_ALIASES, *OURS)
SCHEDULES = ("constant", "step", "cosine", "noam")
MASKS = ("kernels_only", "no_branches", "everything")


def find(name: str) -> Callable[..., Any]:
  """The function of an optimizer's name."""
  return getattr(optim if name in OURS else optax, name)


def make_schedule(
  name: str,
  learning_rate: float,
  *,
  steps_per_epoch: int,
  num_steps: int,
  warmup_epochs: float = 0.0,
  boundaries: tuple[float, ...] = (),
  factor: float = 0.1,
  relative: bool = False,
  final: float = 0.0,
  d_model: int = 50,
  warmup_steps: int = 4000,
) -> optax.Schedule:
  """The learning rate as a function of the step.

  Args:
    name: `constant`, `step`, `cosine` or `noam`, which is
      `learning_rate * d_model**-0.5 * min(t**-0.5, t * warmup_steps**-1.5)` at `t = step + 1`.
    learning_rate: its peak, or for `noam` a factor.
    steps_per_epoch: to translate epochs into steps.
    num_steps: length of the run.
    warmup_epochs: linear from 0 over so many epochs, before the rest.
    boundaries: for `step`, the epochs at which the rate is multiplied by `factor`; with `relative`, the
      fractions of the run.
    factor: for `step`.
    relative: for `step`.
    final: for `cosine`, the last learning rate as a fraction of the first.
    d_model: for `noam`, the width of the model.
    warmup_steps: for `noam`, the steps of its linear increase, in the place of `warmup_epochs`.

  Returns:
    An Optax schedule, `step -> learning rate`.

  References:
    Vaswani et al., `Attention Is All You Need`, 2017, Eq. 3 (`noam`).
  """
  warmup = round(warmup_epochs * steps_per_epoch)
  if name == "constant":
    schedule = optax.constant_schedule(learning_rate)
  elif name == "cosine":
    schedule = optax.cosine_decay_schedule(learning_rate, max(num_steps - warmup, 1), alpha=final)
  elif name == "noam":
    schedule = _noam(learning_rate * d_model**-0.5, warmup_steps)
  else:
    unit = num_steps if relative else steps_per_epoch
    # The joined schedule below starts counting after the warm-up; boundaries may coincide in short runs.
    at = collections.Counter(round(boundary * unit) - warmup for boundary in boundaries)
    scales = {boundary: factor**times for boundary, times in at.items()}
    schedule = optax.piecewise_constant_schedule(learning_rate, scales)
  if not warmup:
    return schedule
  return optax.join_schedules([optax.linear_schedule(0.0, learning_rate, warmup), schedule], [warmup])


def _noam(scale: float, warmup_steps: int) -> optax.Schedule:
  def schedule(step: ArrayLike) -> Array:
    t = jnp.asarray(step, jnp.float32) + 1
    return scale * jnp.minimum(t**-0.5, t * warmup_steps**-1.5)

  return schedule


def make_optimizer(
  name: str,
  schedule: optax.Schedule,
  options: Mapping[str, Any],
  *,
  weight_decay: float = 0.0,
  decoupled: bool = False,
  mask: str = "kernels_only",
  clip_norm: float = 0.0,
  constraints: Mapping[str, optax.GradientTransformation] | None = None,
  network: Mapping[str, Any] | None = None,
) -> optax.GradientTransformationExtraArgs:
  """Clipping, coupled decay, the named optimizer, decoupled decay, constraints: in that order.

  Coupled decay adds `weight_decay * w` to the gradient (L2, so an adaptive optimizer rescales it too);
  decoupled decay subtracts `learning_rate * weight_decay * w` from the weights. `adamw` decouples by itself.

  Args:
    name: one of `OPTIMIZERS`.
    schedule: the learning rate.
    options: its keyword arguments.
    weight_decay: 0 for none.
    decoupled: which of the two.
    mask: function in `jaxreg.paths` that says which parameters decay.
    clip_norm: largest global norm of the gradient; 0 for no clipping.
    constraints: transforms that come last, by name.
    network: `apply` and `input_shape`, for what asks for them.

  Returns:
    An Optax chain, with the named parts as keys of its state.

  Raises:
    ValueError: if coupled decay is asked of an optimizer that decouples.
  """
  alias = find(name)
  options = {key: value for key, value in options.items() if value is not None}
  decays = getattr(paths, mask)
  asked = inspect.signature(alias).parameters
  options |= {key: value for key, value in (network or {}).items() if key in asked}
  own_decay = "weight_decay" in asked
  if own_decay:
    if weight_decay and not decoupled:
      raise ValueError(
        f"optimizer.weight_decay.decoupled must be True with optimizer.name={name!r}, which decouples itself"
      )
    options |= {"weight_decay": weight_decay, "mask": decays}
  chain = {}
  if clip_norm:
    chain["clip"] = optax.clip_by_global_norm(clip_norm)
  if weight_decay and not decoupled:
    chain["coupled_decay"] = optax.add_decayed_weights(weight_decay, decays)
  chain[name] = alias(schedule, **options)
  if weight_decay and decoupled and not own_decay:
    chain["decoupled_decay"] = optax.add_decayed_weights(lambda step: -weight_decay * schedule(step), decays)
  return optax.with_extra_args_support(optax.named_chain(*chain.items(), *(constraints or {}).items()))


def unbalance(key: Key, params: Params, std: float) -> Params:
  """The same network of dense layers with its hidden units rescaled, by factors of normal logarithms.

  Args:
    key: typed.
    params: of a `models.MLP` and a head.
    std: of the logarithms.
  """
  layers = len(params["backbone"])
  for i, subkey in enumerate(jax.random.split(key, layers)):
    units = params["backbone"][f"Dense_{i}"]["bias"].shape[0]
    after = f"backbone/Dense_{i + 1}/kernel" if i + 1 < layers else "head/*kernel"
    scales = jnp.exp(std * jax.random.normal(subkey, (units,)))
    params = symmetry.rescale_units(params, scales, incoming=f"backbone/Dense_{i}/*", outgoing=after)
  return params
