"""Backbones of several module systems, as a user's own module has them."""

import functools

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


class LinenNorm(nn.Module):
  """Dropout, whose noise BatchNorm would normalise away in training mode; so are all that follow."""

  units: int = 3
  rate: float = 0.5

  @nn.compact
  def __call__(self, x, *, train):
    x = nn.Dropout(self.rate, deterministic=not train)(nn.Dense(self.units)(x.reshape(len(x), -1)))
    return nn.BatchNorm(use_running_average=not train, momentum=0.5)(x)


class LinenNormField(nn.Module):
  """The mode of BatchNorm in its call, inside of a lifted module, after a spectral norm."""

  units: int = 3
  rate: float = 0.5

  @nn.compact
  def __call__(self, x, *, train):
    x = nn.SpectralNorm(nn.Dense(self.units))(x.reshape(len(x), -1), update_stats=train)
    x = models.Dense(self.units, "spectral_norm")(x, train=train)
    x = nn.Dropout(self.rate, deterministic=not train)(x)
    return nn.remat(LinenInner, static_argnums=(2,))()(x, train)


class LinenInner(nn.Module):
  @nn.compact
  def __call__(self, x, train):
    return nn.BatchNorm(momentum=0.5)(x, use_running_average=not train)


class NNXNorm(nnx.Module):
  def __init__(self, input_shape, *, units: int = 3, rate: float = 0.5, rngs):
    self.layer = nnx.Linear(input_shape[0] * input_shape[1], units, rngs=rngs)
    self.dropout, self.norm = nnx.Dropout(rate, rngs=rngs), nnx.BatchNorm(units, momentum=0.5, rngs=rngs)

  def __call__(self, x):
    return self.norm(self.dropout(self.layer(x.reshape(len(x), -1))))


class EquinoxNorm(eqx.Module):
  layer: eqx.nn.Linear
  norm: eqx.nn.BatchNorm
  dropout: eqx.nn.Dropout

  def __init__(self, input_shape, *, units: int = 3, rate: float = 0.5, key):
    self.layer = eqx.nn.Linear(input_shape[0] * input_shape[1], units, key=key)
    self.norm = eqx.nn.BatchNorm(units, "batch", momentum=0.5, mode="ema")
    self.dropout = eqx.nn.Dropout(rate)

  def __call__(self, x, state, *, key=None):
    return self.norm(self.dropout(self.layer(x.ravel()), key=key), state)


def normalised(params, model_state, x, *, key, train, use_running_average, rate=0.5):
  x = noise.dropout(key, x.reshape(len(x), -1) @ params["kernel"], rate=rate)
  if use_running_average:
    mean = model_state["mean"]
  else:
    mean = x.mean(0)
    model_state = {"mean": 0.5 * model_state["mean"] + 0.5 * mean}
  return x - mean[None], model_state


def init_normalised(key, x):
  return {"kernel": jax.random.normal(key, (x[0].size, 3)) / 8}, {"mean": jnp.zeros(3)}


PLAIN_NORM = Backbone(init_normalised, normalised)
SILENT_PLAIN_NORM = Backbone(init_normalised, functools.partial(normalised, rate=0.0))


class LinenOwnStatistics(nn.Module):
  """Statistics of a layer of one's own, which keeps them when its collection is not mutable."""

  guarded: bool = True

  @nn.compact
  def __call__(self, x, *, train):
    x = x.reshape(len(x), -1)
    mean = self.variable("batch_stats", "mean", jnp.zeros, x.shape[1:])
    if train and not (self.guarded and not self.is_mutable_collection("batch_stats")):
      mean.value = x.mean(0)
    return x - (x.mean(0) if train else mean.value)[None]


class NNXModeInCall(NNXNorm):
  def __call__(self, x, *, train):
    return self.norm(self.dropout(self.layer(x.reshape(len(x), -1))), use_running_average=not train)


class EquinoxModeInCall(EquinoxNorm):
  def __call__(self, x, state, *, train, key=None):
    return self.norm(self.dropout(self.layer(x.ravel()), key=key), state, inference=not train)
