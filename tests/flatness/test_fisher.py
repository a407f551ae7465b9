"""Fisher matrices, KFAC and damped solves against enumeration, JAX's dense Jacobians and NumPy."""

import itertools

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest

from jaxreg import flatness, losses


@pytest.fixture(autouse=True)
def _x64():
  with jax.enable_x64(True):
    yield


def logits_fn(params, batch, *, key):
  layer = params["Dense_2"]
  return jnp.tanh(nets.second(params, batch)) @ layer["kernel"] + layer["bias"][None]


def losses_fn(logits, batch):
  return losses.softmax_cross_entropy(logits, batch["labels"])


def per_label(params, batch, where):
  """`[n, classes, size]`: the gradients of the losses of every label, by `jax.jacrev`."""
  part = flatness.subset(params, where)
  log_probs = lambda flat: jax.nn.log_softmax(logits_fn(part.merge(flat), batch, key=None))
  return np.asarray(jax.jit(jax.jacrev(log_probs))(part.flat)), np.exp(log_probs(part.flat))


def problem(examples=10):
  return nets.make_params(), nets.make_batch(examples=examples)


def test_fisher_is_the_mean_over_drawn_labels():
  """Within four standard errors of the sum over all labels, by probability; products of a list agree."""
  params, batch = problem()
  gradients, probs = per_label(params, batch, "Dense_1/bias")
  outer = gradients[..., :, None] * gradients[..., None, :]
  exact = np.einsum("nc,ncde->de", probs, outer) / 10
  second = np.einsum("nc,ncde->nde", probs, outer**2)
  error = np.sqrt((second - np.einsum("nc,ncde->nde", probs, outer) ** 2).sum(axis=0) / 4000) / 10
  options = {"key": jax.random.key(0), "num_samples": 4000}
  found = flatness.fisher(logits_fn, params, batch, mask="Dense_1/bias", **options).matrix()
  assert (np.abs(found - exact) < 4 * error).all()
  curvature = flatness.Curvature(nets.loss_fn, params, [batch], mask="Dense_1/bias").fisher(
    logits_fn, **options
  )
  assert (np.abs(curvature.matrix() - exact) < 4 * error).all()


def test_empirical_fisher():
  params, batch = problem()
  gradients = per_label(params, batch, "Dense_[12]/*")[0][np.arange(10), np.asarray(batch["labels"])]
  expected = gradients.T @ gradients / 10
  options = {"losses_fn": losses_fn}
  found = flatness.fisher(logits_fn, params, batch, mask="Dense_[12]/*", **options).matrix()
  np.testing.assert_allclose(found, expected, atol=1e-14)
  curvature = flatness.Curvature(nets.loss_fn, params, batch, mask="Dense_[12]/*", chunk_size=4)
  np.testing.assert_allclose(curvature.fisher(logits_fn, **options).matrix(), expected, atol=1e-14)


@pytest.mark.parametrize("streamed", [False, True])
def test_damped_solve_is_numpy_s(streamed):
  params, batch = problem()
  operator = flatness.fisher(logits_fn, params, batch, losses_fn=losses_fn, mask="Dense_2/*")
  matrix, vector = np.asarray(operator.matrix()), np.arange(15.0)
  if streamed:
    operator = flatness.Curvature(nets.loss_fn, params, batch, mask="Dense_2/*").fisher(
      logits_fn, losses_fn=losses_fn
    )
  found = flatness.damped_solve(operator, vector, damping=0.1, tol=1e-12)
  np.testing.assert_allclose(found.x, np.linalg.solve(matrix + 0.1 * np.eye(15), vector), rtol=1e-9)
  assert found.converged
  assert not flatness.damped_solve(operator, vector, damping=0.1, tol=1e-12, num_steps=2).converged


def conv_fn(params, batch, *, key):
  """A convolution with stride and padding, a jitted dense layer at each position, and a mean."""
  layer = params["conv"]
  h = jax.lax.conv_general_dilated(
    batch["x"], layer["kernel"], (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )
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


def test_kfac_of_one_example_is_its_fisher():
  """A dense layer, one position: the Kronecker product of means is the mean of products."""
  params, batch = problem(examples=1)
  blocks = flatness.kfac(logits_fn, params, batch, key=jax.random.key(0), mask="Dense_1/kernel")
  fisher = flatness.fisher(logits_fn, params, batch, key=jax.random.key(0), mask="Dense_1/*")
  np.testing.assert_allclose(blocks["Dense_1/kernel"].matrix(), fisher.matrix(), atol=1e-14)


def test_bad_arguments():
  params, batch = problem()
  ones = {"a": {"kernel": jnp.ones((2, 2))}}
  kfac = lambda fn: flatness.kfac(fn, ones, jnp.ones((3, 2)), key=jax.random.key(0))
  for message, call in (
    (
      "likelihood must be one of",
      lambda: flatness.fisher(logits_fn, params, batch, key=jax.random.key(0), likelihood="x"),
    ),
    (
      "a/kernel must be used by one layer once",
      lambda: kfac(lambda p, x, *, key: x @ p["a"]["kernel"] @ p["a"]["kernel"]),
    ),
    ("a/kernel must be the right side", lambda: kfac(lambda p, x, *, key: x @ p["a"]["kernel"].T)),
    ("a/kernel is the kernel of no", lambda: kfac(lambda p, x, *, key: x)),
    (
      "the layer of a/kernel must have the examples on the leading axis",  # here all tokens of all examples
      lambda: kfac(lambda p, x, *, key: (jnp.stack([x, x], 1).reshape(-1, 2) @ p["a"]["kernel"])[::2]),
    ),
    (
      "the layer of a/kernel must have the examples on the leading axis",  # as many rows, by chance
      lambda: kfac(lambda p, x, *, key: x @ (jnp.ones((3, 2)) @ p["a"]["kernel"]).T),
    ),
    (
      r"apply_fn must return \[n, ..., classes\] for categorical, got \(10,\)",
      lambda: flatness.fisher(
        lambda p, b, *, key: logits_fn(p, b, key=key)[:, 0], params, batch, key=jax.random.key(0)
      )(jnp.ones(79)),
    ),
    ("damping must", lambda: flatness.damped_solve(lambda v: v, jnp.ones(2), damping=-1.0)),
    (
      r"losses_fn must return \(10,\)",
      lambda: flatness.fisher(logits_fn, params, batch, losses_fn=lambda z, b: z)(jnp.ones(79)),
    ),
  ):
    with pytest.raises(ValueError, match=message):
      call()
  with pytest.raises(TypeError, match=r"vector must be \[size\], got a tree"):
    flatness.damped_solve(lambda v: v, ones, damping=1.0)
  noisy = lambda p, x, *, key: x @ p["a"]["kernel"] + jax.random.normal(key, (3, 2))
  with pytest.raises(TypeError, match="apply_fn must draw no noise when it gets key=None"):
    kfac(noisy)
