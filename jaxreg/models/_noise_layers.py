"""The functions of `jaxreg.noise` as Linen layers, `(x, *, train) -> x`.

The key comes from the `dropout` stream. Outside training, or at rate 0, nothing is drawn and no key is
needed. A `rate` or `std` given to the call replaces the layer's own; it may be traced, so it can follow a
schedule.
"""

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg import noise
from jaxreg.models._layers import initializers
from jaxreg.typing import Array, Key, check_range


class Dropout(nn.Module):
  """Inverted dropout, `noise.dropout`.

  Attributes:
    rate: probability of dropping.
    shared_axes: axes along which one mask is shared.
  """

  rate: float = 0.5
  shared_axes: tuple[int, ...] = ()

  def __call__(self, x: Array, *, train: bool, rate: ArrayLike | None = None) -> Array:
    draw = lambda key, x, rate: noise.dropout(key, x, rate=rate, shared_axes=self.shared_axes)
    return _disturbed(self, draw, x, self.rate if rate is None else rate, train)


class GaussianDropout(nn.Module):
  """Gaussian dropout, `noise.gaussian_dropout`: factors of mean 1 with the variance of dropout's factors.

  Attributes:
    rate: the dropout rate with the same variance.
  """

  rate: float = 0.5

  def __call__(self, x: Array, *, train: bool, rate: ArrayLike | None = None) -> Array:
    draw = lambda key, x, rate: noise.gaussian_dropout(key, x, rate=rate)
    return _disturbed(self, draw, x, self.rate if rate is None else rate, train)


class GaussianNoise(nn.Module):
  """Gaussian noise, `noise.gaussian_noise`, added or multiplied.

  Attributes:
    std: standard deviation of the noise.
    kind: `additive` or `multiplicative`.
  """

  std: float = 0.1
  kind: Literal["additive", "multiplicative"] = "additive"

  def __call__(self, x: Array, *, train: bool, std: ArrayLike | None = None) -> Array:
    draw = lambda key, x, std: noise.gaussian_noise(key, x, std=std, kind=self.kind)
    return _disturbed(self, draw, x, self.std if std is None else std, train)


class AlphaDropout(nn.Module):
  """Alpha dropout, `noise.alpha_dropout`, for use after SELU.

  Attributes:
    rate: probability of dropping.
  """

  rate: float = 0.05

  def __call__(self, x: Array, *, train: bool, rate: ArrayLike | None = None) -> Array:
    draw = lambda key, x, rate: noise.alpha_dropout(key, x, rate=rate)
    return _disturbed(self, draw, x, self.rate if rate is None else rate, train)


class SpatialDropout(nn.Module):
  """Dropout of whole channels of `[batch, *spatial, channels]`, `noise.spatial_dropout`.

  Attributes:
    rate: probability of dropping a channel.
  """

  rate: float = 0.5

  def __call__(self, x: Array, *, train: bool, rate: ArrayLike | None = None) -> Array:
    draw = lambda key, x, rate: noise.spatial_dropout(key, x, rate=rate, num_spatial=x.ndim - 2)
    return _disturbed(self, draw, x, self.rate if rate is None else rate, train)


class DropBlock(nn.Module):
  """Dropout of squares of `[batch, height, width, channels]`, `noise.drop_block`.

  Attributes:
    rate: probability of dropping an entry; the source lets it grow during training.
    block_size: side of a square, odd or even.
    shared_channels: whether the channels of an example share their blocks.
  """

  rate: float = 0.1
  block_size: int | tuple[int, int] = 7
  shared_channels: bool = False

  def __call__(self, x: Array, *, train: bool, rate: ArrayLike | None = None) -> Array:
    draw = lambda key, x, rate: noise.drop_block(
      key, x, rate=rate, block_size=self.block_size, shared_channels=self.shared_channels
    )
    return _disturbed(self, draw, x, self.rate if rate is None else rate, train)


class StochasticDepth(nn.Module):
  """Inverted `noise.stochastic_depth` of a branch: `h + StochasticDepth(0.2)(branch(h), train=train)`.

  Attributes:
    rate: probability of dropping the branch.
    per: whether each `example` or the whole `batch` draws.
  """

  rate: float = 0.5
  per: Literal["example", "batch"] = "example"

  def __call__(self, x: Array, *, train: bool, rate: ArrayLike | None = None) -> Array:
    draw = lambda key, x, rate: noise.stochastic_depth(key, x, rate=rate, per=self.per)
    return _disturbed(self, draw, x, self.rate if rate is None else rate, train)


class ConcreteDropout(nn.Module):
  """Concrete dropout, `noise.concrete_dropout`, with its rate as the parameter `rate_logit`.

  The loss needs `noise.concrete_dropout_kl` for the layer that reads the output, divided by the number of
  training examples: `noise.concrete_dropout_kl(params["Dense_1"]["kernel"],
  rate_logit=params["ConcreteDropout_0"] ["rate_logit"])`.

  Attributes:
    initial_rate: initial rate.
    temperature: temperature of the relaxed masks.
    shared_axes: axes along which one mask is shared, for instance the positions of a feature map.
  """

  initial_rate: float = 0.1
  temperature: float = 0.1
  shared_axes: tuple[int, ...] = ()

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    if not 0 < self.initial_rate < 1:
      raise ValueError(f"initial_rate must lie in (0, 1), got {self.initial_rate}")
    odds = self.initial_rate / (1 - self.initial_rate)
    logit = self.param("rate_logit", lambda key: jnp.log(jnp.asarray(odds, jnp.float32)))
    if not train:
      return x
    return noise.concrete_dropout(
      self.make_rng("dropout"),
      x,
      rate_logit=logit,
      temperature=self.temperature,
      shared_axes=self.shared_axes,
    )


class DropConnectDense(nn.Module):
  """A dense layer with `noise.dropconnect`: `[..., inputs] -> [..., features]`; parameters as `nn.Dense`.

  Attributes:
    features: number of units.
    rate: probability of dropping a weight.
    per_example: whether each example has its own mask.
    initializer: `glorot` or `tutorial`.
  """

  features: int
  rate: float = 0.5
  per_example: bool = True
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, x: Array, *, train: bool, rate: ArrayLike | None = None) -> Array:
    init = initializers(self.initializer)
    kernel = self.param("kernel", init["kernel_init"], (x.shape[-1], self.features))
    bias = self.param("bias", init["bias_init"], (self.features,))
    rate = self.rate if rate is None else rate
    if not train or _is_zero(rate):
      product = x @ kernel
      return product + jnp.broadcast_to(bias, product.shape)
    key = self.make_rng("dropout")
    return noise.dropconnect(key, x, kernel, rate=rate, bias=bias, per_example=self.per_example)


def _disturbed(
  module: nn.Module, draw: Callable[[Key, Array, ArrayLike], Array], x: Array, size: ArrayLike, train: bool
) -> Array:
  check_range(size, "rate or std", low=0)
  return draw(module.make_rng("dropout"), x, size) if train and not _is_zero(size) else x


def _is_zero(size: ArrayLike) -> bool:
  # On the host: inside jit, comparisons of arrays are traced even if the values are known.
  return not isinstance(size, Tracer) and bool(np.asarray(size) == 0)
