"""`Curvature` and `layerwise` on arrays, lists and loaders, against JAX's own dense Hessians in float64."""

import faulthandler
import itertools

import chex
import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest
from contract import compilations
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxreg import flatness, losses
from jaxreg.flatness._trace import Estimate

pytestmark = pytest.mark.usefixtures("x64")


class Loader:
  """Batches of unlike sizes from NumPy, in another order each time."""

  def __init__(self, batch, sizes, shuffle=True):
    edges = np.cumsum([0, *sizes])
    self.batches = [
      jax.tree.map(lambda x, a=a, b=b: np.asarray(x)[a:b], batch) for a, b in itertools.pairwise(edges)
    ]
    self.shuffle, self.passes = shuffle, 0

  def __iter__(self):
    self.passes += 1
    return iter(self.batches[:: -1 if self.shuffle and self.passes % 2 else 1])


def problem():
  return nets.make_params(), nets.make_batch()


def dense(params, batch, where):
  """The Hessian by `jax.hessian` of the whole batch, in plain JAX."""
  part = flatness.subset(params, where)
  return np.asarray(
    jax.jit(jax.hessian(lambda flat: nets.loss_fn(part.merge(flat), batch, key=None)))(part.flat)
  )


class Tensor:
  """What an array of another framework has: a shape, slices, and NumPy's view of it."""

  def __init__(self, values):
    self.values, self.shape = np.asarray(values), values.shape

  def __getitem__(self, rows):
    return Tensor(self.values[rows])

  def __array__(self, dtype=None, copy=None):
    return self.values


FORMS = {
  "one batch": lambda batch: (batch, {}),
  "chunks": lambda batch: (batch, {"chunk_size": 16}),
  "NumPy": lambda batch: (jax.tree.map(np.asarray, batch), {"chunk_size": 15}),
  "list": lambda batch: ([jax.tree.map(lambda x: x[:10], batch), jax.tree.map(lambda x: x[10:], batch)], {}),
  "tensors": lambda batch: (jax.tree.map(Tensor, batch), {"chunk_size": 15}),
  "list of tensors": lambda batch: ([jax.tree.map(Tensor, batch)], {}),
  "loader": lambda batch: (Loader(batch, [15, 20, 5]), {"chunk_size": 10}),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
  "form",
  [
    *("one batch", "list of tensors", "loader"),
    *(pytest.param(form, marks=pytest.mark.thorough) for form in ("chunks", "NumPy", "list", "tensors")),
  ],
)
def test_every_form_of_data_gives_jax_s_hessian(form):
  params, batch = problem()
  data, options = FORMS[form](batch)
  curvature = flatness.Curvature(nets.loss_fn, params, data, mask="Dense_2/*", **options)
  expected = dense(params, batch, "Dense_2/*")
  np.testing.assert_allclose(curvature.matrix(), expected, atol=1e-14)
  np.testing.assert_allclose(curvature.diagonal().mean, np.diag(expected), atol=1e-14)
  assert repr(curvature) == "Curvature(Hessian([15] -> [15]))"


@pytest.mark.thorough
def test_parameters_of_numpy_are_those_of_jax():
  params, batch = problem()
  operators = [
    flatness.Curvature(nets.loss_fn, tree, batch) for tree in (params, jax.tree.map(np.asarray, params))
  ]
  ones, others = ([operator.trace(key=jax.random.key(0)), operator.matrix()] for operator in operators)
  chex.assert_trees_all_equal(ones, others)
  top = operators[1].top_eigenpairs(key=jax.random.key(0))
  np.testing.assert_allclose(top.values[0], np.linalg.eigvalsh(dense(params, batch, "*"))[-1])


