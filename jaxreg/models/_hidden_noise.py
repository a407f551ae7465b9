"""Noise on hidden features, by the fields that the backbones share."""

from collections.abc import Callable
from functools import partial
from typing import Any

from jaxreg import noise
from jaxreg.typing import Array, Key

ON_UNITS = ("dropout", "gaussian_dropout")
ON_MAPS = ("spatial_dropout", "drop_block")
DROPOUTS = (*ON_UNITS, *ON_MAPS)


def dropped(
  module: Any, x: Array, rate: float, *, train: bool, function: Callable[..., Array] | None = None
) -> Array:
  """Applies `noise.dropout` or another `function` to `x` in training; a rate of 0 draws nothing."""
  if not (train and rate):
    return x
  return (function or noise.dropout)(module.make_rng("dropout"), x, rate=rate)


def make_drop(module: Any) -> Callable[[Key, Array], Array]:
  """Builds the noise `(key, x) -> x` from the fields `dropout`, `dropout_rate` and `block_size`."""
  function = partial(getattr(noise, module.dropout), rate=module.dropout_rate)
  if module.dropout == "spatial_dropout":
    return partial(function, num_spatial=2)
  if module.dropout == "drop_block":

    def drop(key: Key, x: Array) -> Array:
      # A block is at most as large as the map.
      return function(key, x, block_size=min(module.block_size, *x.shape[-3:-1]))

    return drop
  return function


def disturbed(module: Any, x: Array, *, train: bool, kinds: tuple[str, ...] = DROPOUTS) -> Array:
  """Disturbs hidden features in training by `make_drop`, if `dropout` is one of `kinds`, and by `noisy`."""
  if train and module.dropout_rate and module.dropout in kinds:
    x = make_drop(module)(module.make_rng("dropout"), x)
  return noisy(module, x, train=train)


def noisy(module: Any, x: Array, *, train: bool) -> Array:
  """Adds Gaussian noise with the standard deviation `hidden_noise_std` in training."""
  if not (train and module.hidden_noise_std):
    return x
  return noise.gaussian_noise(module.make_rng("dropout"), x, std=module.hidden_noise_std)
