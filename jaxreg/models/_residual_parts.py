"""Parts of residual networks: noise on branches, scales of channels, kernels that are standardised."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from jaxreg import noise, reparam
from jaxreg.typing import Array

BRANCH_NOISES = ("", "stochastic_depth", "shake_drop", "shake_shake")


class LayerScale(nn.Module):
  """Multiplies each channel by a parameter that starts small: `h + LayerScale()(branch(h))`.

  Attributes:
    initial: the value at the start; a deep network begins as nearly its shortcuts alone.

  References:
    Touvron et al., `Going deeper with Image Transformers`, 2021, section 2.
  """

  initial: float = 1e-4

  @nn.compact
  def __call__(self, x: Array) -> Array:
    scale = self.param("scale", nn.initializers.constant(self.initial), x.shape[-1:])
    return x * scale.reshape(*[1] * (x.ndim - 1), -1)


class StandardizedConv(nn.Conv):
  """`nn.Conv` with the kernel `reparam.weight_standardization` of its parameter `kernel`.

  References:
    Qiao et al., `Micro-Batch Training with Batch-Channel Normalization and Weight Standardization`, 2019.
  """

  def param(self, name: str, *args: Any, **kwargs: Any) -> Any:
    value = super().param(name, *args, **kwargs)
    return reparam.weight_standardization(value) if name == "kernel" else value


def branch(module: nn.Module, make: Callable[[], Array], *, kind: str, rate: float, train: bool) -> Array:
  """Drops or scales the branch that `make` computes in training, and returns its mean otherwise."""
  y = make()
  if kind == "shake_shake":
    other = make()
    return noise.shake_shake(module.make_rng("dropout"), y, other) if train else (y + other) / 2
  if not kind or not rate:
    return y
  if train:
    return getattr(noise, kind)(module.make_rng("dropout"), y, rate=rate)
  if kind == "stochastic_depth":  # inverted, so its factor has the mean 1
    return y
  mean = jnp.asarray(1.0 - rate, jnp.promote_types(y.dtype, jnp.float32))
  return (y * mean).astype(y.dtype)
