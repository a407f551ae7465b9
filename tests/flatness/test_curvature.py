import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg import flatness, losses

WHERE = "Dense_1/*"


@pytest.fixture(autouse=True)
def _x64():
  with jax.enable_x64(True):
    yield


@functools.cache
def _plain_hessian(where):
  return _jax_hessian(nets.make_params(), nets.make_batch(), where)


def _jax_hessian(params, batch, where, key=None):
  """JAX's own, over the flattened subset."""
  part = flatness.subset(params, where)
  loss = lambda flat: nets.loss_fn(
    part.merge(flat), batch, key=None if key is None else jax.random.clone(key)
  )
  return np.asarray(jax.jit(jax.hessian(loss))(part.flat))


def dense_layer(params, batch, **options):
  z, h = nets.second(params, batch), nets.first(params, batch)
  return flatness.DenseLayer(nets.head(params), z, h, batch, **options)


def test_quadratic_form():
  matrix = np.array([[2.0, 1, 0], [1, 3, -1], [0, -1, 4]])
  loss = lambda params, batch, *, key: 0.5 * params @ batch @ params
  product = flatness.hvp(loss, jnp.ones(3), jnp.asarray(matrix))
  np.testing.assert_allclose(product(jnp.array([1.0, 2, 3])), matrix @ [1, 2, 3], rtol=1e-14)
  np.testing.assert_allclose(flatness.hessian(loss, jnp.ones(3), jnp.asarray(matrix)), matrix, rtol=1e-14)


@pytest.mark.parametrize("mask", [WHERE, "*"])
@pytest.mark.parametrize("chunk_size", [pytest.param(1, marks=pytest.mark.thorough), 5])
def test_hessian_is_jax_s(mask, chunk_size):
  params, batch = nets.make_params(), nets.make_batch()
  found = flatness.hessian(nets.loss_fn, params, batch, mask=mask, chunk_size=chunk_size)
  np.testing.assert_allclose(found, _plain_hessian(mask), atol=1e-13)


def test_within_a_layer_of_a_relu_network_it_is_positive_and_of_all_parameters_not():
  """Piecewise linear: Hessian and Gauss-Newton of one layer agree, so a negative eigenvalue is rounding."""
  params, batch = nets.make_params(), nets.make_batch()

  def outputs(params, batch, *, key):
    h = batch["inputs"]
    for name in ("Dense_0", "Dense_1", "Dense_2"):
      h = h if name == "Dense_0" else jax.nn.relu(h)
      h = h @ params[name]["kernel"] + params[name]["bias"][None]
    return h

  outer = lambda logits, batch: losses.softmax_cross_entropy(logits, batch["labels"]).mean()
  loss = lambda params, batch, *, key: outer(outputs(params, batch, key=key), batch)
  inside = flatness.hessian(loss, params, batch, mask=WHERE)
  newton = flatness.gauss_newton(outputs, outer, params, batch, mask=WHERE).matrix()
  np.testing.assert_allclose(inside, newton, atol=1e-15)
  top = float(np.linalg.norm(inside, 2))
  assert np.linalg.eigvalsh(inside).min() > -1e-14 * top
  assert np.linalg.eigvalsh(flatness.hessian(loss, params, batch)).min() < -1e-3 * top


def test_parameters_without_effect_have_no_curvature():
  loss = lambda params, batch, *, key: (params["used"] ** 2).sum()
  found = flatness.hessian(loss, {"frozen": jnp.ones(2), "used": jnp.ones(2)}, None)
  np.testing.assert_array_equal(found, np.diag([0.0, 0, 2, 2]))
  gradients = flatness.sample_gradients(
    loss, {"frozen": jnp.ones(2), "used": jnp.ones(2)}, None, key=jax.random.key(0), num_samples=1
  )
  np.testing.assert_array_equal(gradients, [[0.0, 0, 2, 2]])


def test_matrices_are_symmetric_to_the_last_bit():
  """In single precision, so that an eigendecomposition sees no rounding between the two halves."""
  samples = jnp.asarray(np.random.default_rng(0).normal(size=(300, 61)), np.float32)
  params = jnp.full(61, np.float32(0.1))

  def loss(params, batch, *, key):
    noise = 0 if key is None else jax.random.normal(key, batch.shape, batch.dtype)
    return jnp.tanh((batch + noise) @ params).mean()

  for matrix in (
    flatness.hessian(loss, params, samples),
    flatness.per_example_noise_covariance(loss, params, samples, key=jax.random.key(1), chunk_size=7),
    flatness.noise_covariance(samples),
  ):
    assert matrix.dtype == np.float32
    np.testing.assert_array_equal(matrix, matrix.T)