def test_the_only_batch_is_evaluated_once():
  """The products of one batch share its activations, which need no second look at the images."""
  params, batch = nets.make_params(), nets.make_batch()
  looks = []

  def looked_at(x):
    return jax.pure_callback(
      lambda x: looks.append(1) or np.asarray(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x
    )

  def loss_fn(params, batch, *, key):
    return nets.loss_fn(params, jax.tree.map(looked_at, batch), key=None)

  curvature = flatness.Curvature(loss_fn, params, batch)
  vectors = np.random.default_rng(0).normal(size=(3, curvature.like.size))
  products = np.stack([curvature(vector) for vector in vectors])
  once = len(looks)
  assert once == len(jax.tree.leaves(batch))
  np.testing.assert_allclose(products, vectors @ dense(params, batch, "*"), atol=1e-12)
  parts = flatness.Curvature(loss_fn, params, batch, chunk_size=20)
  np.testing.assert_allclose(np.stack([parts(vector) for vector in vectors]), products, atol=1e-12)
  assert len(looks) > 3 * once  # two chunks, in each product


@pytest.mark.thorough
def test_analyses_are_numpy_s_of_the_dense_hessian():
  """Top eigenvalues of both signs, the trace within four errors, and the mean of the density."""
  params, batch = problem()
  curvature = flatness.Curvature(nets.loss_fn, params, Loader(batch, [15, 15, 10]), mask="Dense_[12]/*")
  values = np.linalg.eigvalsh(dense(params, batch, "Dense_[12]/*"))
  top = curvature.top_eigenpairs(key=jax.random.key(0), num_pairs=3, num_steps=43)
  np.testing.assert_allclose(top.values, values[::-1][:3], atol=1e-13)
  assert top.vectors.shape == (3, 43)
  trace = curvature.trace(key=jax.random.key(1), num_samples=50)
  assert abs(float(trace.mean) - values.sum()) < 4 * float(trace.standard_error)
  density = curvature.density(key=jax.random.key(2), num_steps=20, num_samples=2)
  assert float(density.density.sum() * (density.grid[1] - density.grid[0])) == pytest.approx(1, abs=1e-3)


@pytest.mark.thorough
def test_hutchinson_s_diagonal_and_its_error():
  """Var = sum of the squares beside the diagonal in a row; products compiled and on the host agree."""
  params, batch = problem()
  hessian = dense(params, batch, "Dense_2/*")
  curvature = flatness.Curvature(nets.loss_fn, params, batch, mask="Dense_2/*")
  found = flatness.operator_diagonal(
    lambda v: hessian @ v, curvature.like, key=jax.random.key(0), num_samples=2000
  )
  error = np.sqrt(((hessian**2).sum(axis=1) - np.diag(hessian) ** 2) / 2000)
  np.testing.assert_allclose(found.standard_error, error, rtol=0.1)
  assert (np.abs(found.mean - np.diag(hessian)) < 4 * error).all()
  few = flatness.operator_diagonal(
    lambda v: hessian @ v, curvature.like, key=jax.random.key(0), num_samples=5
  )
  chex.assert_trees_all_close(curvature.diagonal(key=jax.random.key(0), num_samples=5), few, atol=1e-13)


@pytest.mark.thorough
def test_gauss_newton_of_a_loader():
  params, batch = problem()
  logits = lambda params, batch, *, key: nets.second(params, batch) @ params["Dense_2"]["kernel"]
  outer = lambda z, batch: losses.softmax_cross_entropy(z, batch["labels"]).mean()
  curvature = flatness.Curvature(nets.loss_fn, params, Loader(batch, [15, 25]), mask="Dense_1/bias")
  found = curvature.gauss_newton(logits, outer).matrix()
  jacobian = jax.jacfwd(
    lambda b: logits({**params, "Dense_1": {**params["Dense_1"], "bias": b}}, batch, key=None)
  )
  j, p = jacobian(params["Dense_1"]["bias"]), jax.nn.softmax(logits(params, batch, key=None))
  inner = np.einsum("nk,kl->nkl", p, np.eye(3)) - np.einsum("nk,nl->nkl", p, p)
  np.testing.assert_allclose(found, np.einsum("nkd,nkl,nle->de", j, inner, j) / 40, atol=1e-14)


@pytest.mark.thorough
@pytest.mark.parametrize("batches", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_a_checkpoint_compiles_nothing(batches):
  """Another checkpoint with its running averages, in the same program: of each batch's shape one trace."""
  chex.clear_trace_counter()
  _, batch = problem()
  data = batches * [batch]

  @chex.assert_max_traces(n=1)
  def loss_of(params, batch, state):
    z = (batch["inputs"] - state["mean"][None]) @ params["w"]
    return losses.softmax_cross_entropy(z, batch["labels"]).mean()

  loss_fn = lambda params, batch, *, key, model_state: loss_of(params, batch, model_state)

  for seed in range(3):
    rng = np.random.default_rng(seed)
    params, state = {"w": jnp.asarray(rng.normal(size=(5, 3)))}, {"mean": jnp.asarray(rng.normal(size=5))}
    curvature = flatness.Curvature(loss_fn, params, data, model_state=state)
    top = curvature.top_eigenpairs(key=jax.random.key(0), num_steps=15)
    # The softmax regression's Hessian: mean of (diag p - p p') x h h'.
    h = np.asarray(batch["inputs"]) - np.asarray(state["mean"])
    p = np.asarray(jax.nn.softmax(h @ np.asarray(params["w"])))
    inner = np.einsum("nk,kl->nkl", p, np.eye(3)) - np.einsum("nk,nl->nkl", p, p)
    hessian = np.einsum("ni,nkl,nj->ikjl", h, inner, h).reshape(15, 15) / 40
    assert float(top.values[0]) == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=1e-9)
    layers = flatness.layerwise(curvature, key=jax.random.key(0), num_samples=2)
    assert float(layers.top_eigenvalues[0]) == pytest.approx(float(top.values[0]), rel=1e-9)
  only = flatness.layerwise(curvature, key=jax.random.key(0), num_samples=2, num_steps=0)
  assert np.isnan(only.top_eigenvalues).all()
  np.testing.assert_array_equal(only.traces, layers.traces)


def test_products_of_restored_parameters_share_a_program():
  """A restored array has a mesh, be it of one device, and a drawn vector has none."""
  params, batch = problem()
  params = jax.device_put(params, NamedSharding(jax.make_mesh((1,), ("data",)), PartitionSpec()))
  curvature = flatness.Curvature(nets.loss_fn, params, [batch, batch])
  product = curvature(jnp.ones(curvature.like.size))
  assert compilations(lambda: curvature(product)) == 0
  hessian = dense(params, batch, None)
  np.testing.assert_allclose(product, hessian.sum(axis=1), rtol=1e-9, atol=1e-14)


@pytest.mark.thorough
def test_a_warm_start_needs_fewer_products():
  """The eigenvectors of a matrix, for one that is a thousandth away."""
  rng = np.random.default_rng(0)
  basis, values = np.linalg.qr(rng.normal(size=(200, 200)))[0], np.linspace(0, 1, 200)
  noise = rng.normal(size=(200, 200)) / 200
  old, new = basis @ np.diag(values) @ basis.T, None
  new = old + 1e-4 * (noise + noise.T)
  true = np.linalg.eigvalsh(new)[::-1][:2]
  errors = [
    np.abs(
      flatness.top_eigenpairs(
        jax.tree_util.Partial(jnp.matmul, new),
        jnp.zeros(200),
        key=jax.random.key(0),
        num_pairs=2,
        num_steps=12,
        v0=v0,
      ).values
      - true
    ).max()
    for v0 in (None, jnp.asarray(basis.T[:-3:-1]))
  ]
  assert errors[1] < 1e-2 * errors[0]
  with pytest.raises(ValueError, match=r"v0 must have shape \[200\] or \[k, 200\], got \(3,\)"):
    flatness.top_eigenpairs(lambda v: v, jnp.zeros(200), key=jax.random.key(0), v0=jnp.ones(3))


class Passes:
  """One batch, and the number of times that it was read: once a product."""

  def __init__(self, batch):
    self.batch, self.number = batch, 0

  def __iter__(self):
    self.number += 1
    yield self.batch


def of_a_diagonal(values):
  """A `Curvature` with these eigenvalues, and its data."""
  data = Passes(jnp.asarray(values)[None])
  return flatness.Curvature(
    lambda params, x, *, key: 0.5 * (x * params[None] ** 2).sum(), jnp.zeros(len(values)), data
  ), data


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
def test_a_curvature_ends_when_all_pairs_have_converged(which):
  values = np.concatenate([[-90, -60, -30, 40, 70, 100], np.linspace(-1, 1, 194)])
  rank = {"largest": -values, "smallest": values, "magnitude": -np.abs(values)}[which]
  want = values[np.argsort(rank)[:3]]
  curvature, data = of_a_diagonal(values)
  top = lambda **options: curvature.top_eigenpairs(
    key=jax.random.key(0), num_pairs=3, which=which, check=False, **options
  )
  found = top(until_converged=True)
  assert data.number < 20, "29 without an end"
  np.testing.assert_allclose(found.values, want, rtol=1e-5)
  assert found.converged.all()
  vectors = np.asarray(found.vectors)
  residuals = np.linalg.norm(vectors * values - np.asarray(found.values)[:, None] * vectors, axis=1)
  np.testing.assert_allclose(residuals, found.residuals, rtol=1e-2, atol=1e-8)
  assert (residuals <= 1e-3 * np.abs(found.values)).all()
  np.testing.assert_allclose(vectors @ vectors.T, np.eye(3), atol=1e-10)
  data.number = 0
  top()
  assert data.number == 29 + 3, "3 num_pairs + 20 products, and one for the residual of each pair"
  with pytest.raises(ValueError, match="until_converged must be False with v0, got True"):
    top(until_converged=True, v0=found.vectors)


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("values", "which", "want"),
  [
    ([5, 5, 3, 1, *40 * [0]], "largest", [5, 5]),  # the first space holds one copy, and is exhausted
    ([1000, 3, 2, 1, *np.linspace(0, 0.1, 197)], "largest", [1000, 3, 2, 1]),
    ([100, -0.09, *np.linspace(-0.01, 0.01, 198)], "smallest", [-0.09]),
  ],
)
def test_the_end_waits_for_small_eigenvalues(values, which, want):
  """Each pair is measured by its own eigenvalue, not by the largest one."""
  curvature, _ = of_a_diagonal(np.asarray(values, float))
  found = curvature.top_eigenpairs(
    key=jax.random.key(0), num_pairs=len(want), which=which, num_steps=40, until_converged=True
  )
  np.testing.assert_allclose(found.values, want, rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"until_converged": True}])
