"""BatchNorm under jaxreg's loss transforms, with Linen, NNX and Equinox: `python examples/batch_norm.py`.

A loss function reads the running statistics from its batch and returns the new ones beside its value. With
`has_aux=True` every transform passes them on. The attack sees the running statistics, not those of the batch.
"""

import functools

import equinox as eqx
import jax
import optax
from flax import linen as nn
from flax import nnx

from jaxreg import adversarial, losses, objective, penalties

INPUTS = 3 + 2 * jax.random.normal(jax.random.key(0), (64, 8))
LABELS = (INPUTS[:, 0] > 3).astype(int)


def train(logits_fn, params, stats, num_steps=30):
  """`logits_fn(params, stats, x, train) -> (logits, stats)`; the last loss and the last statistics."""

  def loss_fn(params, batch, *, key):
    logits, stats = logits_fn(params, batch["stats"], batch["inputs"], train=True)
    return losses.softmax_cross_entropy(logits, batch["labels"]).mean(), stats

  def attacked_fn(params, batch, *, key):
    logits, _ = logits_fn(params, batch["stats"], batch["inputs"], train=False)
    return losses.softmax_cross_entropy(logits, batch["labels"])

  attack = functools.partial(adversarial.pgd, eps=0.1, num_steps=1, random_start=False)
  robust = adversarial.adversarial_loss(loss_fn, attack, attacked_fn=attacked_fn, has_aux=True)
  terms = {"l2": objective.penalty(penalties.l2, weight=1e-4)}
  regularized = objective.compose(robust, terms, has_aux=True)
  optimizer = optax.adam(1e-2)

  @jax.jit
  def step(params, state, stats):
    batch = {"inputs": INPUTS, "labels": LABELS, "stats": stats}
    (loss, stats), grads = jax.value_and_grad(regularized, has_aux=True)(params, batch, key=None)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, stats, loss

  state, loss = optimizer.init(params), None
  for _ in range(num_steps):
    params, state, stats, loss = step(params, state, stats)
  return loss, stats


def linen():
  class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
      return nn.Dense(2)(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))

  def logits_fn(params, stats, x, train):
    variables = {"params": params, "batch_stats": stats}
    logits, new = Net().apply(variables, x, train, mutable=["batch_stats"])
    return logits, new["batch_stats"]

  variables = Net().init(jax.random.key(1), INPUTS, train=False)
  return train(logits_fn, variables["params"], variables["batch_stats"])


def flax_nnx():
  class Net(nnx.Module):
    def __init__(self, rngs):
      self.norm, self.dense = nnx.BatchNorm(8, momentum=0.9, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
      return self.dense(self.norm(x))

  def logits_fn(params, stats, x, train):
    model = nnx.merge(graph, params, stats, copy=True)
    model.train() if train else model.eval()
    logits = model(x)
    return logits, nnx.state(model, nnx.BatchStat)

  graph, params, stats = nnx.split(Net(nnx.Rngs(1)), nnx.Param, nnx.BatchStat)
  return train(logits_fn, params, stats)


def equinox():
  class Net(eqx.Module):
    norm: eqx.nn.BatchNorm
    dense: eqx.nn.Linear

    def __init__(self, key):
      self.norm = eqx.nn.BatchNorm(8, axis_name="batch", momentum=0.9, mode="batch")
      self.dense = eqx.nn.Linear(8, 2, key=key)

    def __call__(self, x, state):
      x, state = self.norm(x, state)
      return self.dense(x), state

  def logits_fn(params, stats, x, train):
    model = eqx.nn.inference_mode(eqx.combine(params, static), value=not train)
    return jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, stats)

  model, stats = eqx.nn.make_with_state(Net)(jax.random.key(1))
  params, static = eqx.partition(model, eqx.is_inexact_array)
  return train(logits_fn, params, stats)


if __name__ == "__main__":
  for run in (linen, flax_nnx, equinox):
    print(f"{run.__name__}: loss {run()[0]:.3f}")