def test_with_noise_it_is_that_of_one_draw():
  params, batch, key = nets.make_params(), nets.make_batch(), jax.random.key(3)
  found = flatness.hessian(nets.loss_fn, params, batch, mask=WHERE, key=jax.random.clone(key))
  np.testing.assert_allclose(found, _jax_hessian(params, batch, WHERE, key), atol=1e-13)
  assert np.abs(found - _plain_hessian(WHERE)).max() > 1e-3


def test_gauss_newton_of_a_linear_layer_is_its_hessian():
  """The last layer is linear in its parameters; before it, the network's own curvature is left out."""
  params, batch = nets.make_params(), nets.make_batch()

  def outputs(params, batch, *, key):
    del key
    layer = params["Dense_2"]
    return jnp.tanh(nets.second(params, batch)) @ layer["kernel"] + layer["bias"][None]

  def outer(logits, batch):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"][:, None], 1).mean()

  last = flatness.gauss_newton(outputs, outer, params, batch, mask="Dense_2/*")
  np.testing.assert_allclose(last.matrix(), _plain_hessian("Dense_2/*"), atol=1e-13)
  whole = np.asarray(flatness.gauss_newton(outputs, outer, params, batch).matrix())
  assert np.linalg.eigvalsh(whole).min() > -1e-14
  # J' A J from the dense Jacobian.
  part = flatness.subset(params)
  jacobian = np.asarray(jax.jacrev(lambda flat: outputs(part.merge(flat), batch, key=None))(part.flat))
  probs = np.asarray(jax.nn.softmax(outputs(params, batch, key=None)))
  inner = np.einsum("nk,kl->nkl", probs, np.eye(nets.CLASSES)) - np.einsum("nk,nl->nkl", probs, probs)
  expected = np.einsum("nkd,nkl,nle->de", jacobian, inner, jacobian) / nets.EXAMPLES
  np.testing.assert_allclose(whole, expected, atol=1e-13)


def test_data_are_arguments_of_what_is_compiled():
  """The operator is a pytree: jit takes it as it is, and for other data does not compile again."""
  traced = []

  @jax.jit
  def apply(operator, vector):
    traced.append(1)
    return operator(vector)

  params = nets.make_params()
  for seed in (1, 2):
    operator = flatness.hvp(nets.loss_fn, params, nets.make_batch(seed), mask=WHERE)
    apply(operator, operator.like)
  assert len(traced) == 1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
  "chunk_size", [7, *(pytest.param(size, marks=pytest.mark.thorough) for size in (40, 100))]
)
def test_dense_hessian_is_jax_s(bias, chunk_size):
  params, batch = nets.make_params(), nets.make_batch()
  z, h = nets.second(params, batch), nets.first(params, batch)
  block = flatness.DenseLayer(nets.head(params), z, h, batch, bias=bias, chunk_size=chunk_size).hessian()
  expected = _plain_hessian(WHERE if bias else "Dense_1/kernel")
  assert block.size == len(expected)
  np.testing.assert_allclose(block.matrix(), expected, atol=1e-14)
  np.testing.assert_allclose(block.trace(), np.trace(expected), rtol=1e-12)
  np.testing.assert_allclose(block.inner(block), (expected**2).sum(), rtol=1e-12)


def test_dense_hessian_in_float32():
  params, batch = nets.make_params(dtype=np.float32), nets.make_batch(dtype=np.float32)
  block = dense_layer(params, batch).hessian()
  assert block.packed.dtype == np.float32
  generic = flatness.hessian(nets.loss_fn, params, batch, mask=WHERE)
  np.testing.assert_allclose(block.matrix(), generic, atol=4e-7 * np.abs(generic).max())
  expected = _plain_hessian(WHERE)
  np.testing.assert_allclose(block.matrix(), expected, atol=4e-7 * np.abs(expected).max() * 4)


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
  np.testing.assert_allclose(block.matrix(), _plain_hessian("Dense_2/*"), atol=1e-14)


def test_dense_noise_covariance_agrees_with_the_generic_one():
  """Both estimate each example's covariance from many draws; the generic one knows nothing of layers."""
  params, batch = nets.make_params(), nets.make_batch(examples=12)
  dense = dense_layer(params, batch).noise_covariance(key=jax.random.key(0), num_samples=4000)
  generic = flatness.per_example_noise_covariance(
    nets.loss_fn, params, batch, key=jax.random.key(1), num_samples=4000, mask=WHERE, chunk_size=12
  )
  scale = np.sqrt(np.outer(np.diag(generic), np.diag(generic))).max()
  np.testing.assert_allclose(dense.matrix(), generic, atol=6 * scale * np.sqrt(2 / 4000))
  np.testing.assert_allclose(dense.trace(), np.trace(generic), rtol=0.03)


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
  found = dense_layer(params, batch).noise_covariance(key=jax.random.key(0), num_samples=60_000)
  scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected))).max()
  np.testing.assert_allclose(found.matrix(), expected, atol=6 * scale * np.sqrt(5 / 60_000))


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