def test_a_hessian_that_is_not_finite(options):
  curvature, _ = of_a_diagonal(np.array([1.0, np.nan, 2.0]))
  with pytest.raises(ValueError, match="matvec must return finite values"):
    curvature.top_eigenpairs(key=jax.random.key(0), **options)


@pytest.mark.thorough
def test_sharded_over_fake_devices():
  """43 parameters, which four devices do not divide, and a last batch that they do not divide either.

  The mesh has explicit axes, as `jax.make_mesh` makes them unless it is told otherwise.
  """
  mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
  params, batch = problem()
  found = []
  for options in ({}, {"mesh": mesh}):
    curvature = flatness.Curvature(
      nets.loss_fn, params, Loader(batch, [32, 7], shuffle=False), mask="Dense_[12]/*", **options
    )
    top = curvature.top_eigenpairs(key=jax.random.key(0), num_pairs=2, num_steps=12)
    layers = flatness.layerwise(curvature, key=jax.random.key(1), num_samples=2, num_steps=3)
    found.append((top, layers.top_eigenvalues, layers.traces, layers.diagonals))
  chex.assert_trees_all_close(*found, atol=1e-10)
  vector = jnp.arange(43.0)
  whole, parts = (
    flatness.Curvature(nets.loss_fn, params, batch, mask="Dense_[12]/*", mesh=mesh, chunk_size=size)(vector)
    for size in (None, 20)
  )
  np.testing.assert_allclose(whole, dense(params, batch, "Dense_[12]/*") @ vector, atol=1e-10)
  np.testing.assert_allclose(parts, whole, atol=1e-10)


