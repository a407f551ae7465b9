"""A recurrent network with recurrent dropout and weight noise."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxreg import noise
from jaxreg._checks import check_choice, check_count, check_range
from jaxreg.models._hidden_noise import dropped
from jaxreg.typing import Array


class RNN(nn.Module):
  """Reads a sequence and returns its last state: `[batch, time, ...] -> [batch, width]`.

  An image is read row by row. The cell is Elman's or a gated recurrent unit.

  Attributes:
    width: units of the state.
    cell: `tanh` or `gru`.
    input_dropout_rate: probability of dropping an input, with the same mask at every step.
    dropout_rate: probability of dropping a unit of the state when it is read, with the same mask at every
      step.
    num_kept: number of steps of each sequence to read in training, drawn per sequence; 0 for all.
    weight_noise_std: standard deviation of the noise on the kernels at every step; 0 for none.
    weight_noise_kind: `additive` or `multiplicative`.
    weight_noise_cumulative: whether the noise accumulates over the steps.
    weight_noise_per_step: whether each step draws, or a sequence shares one draw. Examples share it.

  References:
    Elman, `Finding Structure in Time`, 1990.
    Cho et al., `Learning Phrase Representations using RNN Encoder-Decoder`, 2014, section 2.3.
    Gal and Ghahramani, `A Theoretically Grounded Application of Dropout in Recurrent Neural Networks`, 2016.
    Jim, Giles and Horne, `An Analysis of Noise in Recurrent Neural Networks`, 1996.
  """

  width: int = 64
  cell: Literal["tanh", "gru"] = "tanh"
  input_dropout_rate: float = 0.0
  dropout_rate: float = 0.0
  num_kept: int = 0
  weight_noise_std: float = 0.0
  weight_noise_kind: Literal["additive", "multiplicative"] = "additive"
  weight_noise_cumulative: bool = False
  weight_noise_per_step: bool = True

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    if x.ndim < 3:
      raise ValueError(f"RNN needs sequences [batch, time, ...] or images, got {x.shape}")
    check_count(self.width, "width")
    check_choice(self.cell, "cell", ("tanh", "gru"))
    check_range(self.weight_noise_std, "weight_noise_std", low=0)
    x = x.reshape(*x.shape[:2], -1)
    if train and self.num_kept:
      x = noise.token_dropout(self.make_rng("dropout"), x, num_kept=self.num_kept)
    state = jnp.zeros((x.shape[0], self.width), x.dtype)
    x = dropped(self, x, self.input_dropout_rate, train=train, function=noise.recurrent_dropout)
    mask = dropped(self, jnp.ones_like(state), self.dropout_rate, train=train)
    gates = 3 if self.cell == "gru" else 1
    of_input = _Gates(self.width, gates, True, nn.initializers.glorot_uniform(), name="input")
    of_state = _Gates(self.width, gates, False, nn.initializers.orthogonal(), name="recurrent")
    params = {"input": of_input(x.shape[-1]), "recurrent": of_state(self.width)}
    noisy = train and self.weight_noise_std > 0
    key = self.make_rng("dropout") if noisy else None
    cell = _gru if self.cell == "gru" else _tanh

    def step(carry, x_t):
      state, weights = carry[0], params
      if key is not None:
        weights, path = noise.rnn_weight_noise(
          key,
          params,
          carry[1],
          std=self.weight_noise_std,
          kind=self.weight_noise_kind,
          cumulative=self.weight_noise_cumulative,
          per_step=self.weight_noise_per_step,
        )
        carry = (state, path)
      return (cell(weights, x_t, state * mask, state), *carry[1:]), None

    carry = (state, noise.rnn_weight_noise_init(params)) if noisy else (state,)
    return jax.lax.scan(step, carry, jnp.swapaxes(x, 0, 1))[0][0]


class _Gates(nn.Module):
  """The weights of one or more gates side by side, each initialised as a separate layer."""

  width: int
  gates: int
  use_bias: bool
  init: Callable[..., Array]

  @nn.compact
  def __call__(self, features: int) -> dict[str, Array]:
    def init(key, shape):
      each = [self.init(k, (shape[0], self.width)) for k in jax.random.split(key, self.gates)]
      return jnp.concatenate(each, axis=-1)

    size = self.gates * self.width
    weights = {"kernel": self.param("kernel", init, (features, size))}
    if self.use_bias:
      weights["bias"] = self.param("bias", nn.initializers.zeros_init(), (size,))
    return weights


def _affine(weights: dict[str, Array], x: Array) -> Array:
  product = x @ weights["kernel"]
  return product + jnp.broadcast_to(weights["bias"], product.shape)


def _tanh(weights: Any, x: Array, read: Array, state: Array) -> Array:
  del state
  return jnp.tanh(_affine(weights["input"], x) + read @ weights["recurrent"]["kernel"])


def _gru(weights: Any, x: Array, read: Array, state: Array) -> Array:
  """Computes `(1 - z) n + z h` with update gate `z`; the reset gate multiplies the state's part in `n`."""
  of_input = jnp.split(_affine(weights["input"], x), 3, axis=-1)
  of_state = jnp.split(read @ weights["recurrent"]["kernel"], 3, axis=-1)
  reset, update = (nn.sigmoid(a + b) for a, b in zip(of_input[:2], of_state[:2]))
  new = jnp.tanh(of_input[2] + reset * of_state[2])
  return (1 - update) * new + update * state