def test_the_key_reaches_the_noise():
  """Of the interval along a layer's direction, and of the outputs in a Gauss-Newton product."""
  scale = float(jax.random.uniform(jax.random.key(1)))
  head = lambda z, batch, *, key: 0.5 + 0.5 * jax.random.uniform(key) * z[:, 0] ** 2
  z, h = jnp.zeros((2, 1)), jnp.ones((2, 1))
  layer = flatness.DenseLayer(head, z, h, bias=False)
  found = layer.interval_flatness(jnp.eye(1), key=jax.random.key(1))
  np.testing.assert_allclose(found.width, 2 / np.sqrt(scale), rtol=1e-3)
  outputs = lambda params, batch, *, key: params * jax.random.uniform(key)
  outer = lambda z, batch: 0.5 * (z**2).sum()
  product = flatness.gauss_newton(outputs, outer, jnp.ones(2), None, key=jax.random.key(1))
  np.testing.assert_allclose(product(jnp.ones(2)), scale**2, rtol=1e-6)


def test_dense_interval_flatness_is_the_generic_one():
  params, batch = nets.make_params(), nets.make_batch()
  part = flatness.subset(params, WHERE)
  directions = np.linalg.qr(np.random.default_rng(0).normal(size=(part.flat.size, 4)))[0].T
  generic = flatness.interval_flatness(
    nets.loss_fn, params, directions, batch, mask=WHERE, factor=1.2, tol=1e-8
  )
  dense = dense_layer(params, batch).interval_flatness(directions, factor=1.2, tol=1e-8)
  np.testing.assert_allclose(dense.left, generic.left, rtol=1e-7)
  np.testing.assert_allclose(dense.right, generic.right, rtol=1e-7)