@pytest.mark.thorough
def test_convolutions_over_fake_devices():
  """Two programs with convolutions that run at once on a CPU wait for each other without end."""
  with jax.enable_x64(False):
    draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)
    params = [draw(0, 3, 3, 3, 8) / 5, draw(1, 3, 3, 8, 8) / 8, draw(2, 8, 10)]
    batch = draw(3, 200, 16, 16, 3), jnp.arange(200) % 10

    def loss(params, batch, *, key):
      x, labels = batch
      for kernel in params[:2]:
        dimensions = ("NHWC", "HWIO", "NHWC")
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dimensions))
      return losses.softmax_cross_entropy(x.mean(axis=(1, 2)) @ params[2], labels).mean()

    faulthandler.dump_traceback_later(300, exit=True)  # instead of a test that never ends
    found = [
      flatness.Curvature(loss, params, batch, mesh=mesh).top_eigenpairs(
        key=jax.random.key(0), num_pairs=2, num_steps=20, check=False
      )
      for mesh in (None, jax.make_mesh((8,), ("data",)))
    ]
    faulthandler.cancel_dump_traceback_later()
  np.testing.assert_allclose(found[1].values, found[0].values, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("layer_of", [None, pytest.param(str, marks=pytest.mark.slow)])
def test_layers_are_the_blocks_of_the_dense_hessian(layer_of):
  params, batch = problem()
  curvature = flatness.Curvature(nets.loss_fn, params, [batch])
  options = {} if layer_of is None else {"layer_of": layer_of}
  found = flatness.layerwise(
    curvature, key=jax.random.key(0), num_samples=60, num_steps=20, num_starts=12, **options
  )
  parts = {name: f"{name}*" for name in ("Dense_0", "Dense_1", "Dense_2")}
  if layer_of:
    parts = {f"{name}/{leaf}": f"{name}/{leaf}" for name in parts for leaf in ("bias", "kernel")}
  assert found.names == tuple(parts)
  for number, where in enumerate(parts.values()):
    block = dense(params, batch, where)
    assert float(found.top_eigenvalues[number]) == pytest.approx(np.linalg.eigvalsh(block)[-1], rel=1e-4)
    for estimate, exact in (
      (Estimate(*(x[number] for x in found.traces)), np.trace(block)),
      (found.diagonals[number], np.diag(block)),
      (Estimate(*(x[number] for x in found.frobenius_norms)), np.linalg.norm(block)),
    ):
      assert (np.abs(estimate.mean - exact) <= 5 * estimate.standard_error).all()


def test_a_layer_takes_the_products_that_its_docstring_counts():
  params, loader = {name: jnp.ones(3) for name in "ab"}, Loader(np.ones((4, 3)), [4])
  loss_fn = lambda params, x, *, key: (x @ (params["a"] * params["b"])).sum()
  curvature = flatness.Curvature(loss_fn, params, loader)
  flatness.layerwise(curvature, key=jax.random.key(0), num_samples=2, num_steps=3, num_starts=2)
  assert loader.passes == 2 + 2 * (3 + 1 + 2 * 3)


@pytest.mark.thorough
def test_narrow_types_are_widened():
  params, batch = problem()
  narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == np.float64 else x, (params, batch))
  curvature = flatness.Curvature(nets.loss_fn, narrow[0], [narrow[1]], mask="Dense_2/*")
  assert curvature.like.dtype == curvature.matrix().dtype == np.float32
  np.testing.assert_allclose(curvature.matrix(), dense(params, batch, "Dense_2/*"), atol=5e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [pytest.param(None, marks=pytest.mark.thorough), 15])
