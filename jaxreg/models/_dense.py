"""A dense layer with a reparametrised kernel or learned dropout."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxreg import noise, reparam
from jaxreg._checks import check_choice, check_range
from jaxreg._initializers import initializers
from jaxreg._scaled import unit_length
from jaxreg.typing import Array

KINDS = ("weight_norm", "spectral_norm", "concrete_dropout", "variational_dropout")


class Dense(nn.Module):
  """A dense layer with a reparametrised kernel or learned dropout: `[..., inputs] -> [..., features]`.

  The parameters are `kernel` and `bias`, and by `kind`:

  - `weight_norm`: `length`; the layer's kernel is `reparam.weight_norm` of both.
  - `spectral_norm`: none; the layer's kernel is `reparam.spectral_norm` of `kernel`. The vector of the power
    iteration is in the collection `spectral` and changes only in training.
  - `concrete_dropout`: `rate_logit`, for `noise.concrete_dropout` on the inputs.
  - `variational_dropout`: `log_alpha` of each input, for `noise.variational_dropout` on the inputs.

  Learned dropout needs `penalties.learned_dropout` in the loss, divided by the number of training examples.

  Attributes:
    features: number of units.
    kind: `weight_norm`, `spectral_norm`, `concrete_dropout` or `variational_dropout`.
    initializer: `glorot`, `tutorial` or `lecun`; lengths start as the lengths of the kernel.
    num_steps: iterations of `spectral_norm` per step of training.
    initial_rate: initial rate of `concrete_dropout`, in (0, 1).
    initial_log_alpha: initial value of `log_alpha`.
  """

  features: int
  kind: str
  initializer: str = "glorot"
  num_steps: int = 1
  initial_rate: float = 0.1
  initial_log_alpha: float = -3.0

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    check_choice(self.kind, "kind", KINDS)
    init = initializers(self.initializer)
    kernel = self.param("kernel", init["kernel_init"], (x.shape[-1], self.features))
    bias = self.param("bias", init["bias_init"], (self.features,))
    if self.kind == "weight_norm":
      length = self.param("length", lambda key: reparam.weight_norm_init(kernel).astype(jnp.float32))
      kernel = reparam.weight_norm(kernel, length.astype(kernel.dtype))
    elif self.kind == "spectral_norm":
      kernel = self._spectral_norm(kernel, train)
    else:
      x = self._dropped(x, train)
    product = x @ kernel
    return product + jnp.broadcast_to(bias, product.shape)

  def _spectral_norm(self, kernel: Array, train: bool) -> Array:
    def start() -> Array:
      drawn = jax.random.normal(self.make_rng("params"), kernel.shape[-1:], kernel.dtype)
      return unit_length(drawn, (0,))

    u = self.variable("spectral", "u", start)
    kernel, after = reparam.spectral_norm(kernel, u.value, num_steps=self.num_steps)
    if train and not self.is_initializing():
      u.value = after
    return kernel

  def _dropped(self, x: Array, train: bool) -> Array:
    if self.kind == "concrete_dropout":
      rate = self.initial_rate
      check_range(rate, "initial_rate", low=0, high=1, open_low=True, open_high=True)

      def rate_logit(key):
        return jnp.log(jnp.asarray(rate / (1 - rate), jnp.float32))

      learned = {"rate_logit": self.param("rate_logit", rate_logit)}
    else:
      constant = nn.initializers.constant(self.initial_log_alpha)
      learned = {"log_alpha": self.param("log_alpha", constant, x.shape[-1:])}
    return getattr(noise, self.kind)(self.make_rng("dropout"), x, **learned) if train else x
