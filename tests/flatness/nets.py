"""A small network with dropout after its last hidden layer, in plain JAX, and data for it."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg import flatness, losses

INPUTS, HIDDEN, CLASSES, EXAMPLES = 5, (6, 4), 3, 40
KEEP = 0.8


def make_params(seed=0, dtype=np.float64):
  """Kernels and biases as Flax names them."""
  generator = np.random.default_rng(seed)
  sizes = (INPUTS, *HIDDEN, CLASSES)
  return {
    f"Dense_{i}": {
      "kernel": jnp.asarray(generator.normal(size=(a, b)) / np.sqrt(a), dtype),
      "bias": jnp.asarray(0.1 * generator.normal(size=b), dtype),
    }
    for i, (a, b) in enumerate(itertools.pairwise(sizes))
  }


def make_batch(seed=1, dtype=np.float64, examples=EXAMPLES):
  generator = np.random.default_rng(seed)
  return {
    "inputs": jnp.asarray(generator.normal(size=(examples, INPUTS)), dtype),
    "labels": jnp.asarray(generator.integers(CLASSES, size=examples)),
  }


def first(params, batch):
  """Inputs of the second layer."""
  layer = params["Dense_0"]
  return jnp.tanh(batch["inputs"] @ layer["kernel"] + layer["bias"][None])


def second(params, batch):
  """Outputs of the second layer."""
  layer = params["Dense_1"]
  return first(params, batch) @ layer["kernel"] + layer["bias"][None]


def head(params):
  """From the outputs of the second layer to the losses of the examples."""

  def head_fn(z, batch, *, key):
    h = jnp.tanh(z)
    if key is not None:
      h = h * jax.random.bernoulli(key, KEEP, h.shape) / KEEP
    layer = params["Dense_2"]
    logits = h @ layer["kernel"] + layer["bias"][None]
    return losses.softmax_cross_entropy(logits, batch["labels"])

  return head_fn


def loss_fn(params, batch, *, key):
  return head(params)(second(params, batch), batch, key=key).mean()


@functools.cache
def plain_hessian(where):
  return jax_hessian(make_params(), make_batch(), where)


def jax_hessian(params, batch, where, key=None):
  """JAX's own, over the flattened subset."""
  part = flatness.subset(params, where)
  loss = lambda flat: loss_fn(part.merge(flat), batch, key=None if key is None else jax.random.clone(key))
  return np.asarray(jax.jit(jax.hessian(loss))(part.flat))
