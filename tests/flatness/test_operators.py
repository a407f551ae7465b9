"""Products with the Hessian, the Gauss-Newton and the Fisher matrix, against JAX's dense Hessians."""

import itertools

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg import flatness, losses

pytestmark = pytest.mark.usefixtures("x64")

WHERE = "Dense_1/*"


@pytest.mark.thorough
def test_quadratic_form():
  matrix = np.array([[2.0, 1, 0], [1, 3, -1], [0, -1, 4]])
  loss = lambda params, batch, *, key: 0.5 * params @ batch @ params
  product = flatness.hvp(loss, jnp.ones(3), jnp.asarray(matrix))
  np.testing.assert_allclose(product(jnp.array([1.0, 2, 3])), matrix @ [1, 2, 3], rtol=1e-14)
  np.testing.assert_allclose(flatness.hessian(loss, jnp.ones(3), jnp.asarray(matrix)), matrix, rtol=1e-14)


@pytest.mark.thorough
@pytest.mark.parametrize("mask", [WHERE, "*"])
@pytest.mark.parametrize("chunk_size", [pytest.param(1, marks=pytest.mark.thorough), 5])
def test_hessian_is_jax_s(mask, chunk_size):
  params, batch = nets.make_params(), nets.make_batch()
  found = flatness.hessian(nets.loss_fn, params, batch, mask=mask, chunk_size=chunk_size)
  np.testing.assert_allclose(found, nets.plain_hessian(mask), atol=1e-13)


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_with_noise_it_is_that_of_one_draw():
  params, batch, key = nets.make_params(), nets.make_batch(), jax.random.key(3)
  found = flatness.hessian(nets.loss_fn, params, batch, mask=WHERE, key=jax.random.clone(key))
  np.testing.assert_allclose(found, nets.jax_hessian(params, batch, WHERE, key), atol=1e-13)
  assert np.abs(found - nets.plain_hessian(WHERE)).max() > 1e-3


@pytest.mark.thorough
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
  np.testing.assert_allclose(last.matrix(), nets.plain_hessian("Dense_2/*"), atol=1e-13)
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


@pytest.mark.thorough
def test_the_key_reaches_the_noise():
  """The noise of the outputs in a Gauss-Newton product."""
  scale = float(jax.random.uniform(jax.random.key(1)))
  outputs = lambda params, batch, *, key: params * jax.random.uniform(key)
  outer = lambda z, batch: 0.5 * (z**2).sum()
  product = flatness.gauss_newton(outputs, outer, jnp.ones(2), None, key=jax.random.key(1))
  np.testing.assert_allclose(product(jnp.ones(2)), scale**2, rtol=1e-6)


@pytest.mark.slow
def test_sharded_examples_give_the_same():
  """Over eight devices: the dense Hessian, the noise covariance and Lanczos."""
  mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
  params, here = nets.make_params(), nets.make_batch()
  there = jax.device_put(here, NamedSharding(mesh, P("data")))
  found = []
  for batch in (here, there):
    hessian = flatness.hessian(nets.loss_fn, params, batch, mask=WHERE)
    noise = flatness.per_example_noise_covariance(
      nets.loss_fn, params, batch, key=jax.random.key(0), mask=WHERE, chunk_size=16
    )
    operator = flatness.hvp(nets.loss_fn, params, batch, mask=WHERE)
    values = flatness.top_eigenpairs(operator, operator.like, key=jax.random.key(1), num_pairs=3).values
    found.append((hessian, noise, values))
  for ours, theirs in zip(*found, strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_bad_arguments():
  params, batch = nets.make_params(), nets.make_batch()
  with pytest.raises(ValueError, match=r"vector must have shape \(28,\), got \(3,\)"):
    flatness.hvp(nets.loss_fn, params, batch, mask=WHERE)(jnp.ones(3))
  with pytest.raises(
    TypeError, match=r"vector must be a vector of shape \(28,\), got a tree; convert it with subset"
  ):
    flatness.hvp(nets.loss_fn, params, batch, mask=WHERE)(params)


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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_empirical_fisher():
  params, batch = problem()
  gradients = per_label(params, batch, "Dense_[12]/*")[0][np.arange(10), np.asarray(batch["labels"])]
  expected = gradients.T @ gradients / 10
  options = {"losses_fn": losses_fn}
  found = flatness.fisher(logits_fn, params, batch, mask="Dense_[12]/*", **options).matrix()
  np.testing.assert_allclose(found, expected, atol=1e-14)
  curvature = flatness.Curvature(nets.loss_fn, params, batch, mask="Dense_[12]/*", chunk_size=4)
  np.testing.assert_allclose(curvature.fisher(logits_fn, **options).matrix(), expected, atol=1e-14)


@pytest.mark.thorough
def test_bad_arguments_of_fisher():
  params, batch = problem()
  ones = {"a": {"kernel": jnp.ones((2, 2))}}
  kfac = lambda fn: flatness.kfac(fn, ones, jnp.ones((3, 2)), key=jax.random.key(0))
  for message, call in (
    (
      "likelihood must be one of",
      lambda: flatness.fisher(logits_fn, params, batch, key=jax.random.key(0), likelihood="x"),
    ),
    (
      "a/kernel is used more than once",
      lambda: kfac(lambda p, x, *, key: x @ p["a"]["kernel"] @ p["a"]["kernel"]),
    ),
    ("a/kernel is used by sin", lambda: kfac(lambda p, x, *, key: x @ jnp.sin(p["a"]["kernel"]))),
    ("a/kernel is used by no layer", lambda: kfac(lambda p, x, *, key: x)),
    (
      "a/kernel belongs to a layer without the examples on the leading axis",  # all tokens of all examples
      lambda: kfac(lambda p, x, *, key: (jnp.stack([x, x], 1).reshape(-1, 2) @ p["a"]["kernel"])[::2]),
    ),
    (
      "a/kernel belongs to a layer without the examples on the leading axis",  # as many rows, by chance
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
