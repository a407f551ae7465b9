"""Regularizers in a step of your own, with any library of models: `python examples/objective.py`.

Plain JAX, Linen, NNX, Equinox and, if it is installed, Haiku. The loss function returns its outputs, too, and
`compose` is the one line that is added to the step, on one device or several, or with many weights at once.
"""

import functools
import importlib.util

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxreg import losses, noise, objective, penalties

BATCH = {"inputs": jax.random.normal(jax.random.key(0), (16, 8)), "labels": jnp.arange(16) % 4}


def r_drop(key, view):
  return losses.r_drop(view.aux["logits"], view.again(key=key).aux["logits"])


def hidden(key, view):
  return penalties.l1_activity(view.aux["hidden"])


TERMS = {
  "l2": objective.penalty(penalties.l2, weight=1e-3),
  "r_drop": objective.example_term(r_drop, weight=optax.linear_schedule(0.0, 1.0, transition_steps=20)),
  "activity": objective.example_term(hidden, weight=1e-3),
  "inputs": objective.perturbation(noise.gaussian_noise, on="inputs", std=0.3),
}


def loss_of(outputs_fn, params, batch, *, key):
  """The user's loss: one value an example, and what terms may look at."""
  outputs = outputs_fn(params, batch["inputs"])
  return losses.softmax_cross_entropy(outputs["logits"], batch["labels"]), outputs


def train(outputs_fn, params, terms=TERMS, num_steps=20):
  """The user's step, in which `regularized` stands where `loss_fn` stood."""
  loss_fn = functools.partial(loss_of, outputs_fn)
  regularized = objective.compose(loss_fn, terms, has_aux=True)
  optimizer = optax.adam(1e-2)

  @jax.jit
  def step(params, state, batch, key, number):
    grad_fn = jax.value_and_grad(regularized, has_aux=True)
    (loss, _), grads = grad_fn(params, batch, key=key, step=number)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss

  state, history = optimizer.init(params), []
  for number in range(num_steps):
    key = jax.random.fold_in(jax.random.key(1), number)
    params, state, loss = step(params, state, BATCH, key, number)
    history.append(float(loss))
  return params, history, regularized


def plain():
  def outputs_fn(params, x):
    hidden = jnp.tanh(x @ params["hidden"]["kernel"])
    return {"hidden": hidden, "logits": hidden @ params["out"]["kernel"]}

  draw = lambda seed, *shape: 0.3 * jax.random.normal(jax.random.key(seed), shape)
  return outputs_fn, {"hidden": {"kernel": draw(2, 8, 16)}, "out": {"kernel": draw(3, 16, 4)}}


def linen():
  class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
      hidden = jnp.tanh(nn.Dense(16)(x))
      return {"hidden": hidden, "logits": nn.Dense(4)(hidden)}

  return Net().apply, Net().init(jax.random.key(2), BATCH["inputs"])


def flax_nnx():
  class Net(nnx.Module):
    def __init__(self, rngs):
      self.first, self.last = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
      hidden = jnp.tanh(self.first(x))
      return {"hidden": hidden, "logits": self.last(hidden)}

  graph, params = nnx.split(Net(nnx.Rngs(2)))
  return lambda params, x: nnx.merge(graph, params)(x), params


def equinox():
  class Net(eqx.Module):
    first: eqx.nn.Linear
    last: eqx.nn.Linear

    def __call__(self, x):
      hidden = jnp.tanh(self.first(x))
      return {"hidden": hidden, "logits": self.last(hidden)}

  one, two = jax.random.split(jax.random.key(2))
  net = Net(eqx.nn.Linear(8, 16, key=one), eqx.nn.Linear(16, 4, key=two))
  params, static = eqx.partition(net, eqx.is_inexact_array)
  return lambda params, x: jax.vmap(eqx.combine(params, static))(x), params


def haiku():
  import haiku as hk

  def net(x):
    hidden = jnp.tanh(hk.Linear(16)(x))
    return {"hidden": hidden, "logits": hk.Linear(4)(hidden)}

  model = hk.without_apply_rng(hk.transform(net))
  l2 = objective.penalty(penalties.l2, weight=1e-3, mask="*/w")  # as Haiku calls its kernels
  return model.apply, model.init(jax.random.key(2), BATCH["inputs"]), {**TERMS, "l2": l2}


def sharded_gradient(regularized, params):
  """On all devices, the batch split: under `jit`, noise and means belong to the whole batch."""
  mesh = Mesh(np.array(jax.devices()), ("data",))
  batch = jax.device_put(BATCH, NamedSharding(mesh, PartitionSpec("data")))
  return jax.jit(jax.grad(regularized, has_aux=True))(params, batch, key=jax.random.key(4), step=20)[0]


def sweep(outputs_fn, params, weights, num_steps=20):
  """Trains with each weight of a penalty, all in one program; returns the norms of the parameters."""

  def trained(weight):
    terms = {"l2": objective.penalty(penalties.l2, weight=weight)}
    regularized = objective.compose(functools.partial(loss_of, outputs_fn), terms, has_aux=True)

    def step(params, _):
      gradient, _ = jax.grad(regularized, has_aux=True)(params, BATCH)
      return jax.tree.map(lambda param, slope: param - 0.1 * slope, params, gradient), None

    return optax.tree.norm(jax.lax.scan(step, params, length=num_steps)[0])

  return jax.jit(jax.vmap(trained))(weights)


HISTORY = {}
for form in (plain, linen, flax_nnx, equinox, *([haiku] if importlib.util.find_spec("haiku") else [])):
  trained, HISTORY[form.__name__], regularized = train(*form())
  first, *_, last = HISTORY[form.__name__]
  print(f"{form.__name__}: loss {first:.3f}, after 20 steps {last:.3f}")

report = regularized.report(trained, BATCH, key=jax.random.key(4), step=20)
whole = jax.jit(jax.grad(regularized, has_aux=True))(trained, BATCH, key=jax.random.key(4), step=20)[0]
split = sharded_gradient(regularized, trained)
print(report)
norms = sweep(*plain(), jnp.array([0.0, 0.01, 0.1, 1.0]))
print("norms of the parameters for four weights of the penalty:", norms)
