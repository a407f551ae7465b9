"""What the benchmark of flatness measures on: the paper's network, trained a little on made-up images."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxreg import losses
from jaxreg.models import convolution

INPUTS, CLASSES = 784, 10
KEEP = 0.8
WHERE = "Dense_1/*"


def make_problem(examples, steps, hidden):
  """Parameters with Flax's names, and a batch of noise around a prototype of each class."""
  generator = np.random.default_rng(0)
  labels = generator.integers(CLASSES, size=examples)
  prototypes = generator.random((CLASSES, INPUTS))
  images = 0.15 * prototypes[labels] + 0.85 * generator.random((examples, INPUTS))
  batch = {"inputs": jnp.asarray(images, jnp.float32), "labels": jnp.asarray(labels)}
  params, sizes = {}, (INPUTS, hidden, hidden, CLASSES)
  for number, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
    kernel = generator.normal(size=(fan_in, fan_out)) * np.sqrt(2 / fan_in)
    params[f"Dense_{number}"] = {
      "kernel": jnp.asarray(kernel, jnp.float32),
      "bias": jnp.zeros(fan_out, jnp.float32),
    }
  return trained(params, batch, steps), batch


@partial(jax.jit, static_argnums=2)
def trained(params, batch, steps):
  optimizer = optax.adam(1e-3)

  def step(state, number):
    params, moments = state
    gradients = jax.grad(loss)(params, batch, key=jax.random.fold_in(jax.random.key(7), number))
    updates, moments = optimizer.update(gradients, moments)
    return (optax.apply_updates(params, updates), moments), None

  return jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(steps))[0][0]


def dense(layer, inputs):
  return inputs @ layer["kernel"] + layer["bias"][None]


@jax.jit
def layer(params, batch):
  """Outputs and inputs of the layer between the hidden ones."""
  inputs = jax.nn.relu(dense(params["Dense_0"], batch["inputs"]))
  return dense(params["Dense_1"], inputs), inputs


def make_convolutions(examples, channels=16):
  """A residual ReLU network and made-up images; with 16 channels, a kernel of its block has 2304 weights."""
  generator = np.random.default_rng(0)
  kernel = lambda *shape: jnp.asarray(
    generator.normal(size=shape) * np.sqrt(2 / np.prod(shape[:-1])), jnp.float32
  )
  params = {
    "stem": kernel(3, 3, 3, channels),
    "first": kernel(3, 3, channels, channels),
    "second": kernel(3, 3, channels, channels),
    "last": kernel(channels, CLASSES),
  }
  images = jnp.asarray(generator.normal(size=(examples, 16, 16, 3)), jnp.float32)
  return params, {"inputs": images, "labels": jnp.asarray(generator.integers(CLASSES, size=examples))}


def logits(params, batch, *, key):
  """BatchNorm's running averages are constants, here 0.1 and 1."""
  convolve = lambda x, name: convolution(
    x, params[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )
  x = jax.nn.relu(convolve(batch["inputs"], "stem"))
  x = jax.nn.relu(x + convolve(jax.nn.relu(convolve(x, "first") - 0.1), "second"))
  return x.mean(axis=(1, 2)) @ params["last"]


def outer_loss(outputs, batch):
  return losses.softmax_cross_entropy(outputs, batch["labels"]).mean()


def convolution_loss(params, batch, *, key):
  return outer_loss(logits(params, batch, key=key), batch)


def _head(params, z, batch, *, key):
  hidden = jax.nn.relu(z)
  if key is not None:
    hidden = hidden * jax.random.bernoulli(key, KEEP, hidden.shape) / KEEP
  return losses.softmax_cross_entropy(dense(params["Dense_2"], hidden), batch["labels"])


def loss(params, batch, *, key):
  return _head(params, layer(params, batch)[0], batch, key=key).mean()


def network(params, batch, *, key):
  return dense(params["Dense_2"], jax.nn.relu(layer(params, batch)[0]))


def trace_in_float64(params, batch):
  """The trace of the Hessian of all layers: the network is piecewise linear in each weight."""
  wide = lambda x: np.asarray(x, np.float64)
  kernels, biases = zip(*((wide(layer["kernel"]), wide(layer["bias"])) for layer in params.values()))
  hidden = [wide(batch["inputs"])]
  for kernel, bias in zip(kernels[:2], biases[:2]):
    hidden.append(np.maximum(hidden[-1] @ kernel + bias, 0))
  z = hidden[-1] @ kernels[2] + biases[2]
  p = np.exp(z - z.max(axis=1, keepdims=True))
  p /= p.sum(axis=1, keepdims=True)
  jacobian = np.broadcast_to(
    np.eye(CLASSES), (len(z), CLASSES, CLASSES)
  )  # of the logits in a layer's outputs
  trace = 0.0
  for number in (2, 1, 0):
    mean = np.einsum("nc,ncu->nu", p, jacobian)
    curved = np.einsum("nc,ncu->n", p, jacobian**2) - (mean**2).sum(axis=1)
    trace += (curved * (1 + (hidden[number] ** 2).sum(axis=1))).mean()
    jacobian = (jacobian @ kernels[number].T) * (hidden[number] > 0)[:, None]
  return float(trace)


def save(path, params, batch):
  arrays = {f"{name}/{part}": value for name, layer in params.items() for part, value in layer.items()}
  np.savez(path, **{name: np.asarray(value) for name, value in {**arrays, **batch}.items()})
