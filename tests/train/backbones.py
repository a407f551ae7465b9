"""Backbones of several module systems, as a user's own module has them."""

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

from jaxreg import models, noise
from jaxreg.train import Backbone


class LinenNet(nn.Module):
  units: int = 8

  @nn.compact
  def __call__(self, x, *, train):
    x = jnp.tanh(nn.Dense(self.units)(x.reshape(len(x), -1)))
    return jnp.tanh(nn.Dense(self.units)(x))


class NNXNet(nnx.Module):
  """Two layers.

  Args:
    units: units of a layer.
    rate: of dropout between the layers.
    norm: whether to normalise between the layers.
  """

  def __init__(self, input_shape, *, units: int = 8, rate: float = 0.0, norm: bool = False, rngs):
    size = input_shape[0] * input_shape[1]
    self.layers = nnx.List([nnx.Linear(size, units, rngs=rngs), nnx.Linear(units, units, rngs=rngs)])
    self.norm = nnx.BatchNorm(units, momentum=0.9, rngs=rngs) if norm else None
    self.dropout = nnx.Dropout(rate, rngs=rngs)
    self.noise = models.NNXNoise(noise.gaussian_noise, std=rate, rngs=rngs)

  def __call__(self, x):
    x = jnp.tanh(self.layers[0](x.reshape(len(x), -1)))
    if self.norm is not None:
      x = self.norm(x)
    return jnp.tanh(self.layers[1](self.noise(self.dropout(x))))


class EquinoxNet(eqx.Module):
  layers: list
  norm: eqx.nn.BatchNorm | None
  dropout: eqx.nn.Dropout

  def __init__(self, input_shape, *, units: int = 8, rate: float = 0.0, norm: bool = False, key):
    one, two = jax.random.split(key)
    size = input_shape[0] * input_shape[1]
    self.layers = [eqx.nn.Linear(size, units, key=one), eqx.nn.Linear(units, units, key=two)]
    self.norm = eqx.nn.BatchNorm(units, "batch", momentum=0.9, mode="batch") if norm else None
    self.dropout = eqx.nn.Dropout(rate)

  def __call__(self, x, state, *, key=None):
    x = jnp.tanh(self.layers[0](x.ravel()))
    if self.norm is not None:
      x, state = self.norm(x, state)
    return jnp.tanh(self.layers[1](self.dropout(x, key=key))), state


def init_fn(key, x):
  shapes = ((x[0].size, 8), (8, 8))
  draw = lambda key, shape: (jax.nn.initializers.glorot_uniform()(key, shape), jnp.zeros(shape[1]))
  return [draw(*each) for each in zip(jax.random.split(key), shapes)]


def apply_fn(params, x):
  x = x.reshape(len(x), -1)
  for kernel, bias in params:
    x = jnp.tanh(x @ kernel + bias[None])
  return x


PLAIN = Backbone(init_fn, apply_fn)


def counted(params, model_state, x, *, key, train):
  """Features with noise and a running mean."""
  x = apply_fn(params, x)
  if train:
    x = x + 0.1 * jax.random.normal(key, x.shape, x.dtype)
    model_state = {"mean": 0.9 * model_state["mean"] + 0.1 * x.mean(0)}
  return x - model_state["mean"][None].astype(x.dtype), model_state


STATEFUL = Backbone(lambda key, x: (init_fn(key, x), {"mean": jnp.zeros(8)}), counted)


class Dropped(nnx.Module):
  """Dropout whose keys come with the call."""

  def __init__(self):
    self.dropout = nnx.Dropout(0.5)

  def __call__(self, x, *, rngs):
    return self.dropout(x.reshape(len(x), -1), rngs=rngs)


class HeldKeys(nnx.Module):
  def __init__(self, rngs):
    self.one, self.two = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

  def __call__(self, x):
    return jnp.stack([self.one(x), self.two(x)], axis=-1).reshape(len(x), -1)


class EquinoxDropped(eqx.Module):
  dropout: eqx.nn.Dropout = eqx.nn.Dropout(0.5)

  def __call__(self, x, *, key):
    return self.dropout(x.ravel(), key=key)


class Wide(nnx.Module):
  def __init__(self, width, *, rngs):
    self.layer = nnx.Linear(64, width, rngs=rngs)
