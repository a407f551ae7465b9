"""KFAC against NumPy."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest

from jaxreg import flatness, losses
from jaxreg.models import convolution

pytestmark = pytest.mark.usefixtures("x64")


def logits_fn(params, batch, *, key):
  layer = params["Dense_2"]
  return jnp.tanh(nets.second(params, batch)) @ layer["kernel"] + layer["bias"][None]


def losses_fn(logits, batch):
  return losses.softmax_cross_entropy(logits, batch["labels"])


def problem(examples=10):
  return nets.make_params(), nets.make_batch(examples=examples)


def conv_fn(params, batch, *, key, convolve=jax.lax.conv_general_dilated):
  """A convolution with stride and padding, a jitted dense layer at each position, and a mean."""
  layer = params["conv"]
  h = convolve(batch["x"], layer["kernel"], (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
  h = jax.nn.relu(h + layer["bias"][None, None, None])
  return jax.jit(jnp.matmul)(h, params["last"]["kernel"]).mean(axis=(1, 2))


def conv_problem():
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape))
  params = {"conv": {"kernel": draw(3, 2, 2, 3), "bias": draw(3)}, "last": {"kernel": draw(3, 4)}}
  return params, {"x": draw(5, 4, 3, 2), "labels": jnp.arange(5) % 4}


def conv_factors(params, batch):
  """Patches with a 1 `[n, positions, 13]` by loops, and gradients in the outputs of a plain sum."""
  x, kernel = np.asarray(batch["x"]), np.asarray(params["conv"]["kernel"])
  padded = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))  # SAME: one row below, one column to the right
  patches = np.stack(
    [padded[:, i : i + 3, j : j + 2].reshape(5, -1) for i, j in itertools.product(range(0, 4, 2), range(3))],
    axis=1,
  )
  z = jnp.asarray(patches @ kernel.reshape(12, 3)) + params["conv"]["bias"][None, None]
  after = lambda z: losses_fn((jax.nn.relu(z) @ params["last"]["kernel"]).mean(axis=1), batch).sum()
  return np.concatenate([np.ones((5, 6, 1)), patches], axis=2), np.asarray(jax.grad(after)(z))


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("chunk_size", [pytest.param(None, marks=pytest.mark.thorough), 2])
def test_kfac_of_a_convolution(corrected, chunk_size):
  """Its factors from patches that NumPy cuts out; EKFAC's scales are mean squares in their eigenvectors."""
  params, batch = conv_problem()
  h, g = conv_factors(params, batch)
  options = {"corrected": corrected, "chunk_size": chunk_size}
  blocks = flatness.kfac(conv_fn, params, batch, losses_fn=losses_fn, **options)
  assert list(blocks) == ["conv/kernel", "last/kernel"]
  a, b = np.einsum("ntk,ntl->kl", h, h) / 30, np.einsum("ntu,ntv->uv", g, g) / 5
  expected = np.kron(a, b)
  if corrected:
    gradients = np.einsum("ntk,ntu->nku", h, g).reshape(5, -1)
    basis = np.kron(np.linalg.eigh(a)[1], np.linalg.eigh(b)[1])
    expected = basis @ np.diag(((gradients @ basis) ** 2).mean(axis=0)) @ basis.T
  found, block = blocks["conv/kernel"].matrix(), blocks["conv/kernel"]
  np.testing.assert_allclose(found, expected, atol=1e-12 * np.abs(expected).max())
  assert float(block.trace()) == pytest.approx(np.trace(expected))
  vector = np.arange(39.0)
  solved = np.linalg.solve(expected + 0.5 * np.eye(39), vector)
  np.testing.assert_allclose(block.solve(vector, damping=0.5), solved, rtol=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_kfac_of_the_convolution_of_our_networks(dtype):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)
  params = {"conv": {"kernel": draw(3, 2, 20, 24), "bias": draw(24)}, "last": {"kernel": draw(24, 4)}}
  batch = {"x": draw(5, 4, 3, 20), "labels": jnp.arange(5) % 4}
  ours, jaxs = (
    flatness.kfac(functools.partial(conv_fn, convolve=convolve), params, batch, losses_fn=losses_fn)
    for convolve in (convolution, jax.lax.conv_general_dilated)
  )
  for a, b in zip(*(jax.tree.leaves(blocks["conv/kernel"].matrix()) for blocks in (ours, jaxs))):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


@pytest.mark.thorough
def test_kfac_of_one_example_is_its_fisher():
  """A dense layer, one position: the Kronecker product of means is the mean of products."""
  params, batch = problem(examples=1)
  blocks = flatness.kfac(logits_fn, params, batch, key=jax.random.key(0), mask="Dense_1/*")
  drawn = jax.random.fold_in(jax.random.key(0), 0)
  fisher = flatness.fisher(logits_fn, params, batch, key=drawn, mask="Dense_1/*")
  np.testing.assert_allclose(blocks["Dense_1/kernel"].matrix(), fisher.matrix(), atol=1e-14)


def test_a_function_without_a_hash_is_refused():
  @dataclasses.dataclass
  class Network:
    width: int = 2

    def __call__(self, params, batch, *, key):
      return batch["x"] @ params["kernel"]

  with pytest.raises(
    TypeError, match=r"^functions must be hashable, .* 'Network'; .*frozen=True or eq=False$"
  ):
    flatness.kfac(Network(), {"kernel": jnp.ones((2, 3))}, {"x": jnp.ones((4, 2))}, num_samples=None)
