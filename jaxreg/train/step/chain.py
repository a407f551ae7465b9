"""The Optax chain of a run, from options."""

from collections.abc import Mapping
from typing import Any

import optax

from jaxreg import paths
from jaxreg.train.lookup import Chosen
from jaxreg.train.step.optimizer import NUMBERS, SHARPNESS_AWARE


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
  network: Mapping[str, Any] | None = None,
) -> optax.GradientTransformationExtraArgs:
  """Chains clipping, coupled decay, the named optimizer, decoupled decay and constraints, in that order.

  Coupled decay adds `weight_decay * w` to the gradient (L2, so an adaptive optimizer rescales it too).
  Decoupled decay subtracts `learning_rate * weight_decay * w` from the weights. `adamw` decouples by itself.
  `sam`, `asam` and `gsam` move to a second point along the plain gradient; the gradient there is
  clipped and decayed.

  Args:
    chosen: the optimizer with its options.
    schedule: the learning rate.
    wrapper: the wrapper of the optimizer with its options.
    weight_decay: the rate of the decay; 0 for none.
    decoupled: whether the decay is decoupled.
    mask: the function in `jaxreg.paths` that says which parameters decay.
    clip_norm: the largest global norm of the gradient; 0 for no clipping.
    constraints: transforms for the end of the chain, by name.
    network: `apply_fn`, `input_shape`, `num_examples` and `prox`, for optimizers that take them.

  Returns:
    An Optax chain, with the named parts as keys of its state.
  """
  name, decays, own_decay = chosen.name, getattr(paths, mask), chosen.needs("weight_decay")
  if own_decay and weight_decay and not decoupled:
    raise ValueError(
      f"optimizer.weight_decay.decoupled must be True with optimizer.name={name!r}, which decouples itself"
    )
  rate = schedule(0) if name in NUMBERS else schedule
  given = {"learning_rate": rate, "max_learning_rate": rate, "weight_decay": weight_decay, "mask": decays}
  step = chosen.bound(**given, **(network or {}))()
  chain = {}
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
    chain["decoupled_decay"] = optax.add_decayed_weights(lambda step: -weight_decay * schedule(step), decays)
  return optax.with_extra_args_support(optax.named_chain(*chain.items(), *(constraints or {}).items()))
