"""Merged batches in which unequal numbers of examples count, against one batch of the examples that count."""

import itertools

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxreg import flatness, losses

pytestmark = pytest.mark.usefixtures("x64")

SIZES, COUNTS = (10, 8, 4, 22), (1, 8, 0, 17)  # of the batches, and of the examples in them that count
EDGES = np.cumsum((0, *SIZES))
WHERE = np.concatenate([np.arange(size) < count for size, count in zip(SIZES, COUNTS)])
MASK = "Dense_[12]/*"


def data():
  """The whole batch, with labels of -1 where examples do not count, and the batch of those that do."""
  batch = nets.make_batch(examples=sum(SIZES))
  rows = np.flatnonzero(WHERE)
  counting = jax.tree.map(lambda x: x[rows], batch)
  labels = jnp.where(jnp.asarray(WHERE), batch["labels"], -1)
  return {**batch, "labels": labels, "where": jnp.asarray(WHERE)}, counting


def outputs_fn(params, batch, *, key):
  del key
  layer = params["Dense_2"]
  return jnp.tanh(nets.second(params, batch)) @ layer["kernel"] + layer["bias"][None]


def outer_loss(z, batch):
  """The mean of a part in which nothing counts is 0 / 0."""
  where = batch["where"]
  return losses.softmax_cross_entropy(z, batch["labels"], where=where).sum() / where.sum(), where.sum()


def loss_fn(params, batch, *, key):
  return outer_loss(outputs_fn(params, batch, key=key), batch)


def in_batches(batch):
  return [jax.tree.map(lambda x, a=a, b=b: x[a:b], batch) for a, b in itertools.pairwise(EDGES)]


def gauss_newton(params, counting):
  """The mean of J' A J over the examples that count, from JAX's Jacobians."""
  part = flatness.subset(params, MASK)
  j = jax.jacfwd(lambda flat: outputs_fn(part.merge(flat), counting, key=None))(part.flat)
  p = np.asarray(jax.nn.softmax(outputs_fn(params, counting, key=None)))
  inner = np.einsum("nk,kl->nkl", p, np.eye(nets.CLASSES)) - np.einsum("nk,nl->nkl", p, p)
  return np.einsum("nkd,nkl,nle->de", j, inner, j) / len(p)


FORMS = {
  "list": lambda batch: (in_batches(batch), {}),
  "chunks": lambda batch: (batch, {"chunk_size": 7}),
  "mesh": lambda batch: (
    in_batches(batch),
    {"mesh": jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))},
  ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
def test_a_curvature_weights_batches_by_their_counts(form):
  params, (batch, counting) = nets.make_params(), data()
  parts, options = FORMS[form](batch)
  curvature = flatness.Curvature(loss_fn, params, parts, mask=MASK, **options)
  expected = nets.jax_hessian(params, counting, MASK)
  np.testing.assert_allclose(curvature.matrix(), expected, atol=1e-14)
  top = curvature.top_eigenpairs(key=jax.random.key(0))
  np.testing.assert_allclose(top.values[0], np.linalg.eigvalsh(expected)[-1], rtol=1e-9)
  newton = gauss_newton(params, counting)
  np.testing.assert_allclose(curvature.gauss_newton(outputs_fn, outer_loss).matrix(), newton, atol=1e-14)
  diagonal = curvature.gauss_newton_diagonal(outputs_fn, outer_loss)
  np.testing.assert_allclose(diagonal, np.diag(newton), atol=1e-14)
  layers = flatness.layerwise(curvature, key=jax.random.key(1), num_samples=200, num_steps=0)
  error = np.asarray(layers.traces.standard_error).sum()
  assert abs(float(layers.traces.mean.sum()) - np.trace(expected)) < 4 * error


@pytest.mark.thorough
def test_a_fisher_matrix_counts_every_example():
  """The others have a loss of 0, in batches as in the whole."""
  params, (batch, _) = nets.make_params(), data()
  losses_fn = lambda z, batch: losses.softmax_cross_entropy(z, batch["labels"], where=batch["where"])
  whole = flatness.fisher(outputs_fn, params, batch, losses_fn=losses_fn, mask=MASK).matrix()
  curvature = flatness.Curvature(loss_fn, params, in_batches(batch), mask=MASK)
  np.testing.assert_allclose(curvature.fisher(outputs_fn, losses_fn=losses_fn).matrix(), whole, atol=1e-14)


def test_data_without_an_example_that_counts_are_refused():
  params, (batch, _) = nets.make_params(), data()
  none = {**batch, "where": jnp.zeros(len(WHERE), bool)}
  for batches in (in_batches(none), none):
    curvature = flatness.Curvature(loss_fn, params, batches, mask="Dense_2/bias")
    with pytest.raises(ValueError, match="data must have examples that count in the loss, got the count 0"):
      curvature(jnp.ones(3))


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 4, 7, 100])
def test_chunks_weigh_by_their_counts(size):
  params, (batch, counting) = nets.make_params(), data()
  loss = flatness.chunked(loss_fn, size)
  (value, count), gradient = jax.value_and_grad(loss, has_aux=True)(params, batch, key=None)
  assert count == sum(COUNTS)
  np.testing.assert_allclose(value, nets.loss_fn(params, counting, key=None), rtol=1e-13)
  expected = jax.grad(nets.loss_fn)(params, counting, key=None)
  for x, y in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-14)
  hessian = flatness.hessian(loss, params, batch, mask="Dense_2/*")
  np.testing.assert_allclose(hessian, nets.jax_hessian(params, counting, "Dense_2/*"), atol=1e-14)
  streamed = flatness.Curvature(loss, params, in_batches(batch), mask="Dense_2/*").matrix()
  np.testing.assert_allclose(streamed, hessian, atol=1e-14)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 4, 7, 100])
