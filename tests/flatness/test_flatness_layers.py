"""The curvature of single layers: `DenseLayer` against JAX's dense Hessians, KFAC against NumPy."""

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

WHERE = "Dense_1/*"


@pytest.mark.thorough
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
  "chunk_size", [7, *(pytest.param(size, marks=pytest.mark.thorough) for size in (40, 100))]
)
def test_dense_hessian_is_jax_s(bias, chunk_size):
  params, batch = nets.make_params(), nets.make_batch()
  z, h = nets.second(params, batch), nets.first(params, batch)
  block = flatness.DenseLayer(nets.head(params), z, h, batch, bias=bias, chunk_size=chunk_size).hessian()
  expected = nets.plain_hessian(WHERE if bias else "Dense_1/kernel")
  assert block.size == len(expected)
  np.testing.assert_allclose(block.matrix(), expected, atol=1e-14)
  np.testing.assert_allclose(block.trace(), np.trace(expected), rtol=1e-12)
  np.testing.assert_allclose(block.inner(block), (expected**2).sum(), rtol=1e-12)


@pytest.mark.thorough
def test_dense_hessian_in_float32():
  params, batch = nets.make_params(dtype=np.float32), nets.make_batch(dtype=np.float32)
  block = nets.dense_layer(params, batch).hessian()
  assert block.packed.dtype == np.float32
  generic = flatness.hessian(nets.loss_fn, params, batch, mask=WHERE)
  np.testing.assert_allclose(block.matrix(), generic, atol=4e-7 * np.abs(generic).max())
  expected = nets.plain_hessian(WHERE)
  np.testing.assert_allclose(block.matrix(), expected, atol=4e-7 * np.abs(expected).max() * 4)


@pytest.mark.thorough
def test_dense_hessian_by_a_formula():
  """`curvature_fn` in place of derivatives: for the last layer, diag(p) - p p'."""
  params, batch = nets.make_params(), nets.make_batch()
  h = jnp.tanh(nets.second(params, batch))
  logits = h @ params["Dense_2"]["kernel"] + params["Dense_2"]["bias"][None]

  def curvature(z, batch):
    probs = jax.nn.softmax(z)
    return jax.vmap(jnp.diag)(probs) - probs[:, :, None] * probs[:, None, :]

  head = lambda z, batch, *, key: jnp.zeros(len(z))
  block = flatness.DenseLayer(head, logits, h, batch).hessian(curvature_fn=curvature)
  np.testing.assert_allclose(block.matrix(), nets.plain_hessian("Dense_2/*"), atol=1e-14)


@pytest.mark.thorough
def test_dense_noise_covariance_agrees_with_the_generic_one():
  """Both estimate each example's covariance from many draws; the generic one knows nothing of layers."""
  params, batch = nets.make_params(), nets.make_batch(examples=12)
  dense = nets.dense_layer(params, batch).noise_covariance(key=jax.random.key(0), num_samples=4000)
  generic = flatness.per_example_noise_covariance(
    nets.loss_fn, params, batch, key=jax.random.key(1), num_samples=4000, mask=WHERE, chunk_size=12
  )
  scale = np.sqrt(np.outer(np.diag(generic), np.diag(generic))).max()
  np.testing.assert_allclose(dense.matrix(), generic, atol=6 * scale * np.sqrt(2 / 4000))
  np.testing.assert_allclose(dense.trace(), np.trace(generic), rtol=0.03)


@pytest.mark.thorough
def test_dense_noise_covariance_enumerated():
  """All 2^4 masks of one example, weighted by their probability."""
  params, batch = nets.make_params(), nets.make_batch(examples=3)
  part = flatness.subset(params, WHERE)
  masks = np.array([[(m >> j) & 1 for j in range(4)] for m in range(16)], float)
  probs = np.prod(np.where(masks == 1, nets.KEEP, 1 - nets.KEEP), axis=1)
  layer = params["Dense_2"]

  def loss(flat, mask, example):
    one = jax.tree.map(lambda x: x[example][None], batch)
    hidden = jnp.tanh(nets.second(part.merge(flat), one)) * mask[None] / nets.KEEP
    logits = hidden @ layer["kernel"] + layer["bias"][None]
    return -jax.nn.log_softmax(logits)[0, batch["labels"][example]]

  expected = 0
  for example in range(3):
    gradients = np.asarray(jax.vmap(jax.grad(loss), (None, 0, None))(part.flat, masks, example))
    centred = gradients - probs @ gradients
    expected = expected + centred.T @ (probs[:, None] * centred) / 9
  found = nets.dense_layer(params, batch).noise_covariance(key=jax.random.key(0), num_samples=60_000)
  scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected))).max()
  np.testing.assert_allclose(found.matrix(), expected, atol=6 * scale * np.sqrt(5 / 60_000))


@pytest.mark.thorough
def test_chunks_of_a_layer_draw_from_their_own_keys():
  """The noise of one example a chunk averages out over 400 chunks; one draw for all chunks would not."""
  z, h, key = jnp.zeros((400, 1)), jnp.ones((400, 1)), jax.random.key(0)
  assert abs(float(jax.random.uniform(jax.random.fold_in(key, 0))) - 0.5) > 0.1
  curved = lambda z, batch, *, key: jax.random.uniform(key) * z[:, 0] ** 2 / 2
  hessian = flatness.DenseLayer(curved, z, h, bias=False, chunk_size=1).hessian(key=key)
  assert float(hessian.trace()) == pytest.approx(0.5, abs=4 / np.sqrt(12 * 400))
  sign = lambda z, batch, *, key: jax.random.rademacher(key, (1,), float) * z[:, 0]
  noise = flatness.DenseLayer(sign, z, h, bias=False, chunk_size=1).noise_covariance(key=key)
  assert 400 * float(noise.trace()) == pytest.approx(1, abs=4 / np.sqrt(400))


@pytest.mark.thorough
def test_dense_interval_flatness_is_the_generic_one():
  params, batch = nets.make_params(), nets.make_batch()
  part = flatness.subset(params, WHERE)
  directions = np.linalg.qr(np.random.default_rng(0).normal(size=(part.flat.size, 4)))[0].T
  generic = flatness.interval_flatness(
    nets.loss_fn, params, directions, batch, mask=WHERE, factor=1.2, tol=1e-8
  )
  dense = nets.dense_layer(params, batch).interval_flatness(directions, factor=1.2, tol=1e-8)
  np.testing.assert_allclose(dense.left, generic.left, rtol=1e-7)
  np.testing.assert_allclose(dense.right, generic.right, rtol=1e-7)


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


@pytest.mark.thorough
@pytest.mark.parametrize("corrected", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_kfac_of_a_convolution(corrected):
  """Its factors from patches that NumPy cuts out; EKFAC's scales are mean squares in their eigenvectors."""
  params, batch = conv_problem()
  h, g = conv_factors(params, batch)
  blocks = flatness.kfac(conv_fn, params, batch, losses_fn=losses_fn, corrected=corrected)
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
  blocks = flatness.kfac(logits_fn, params, batch, key=jax.random.key(0), mask="Dense_1/kernel")
  fisher = flatness.fisher(logits_fn, params, batch, key=jax.random.key(0), mask="Dense_1/*")
  np.testing.assert_allclose(blocks["Dense_1/kernel"].matrix(), fisher.matrix(), atol=1e-14)
