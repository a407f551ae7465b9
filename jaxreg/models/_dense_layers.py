"""Dense layers with reparametrised kernels or learned dropout: `[..., inputs] -> [..., features]`."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike

from jaxreg import noise, reparam
from jaxreg._checks import check_range
from jaxreg.models._layers import initializers
from jaxreg.typing import Array


class WeightNormDense(nn.Module):
  """A dense layer with the kernel `reparam.weight_norm` of the parameters `kernel` and `length`.

  Attributes:
    features: number of units.
    initializer: `glorot`, `tutorial` or `lecun`; the lengths start as the kernel's lengths.
  """

  features: int
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    del train
    kernel, bias = _parameters(self, x, self.features, self.initializer)
    length = self.param("length", lambda key: reparam.weight_norm_init(kernel).astype(jnp.float32))
    return _affine(x, reparam.weight_norm(kernel, length.astype(kernel.dtype)), bias)


class SpectralNormDense(nn.Module):
  """A dense layer with the kernel `reparam.spectral_norm` of the parameter `kernel`.

  The vector of the power iteration is in the collection `spectral` and changes only in training.

  Attributes:
    features: number of units.
    num_steps: iterations per step of training.
    initializer: `glorot`, `tutorial` or `lecun`.
  """

  features: int
  num_steps: int = 1
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    kernel, bias = _parameters(self, x, self.features, self.initializer)
    start = lambda: reparam.spectral_norm_init(self.make_rng("params"), kernel)
    u = self.variable("spectral", "u", start)
    kernel, after = reparam.spectral_norm(kernel, u.value, num_steps=self.num_steps)
    if train and not self.is_initializing():
      u.value = after
    return _affine(x, kernel, bias)


class ConcreteDropoutDense(nn.Module):
  """A dense layer with `noise.concrete_dropout` on its inputs; the parameter `rate_logit` is its rate.

  The loss needs `penalties.learned_dropout` divided by the number of training examples.

  Attributes:
    features: number of units.
    initial_rate: initial rate, in (0, 1).
    initializer: `glorot`, `tutorial` or `lecun`.
  """

  features: int
  initial_rate: float = 0.1
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    check_range(self.initial_rate, "initial_rate", low=0, high=1, open_low=True, open_high=True)
    kernel, bias = _parameters(self, x, self.features, self.initializer)
    odds = self.initial_rate / (1 - self.initial_rate)
    logit = self.param("rate_logit", lambda key: jnp.log(jnp.asarray(odds, jnp.float32)))
    if train:
      x = noise.concrete_dropout(self.make_rng("dropout"), x, rate_logit=logit)
    return _affine(x, kernel, bias)


class DropConnectDense(nn.Module):
  """A dense layer with `noise.dropconnect`; parameters as `nn.Dense`.

  A `rate` given to the call replaces the layer's own; it may be traced.

  Attributes:
    features: number of units.
    rate: probability of dropping a weight.
    per_example: whether each example has its own mask.
    initializer: `glorot`, `tutorial` or `lecun`.
  """

  features: int
  rate: float = 0.5
  per_example: bool = True
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, x: Array, *, train: bool, rate: ArrayLike | None = None) -> Array:
    kernel, bias = _parameters(self, x, self.features, self.initializer)
    key = self.make_rng("dropout") if train else None
    rate = self.rate if rate is None else rate
    return noise.dropconnect(key, x, kernel, rate=rate, bias=bias, per_example=self.per_example)


class VariationalDropoutDense(nn.Module):
  """A dense layer with `noise.variational_dropout` on its inputs; each has a parameter `log_alpha`.

  The loss needs `penalties.learned_dropout` divided by the number of training examples.

  Attributes:
    features: number of units.
    initial_log_alpha: initial value of `log_alpha`.
    initializer: `glorot`, `tutorial` or `lecun`.
  """

  features: int
  initial_log_alpha: float = -3.0
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    kernel, bias = _parameters(self, x, self.features, self.initializer)
    start = nn.initializers.constant(self.initial_log_alpha)
    log_alpha = self.param("log_alpha", start, (x.shape[-1],))
    if train:
      x = noise.variational_dropout(self.make_rng("dropout"), x, log_alpha=log_alpha)
    return _affine(x, kernel, bias)


def _parameters(module: nn.Module, x: Array, features: int, initializer: str) -> tuple[Any, Any]:
  init = initializers(initializer)
  kernel = module.param("kernel", init["kernel_init"], (x.shape[-1], features))
  return kernel, module.param("bias", init["bias_init"], (features,))


def _affine(x: Array, kernel: Array, bias: Array) -> Array:
  product = x @ kernel
  return product + jnp.broadcast_to(bias, product.shape)