@pytest.mark.slow
def test_sharded_examples_give_the_same():
  """Over eight devices: the layer's Hessian, its noise covariance and Lanczos."""
  mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
  params, here = nets.make_params(), nets.make_batch()
  there = jax.device_put(here, NamedSharding(mesh, P("data")))
  found = []
  for batch in (here, there):
    layer = dense_layer(params, batch, chunk_size=16)
    hessian = layer.hessian().matrix()
    noise = layer.noise_covariance(key=jax.random.key(0)).matrix()
    operator = flatness.hvp(nets.loss_fn, params, batch, mask=WHERE)
    values = flatness.top_eigenpairs(operator, operator.like, key=jax.random.key(1), num_pairs=3).values
    found.append((hessian, noise, values))
  for ours, theirs in zip(*found, strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_narrow_types_are_computed_in_float32(dtype):
  """A quadratic of 300 examples whose sums of squares overflow float16, against NumPy in float64."""
  x = jnp.asarray(30 * np.random.default_rng(0).normal(size=(300, 4)), dtype)
  wide = np.asarray(x, np.float64)
  loss = lambda params, batch, *, key: 5 + ((batch @ params) ** 2).mean() / 2
  operator = flatness.hvp(loss, jnp.zeros(4, dtype), x)
  values, vectors = np.linalg.eigh(wide.T @ wide / 300)
  top = flatness.top_eigenpairs(operator, operator.like, key=jax.random.key(0), num_pairs=4)
  assert top.values.dtype == np.float32
  np.testing.assert_allclose(top.values, values[::-1], rtol=1e-5)
  rows = jnp.asarray(vectors.T, dtype)
  width = flatness.interval_flatness(loss, jnp.zeros(4, dtype), rows, x).width
  curved = np.einsum("kd,de,ke->k", *(np.asarray(r, np.float64) for r in (rows, wide.T @ wide / 300, rows)))
  np.testing.assert_allclose(width, 2 * np.sqrt(2 * 5 / curved), rtol=1e-3)
  np.testing.assert_allclose(
    flatness.noise_covariance(x), np.cov(wide.T, ddof=0), rtol=1e-4, atol=1e-3 * wide.var()
  )


def test_operators_show_their_size_alone():
  params, batch = nets.make_params(), nets.make_batch()
  product = flatness.hvp(nets.loss_fn, params, batch, mask=WHERE)
  assert repr(product) == "Hessian([28] -> [28])"
  outer = lambda outputs, batch: (outputs**2).mean()
  gauss_newton = flatness.gauss_newton(nets.loss_fn, outer, params, batch, mask=WHERE)
  assert str(gauss_newton) == "GaussNewton([28] -> [28])"


def test_bad_arguments():
  params, batch = nets.make_params(), nets.make_batch()
  with pytest.raises(ValueError, match=r"vector must have shape \(28,\), got \(3,\)"):
    flatness.hvp(nets.loss_fn, params, batch, mask=WHERE)(jnp.ones(3))
  with pytest.raises(
    TypeError, match=r"vector must be a vector of shape \(28,\), got a tree; convert it with subset"
  ):
    flatness.hvp(nets.loss_fn, params, batch, mask=WHERE)(params)
  with pytest.raises(ValueError, match=r"preactivations must be \[n, units\] and inputs \[n, inputs\]"):
    flatness.DenseLayer(nets.head(params), jnp.ones((3, 2, 2)), jnp.ones((3, 2))).hessian()
  with pytest.raises(ValueError, match="batch must have 3 examples, as preactivations have, got 40"):
    flatness.DenseLayer(nets.head(params), jnp.ones((3, 4)), jnp.ones((3, 6)), batch).hessian()
  layer, key = dense_layer(params, batch), jax.random.key(0)
  mean = lambda z, batch, *, key: nets.head(params)(z, batch, key=key).mean()
  of_mean = dataclasses.replace(layer, head_fn=mean)
  for message, call in (
    (r"head_fn must return a loss for each of 40 examples, got \(\)", of_mean.hessian),
    (
      "head_fn must return a loss for each of 40",
      lambda: of_mean.noise_covariance(key=jax.random.clone(key)),
    ),
    ("head_fn must return a loss for each of 40", lambda: of_mean.interval_flatness(jnp.eye(28))),
    (
      r"curvature_fn must return \(40, 4, 4\), got \(40, 4\)",
      lambda: layer.hessian(curvature_fn=lambda z, batch: z),
    ),
    (r"directions must be \[k, 28\].*got \(24, 24\)", lambda: layer.interval_flatness(jnp.eye(24))),
    ("num_samples must be at least 2", lambda: layer.noise_covariance(key=key, num_samples=1)),
    ("chunk_size must be at least 1, got 0", dataclasses.replace(layer, chunk_size=0).hessian),
    ("factor must lie in", lambda: layer.interval_flatness(jnp.eye(28), factor=1.0)),
  ):
    with pytest.raises(ValueError, match=message):
      call()


@pytest.mark.parametrize(
  ("batches", "error", "message"),
  [
    (lambda one: [one, one], TypeError, "batch must be one batch, got a list of 2; join all batches along"),
    (lambda one: iter([one]), TypeError, "batch must be a tree of arrays, got a list_iterator; join all"),
    (
      lambda one: [one, jax.tree.map(lambda x: x[:5], one)],
      ValueError,
      "batch must be one batch, got a list of 2; join all batches along the first axis",
    ),
  ],
)
def test_several_batches_are_refused(batches, error, message):
  """As lists and loaders give them; `x.shape` of a dict would be an AttributeError."""
  loss = flatness.chunked(lambda params, batch, *, key: (batch["inputs"] @ params).mean(), 10)
  with pytest.raises(error, match=message):
    flatness.hessian(loss, jnp.ones(nets.INPUTS), batches(nets.make_batch()))


def test_a_list_of_batches_is_told_by_every_function_that_takes_one():
  """Whatever error the network has on it: here the list unpacks into other things than inputs and labels."""
  params, one = jnp.ones((2, 2)), (jnp.ones((4, 2)), jnp.zeros(4, int))
  key = jax.random.key(0)

  def outputs(params, batch, *, key):
    x, _ = batch
    return x @ params

  outer = lambda z, batch: losses.softmax_cross_entropy(z, batch[1]).mean()
  loss = lambda params, batch, *, key: outer(outputs(params, batch, key=key), batch)
  calls = (
    lambda batch: flatness.hvp(loss, params, batch)(jnp.ones(4)),
    lambda batch: flatness.gauss_newton(outputs, outer, params, batch)(jnp.ones(4)),
    lambda batch: flatness.gauss_newton_matrix(outputs, outer, params, batch),
    lambda batch: flatness.gauss_newton_diagonal(outputs, outer, params, batch),
    lambda batch: flatness.fisher(outputs, params, batch, key=key)(jnp.ones(4)),
    lambda batch: flatness.kfac(outputs, params, batch, key=key, mask="*"),
    lambda batch: flatness.loss_profile(loss, params, params, jnp.ones(1), batch),
  )
  for call, number in itertools.product(calls, (2, 3)):
    with pytest.raises(TypeError, match=f"batch must be one batch, got a list of {number}; join all"):
      call([one] * number)