def test_chunks_of_jacobians_weigh_by_their_counts(size):
  params, (batch, counting) = nets.make_params(), data()
  expected = gauss_newton(params, counting)
  matrix = flatness.gauss_newton_matrix(outputs_fn, outer_loss, params, batch, mask=MASK, chunk_size=size)
  np.testing.assert_allclose(matrix, expected, atol=1e-14)
  options = {"mask": MASK, "chunk_size": size}
  diagonal = flatness.gauss_newton_diagonal(outputs_fn, outer_loss, params, batch, **options)
  np.testing.assert_allclose(diagonal, np.diag(expected), atol=1e-14)
  product = flatness.gauss_newton(outputs_fn, outer_loss, params, batch, mask=MASK)
  np.testing.assert_allclose(product.matrix(), expected, atol=1e-14)


@pytest.mark.thorough
def test_chunks_of_data_that_are_split_over_explicit_axes():
  mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
  params, (batch, counting) = nets.make_params(), data()
  batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
  value, count = flatness.chunked(loss_fn, 8)(params, batch, key=None)
  assert count == sum(COUNTS)
  np.testing.assert_allclose(value, nets.loss_fn(params, counting, key=None), rtol=1e-13)
  expected = gauss_newton(params, counting)
  matrix = flatness.gauss_newton_matrix(outputs_fn, outer_loss, params, batch, mask=MASK, chunk_size=8)
  np.testing.assert_allclose(matrix, expected, atol=1e-14)
  diagonal = flatness.gauss_newton_diagonal(outputs_fn, outer_loss, params, batch, mask=MASK)
  np.testing.assert_allclose(diagonal, np.diag(expected), atol=1e-14)


def noisy_loss(params, batch, *, key):
  """Keeps each input of all examples with probability 1/2: noise that couples the examples of a part."""
  mask = 2.0 * jax.random.bernoulli(key, 0.5, (2,))
  squares = (batch["x"] @ (params * mask) - batch["y"]) ** 2
  where = batch["where"]
  return 0.5 * jnp.where(where, squares, 0).sum() / where.sum(), where.sum()


def parts_of_noise():
  rng, w = np.random.default_rng(0), np.array([0.7, -0.4])
  x, y = rng.normal(size=(9, 2)), rng.normal(size=9)
  where = np.array([1, 0, 0, 1, 1, 1, 1, 0, 0], bool)
  masks = [2.0 * np.array(mask) for mask in itertools.product((0, 1), repeat=2)]

  def gradients(rows):
    """The summed gradients of the rows that count, under each mask."""
    rows = [row for row in rows if where[row]]
    residuals = [x[rows] @ (w * mask) - y[rows] for mask in masks]
    return np.stack([mask * (x[rows].T @ residual) for mask, residual in zip(masks, residuals)])

  def covariance(parts):
    return sum(np.cov(gradients(rows).T, ddof=0) for rows in parts) / where.sum() ** 2

  batch = {"x": jnp.asarray(x), "y": jnp.asarray(y), "where": jnp.asarray(where)}
  return jnp.asarray(w), batch, covariance


@pytest.mark.thorough
def test_noise_of_parts_and_of_examples_weighs_by_the_counts():
  """Covariances of the gradient of the mean over the examples that count, over all masks."""
  w, batch, covariance = parts_of_noise()
  parts = [range(0, 3), range(3, 7), range(7, 9)]  # 1, 4 and 0 examples that count
  batches = [jax.tree.map(lambda x, rows=rows: x[np.array(rows)], batch) for rows in parts]
  samples = flatness.sample_noise_by_parts(noisy_loss, w, batches, key=jax.random.key(0), num_samples=1500)
  expected = covariance(parts)
  np.testing.assert_allclose(samples.T @ samples / len(samples), expected, atol=0.05 * expected.max())
  expected = covariance([[row] for row in range(9)])
  got = flatness.per_example_noise_covariance(
    noisy_loss, w, batch, key=jax.random.key(1), num_samples=4000, chunk_size=4
  )
  np.testing.assert_allclose(got, expected, atol=0.05 * expected.max())


@pytest.mark.thorough
def test_parts_of_unequal_sizes_weigh_by_their_examples():
  w, batch, covariance = parts_of_noise()
  mean_loss = lambda params, batch, *, key: noisy_loss(
    params, {**batch, "where": batch["y"] < jnp.inf}, key=key
  )[0]
  batch = jax.tree.map(lambda x: x[batch["where"]], batch)
  parts = [range(0, 1), range(1, 5)]
  batches = [jax.tree.map(lambda x, rows=rows: x[np.array(rows)], batch) for rows in parts]
  samples = flatness.sample_noise_by_parts(mean_loss, w, batches, key=jax.random.key(0), num_samples=2000)
  expected = covariance([range(0, 3), range(3, 7)])
  np.testing.assert_allclose(samples.T @ samples / len(samples), expected, atol=0.05 * expected.max())