def test_noise_of_a_batch_is_that_of_its_number(size):
  """On one batch, and on parts of it: batch b draws by fold_in(key, b)."""
  params, batch = problem()
  key, where = jax.random.key(3), "Dense_2/kernel"
  kernel = params["Dense_2"]["kernel"]

  def loss_fn(params, batch, *, key):
    kept = jax.random.bernoulli(key, 0.5, (len(batch["labels"]), len(kernel))) / 0.5
    logits = (nets.second(params, batch) * kept) @ params["Dense_2"]["kernel"]
    return losses.softmax_cross_entropy(logits, batch["labels"]).mean()

  found = flatness.Curvature(loss_fn, params, batch, mask=where, key=key, chunk_size=size).matrix()
  want, edges = 0.0, range(0, 40, size or 40)
  for number, first in enumerate(edges):
    part = jax.tree.map(lambda x, a=first: x[a : a + (size or 40)], batch)
    of = lambda w, part=part, number=number: loss_fn(
      {**params, "Dense_2": {**params["Dense_2"], "kernel": w}}, part, key=jax.random.fold_in(key, number)
    )
    want += jax.hessian(of)(kernel).reshape(kernel.size, kernel.size) * len(part["labels"]) / 40
  np.testing.assert_allclose(found, want, atol=1e-13)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [None, 20])
def test_vectors_of_other_types_and_shapes(size):
  params, batch = problem()
  curvature = flatness.Curvature(nets.loss_fn, params, batch, mask="Dense_2/*", chunk_size=size)
  ones = curvature(jnp.ones(curvature.like.size))
  for dtype in (np.int32, np.float32, jnp.bfloat16):
    np.testing.assert_array_equal(curvature(jnp.ones(curvature.like.size, dtype)), ones)
  with pytest.raises(ValueError, match=r"vector must have shape \(\d+,\), got \(3,\)"):
    curvature(jnp.ones(3))


@pytest.mark.thorough
def test_bad_arguments():
  params, batch = problem()
  make = lambda data, **options: flatness.Curvature(nets.loss_fn, params, data, **options)
  for error, message, call in (
    (
      TypeError,
      "data must start from the beginning in each product, got the iterator list_iterator",
      lambda: make(iter([batch])),
    ),
    (
      TypeError,
      "a list is a list of batches, which must have one tree structure, shapes and dtypes, got 2",
      lambda: make([batch["inputs"], batch["labels"]]),
    ),
    (TypeError, "a list is a list of batches, .* got 0", lambda: make([])),
    (TypeError, r"mesh must be a jax.sharding.Mesh, got 'data'", lambda: make(batch, mesh="data")),
    (
      TypeError,
      r"loss_fn must take \(params, batch, \*, key, model_state\)",
      lambda: make(batch, model_state={"mean": jnp.zeros(2)}),
    ),
    (ValueError, "chunk_size must be at least 1", lambda: make(batch, chunk_size=0)),
    (
      ValueError,
      "v0 must have rows whose sum is finite and not 0, got one of norm 0.0",
      lambda: make(batch).top_eigenpairs(key=jax.random.key(0), v0=jnp.zeros(79)),
    ),
    (
      TypeError,
      r"v0 must be \[79\] or \[k, 79\], got a tree",
      lambda: make(batch).top_eigenpairs(key=jax.random.key(0), v0=params),
    ),
    (
      ValueError,
      "num_pairs must be at most the size 79, got 100",
      lambda: make(batch).top_eigenpairs(key=jax.random.key(0), num_pairs=100),
    ),
    (ValueError, "data must have at least one batch", lambda: make(Loader(batch, []))(jnp.zeros(79))),
    (TypeError, "call it outside of jit", lambda: jax.jit(make(batch))(jnp.zeros(79))),
    (
      TypeError,
      "curvature must be a Curvature",
      lambda: flatness.layerwise(nets.loss_fn, key=jax.random.key(0)),
    ),
    (TypeError, "like must be a vector", lambda: flatness.operator_diagonal(lambda v: v)),
    (TypeError, "like must be a vector", lambda: flatness.top_eigenpairs(lambda v: v, key=jax.random.key(0))),
  ):
    with pytest.raises(error, match=message):
      call()
