"""Sums of millions of terms in float32, against closed forms: right to the last digits of the dtype."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxreg import _sums, calibration, flatness, penalties

N = 3_000_000
TENTH = float(np.float32(0.1))  # its sums round at every step


def close(got, want, rtol=1e-6):
  np.testing.assert_allclose(np.float64(got), want, rtol=rtol)


@pytest.mark.parametrize("n", [N + 7, 5, 0])
def test_segment_sums(n):
  """`segment_sum` itself is wrong by 1e-3 here."""
  index = jnp.arange(n) % 3
  got = jax.jit(_sums.segment_sums, static_argnums=2)(jnp.full(n, TENTH, jnp.float32), index, 4)
  close(got, TENTH * np.bincount(np.arange(n) % 3, minlength=4))


@pytest.mark.thorough
def test_segment_sums_of_sharded_and_batched_entries():
  mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  n = 8 * 2**17
  x = jax.device_put(np.full(n, TENTH, np.float32), NamedSharding(mesh, PartitionSpec("data")))
  index = jax.device_put(np.arange(n) % 4, x.sharding)
  close(jax.jit(_sums.segment_sums, static_argnums=2)(x, index, 4), np.full(4, TENTH * n / 4))
  sums = jax.vmap(lambda x, index: _sums.segment_sums(x, index, 4))(x.reshape(2, -1), index.reshape(2, -1))
  close(sums, np.full((2, 4), TENTH * n / 8))


@pytest.mark.parametrize("n", [N, 1029, 3])
def test_products(n):
  """`a.T @ b` itself is wrong by 1e-2 here."""
  a, b = jnp.full((n, 1), TENTH, jnp.float32), jnp.full((n, 2), 1, jnp.float32)
  close(jax.jit(_sums.products)(a, b), np.full((1, 2), n * TENTH))


def test_running_sums():
  running, _ = jax.jit(
    lambda: jax.lax.scan(
      lambda running, _: (_sums.add(running, jnp.float32(TENTH)), None),
      _sums.compensated(jnp.float32(0)),
      None,
      length=N,
    )
  )()
  close(_sums.total(running), N * TENTH, rtol=1e-7)
  broken = _sums.add(_sums.compensated(jnp.float32(0)), jnp.float32(np.inf))
  assert _sums.total(broken) == np.inf


def predictions(n, right):
  """Confidence 3/4 in class 0; of every 8 predictions the first `right` are right."""
  log_probs = np.broadcast_to(np.log(np.float32([0.75, 0.25])), (n, 2))
  return log_probs, (np.arange(n) % 8 >= right).astype(np.int32)


LONGER = [pytest.param(kind, marks=pytest.mark.thorough) for kind in ("mass", "classwise")]


@pytest.mark.parametrize("kind", ["width", *LONGER])
def test_bins_of_many_predictions(kind):
  log_probs, labels = predictions(N, right=7)
  bins = jax.jit(functools.partial(calibration.ece_bins, kind=kind))(log_probs, labels)
  np.testing.assert_allclose(calibration.ece(bins), 1 / 8, atol=1e-6)
  assert np.asarray(bins.count, np.float64).sum() == N * (2 if kind == "classwise" else 1)
  assert np.asarray(bins.correct, np.float64).sum() == N * (1 if kind == "classwise" else 7 / 8)


MINUTES = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("mass", "classwise")]


@pytest.mark.thorough
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["width", "nll", "brier", *MINUTES])
def test_twenty_million_predictions(name, weighted):
  """More than 2**24: a running float32 count of ones stops there, and the ECE was 0."""
  log_probs, labels = predictions(n := 20_000_000, right=8)
  options = {"weights": np.ones(n, np.float32)} if weighted else {}
  function = getattr(calibration, name, functools.partial(calibration.ece_bins, kind=name))
  sums = jax.jit(function)(log_probs, labels, **options)
  if name in ("nll", "brier"):
    close(sums[0] / sums[1], -np.log(0.75) if name == "nll" else 1 / 8)
    return
  np.testing.assert_allclose(calibration.ece(sums), 0.25, atol=1e-6)


@pytest.mark.thorough
def test_means_of_many_examples():
  """NLL, Brier score, rates and the temperature."""
  log_probs, labels = predictions(N, right=7)
  wrong = -np.log(0.25) / 8
  total, count = jax.jit(calibration.nll)(log_probs, labels)
  close(total / count, -np.log(0.75) * 7 / 8 + wrong)
  total, count = jax.jit(calibration.brier)(log_probs, labels)
  close(total / count, (2 * 0.25**2 * 7 + 2 * 0.75**2) / 8)
  # sigmoid(log(3) / T) = 7 / 8
  few = slice(80_000)
  close(jax.jit(calibration.fit_temperature)(log_probs[few], labels[few]), np.log(3) / np.log(7), rtol=1e-5)
  scores = jnp.arange(80_000, dtype=jnp.float32) % 8
  close(calibration.auroc(scores, scores + 1), (36 + 7 / 2) / 64)
  close(calibration.fpr_at_tpr(scores, scores + 1, tpr=0.5), 3 / 8)


@pytest.mark.parametrize("sums", [(2.0**24, 2.0**24), {"count": np.float32([2**24, 2**25])}])
def test_merged_batches_count_on(sums):
  """In float32, 2**24 + 1 is 2**24."""
  one = jax.tree.map(lambda x: jnp.ones_like(jnp.float32(x)), sums)
  total = functools.reduce(calibration.merge, [sums, one, one, one], None)
  jax.tree.map(lambda got, x: np.testing.assert_array_equal(got, np.float64(x) + 3), total, sums)


@pytest.mark.thorough
def test_penalties_of_many_parameters():
  params = {"a": {"kernel": jnp.full((N, 1), TENTH, jnp.float32)}}
  close(penalties.l1(params), N * TENTH)
  close(penalties.l2(params), N * TENTH**2 / 2)


@pytest.mark.thorough
def test_traces_of_layers_of_many_parameters():
  """Of a diagonal curvature, every probe gives the trace exactly."""
  n = 500_000  # a segment_sum is wrong by 1e-4
  params = {"a": {"kernel": jnp.zeros(n)}, "b": {"kernel": jnp.zeros(10)}}
  loss = lambda params, x, *, key: x.mean() * sum((w["kernel"] ** 2).sum() / 2 for w in params.values())
  curvature = flatness.Curvature(loss, params, jnp.full(2, TENTH, jnp.float32))
  found = flatness.layerwise(curvature, key=jax.random.key(0), num_samples=2, num_steps=0)
  close(found.traces.mean, np.array([n, 10]) * TENTH)


@pytest.mark.thorough
def test_products_over_many_batches():
  """A running float32 sum of 1000 tenths is wrong by 1e-5."""
  loss = lambda w, x, *, key: (x * w**2).mean() / 2
  curvature = flatness.Curvature(loss, jnp.float32(1), jnp.full(1000, TENTH, jnp.float32), chunk_size=1)
  close(curvature(jnp.ones(1)), [TENTH], rtol=2e-7)


@pytest.mark.thorough
def test_losses_of_many_chunks():
  """The loss, its gradient and its second derivative; one long loop is wrong by 1e-4."""
  n = 100_003  # a prime number
  loss = flatness.chunked(lambda w, x, *, key: (x * w**3).mean(), 1)
  both = jax.value_and_grad(lambda w, x: loss(w, x, key=None))
  curvature = lambda w, x: jax.jvp(lambda w: both(w, x), (w,), (jnp.ones_like(w),))
  x = jnp.full(n, TENTH, jnp.float32)
  (value, slope), (again, second) = jax.jit(curvature)(jnp.float32(1), x)
  close([value, slope, again, second], TENTH * np.array([1, 3, 3, 6]))


@pytest.mark.thorough
def test_curvature_matrices_of_many_examples():
  n = 200_000
  x = jnp.full((n, 1), TENTH, jnp.float32)
  outputs, outer = (lambda w, x, *, key: x @ w), (lambda z, x: (z**2).mean() / 2)
  w = jnp.ones((1, 1))
  close(flatness.gauss_newton_diagonal(outputs, outer, w, x), [TENTH**2])
  inside = jax.jit(lambda w, x: flatness.gauss_newton_matrix(outputs, outer, w, x, chunk_size=8))
  close(inside(w, x), [[TENTH**2]])
  params = {"a": {"kernel": w}}
  layer = lambda params, x, *, key: x @ params["a"]["kernel"]
  each = lambda z, x: z[:, 0] ** 2 / 2
  for corrected in (False, True):
    blocks = flatness.kfac(layer, params, x, losses_fn=each, corrected=corrected)
    close(blocks["a/kernel"].matrix(), [[TENTH**4]], rtol=2e-6)


@pytest.mark.thorough
def test_covariances_of_many_samples():
  """Of plus and minus one tenth, along one direction."""
  n = 1_000_000
  samples = jnp.where(jnp.arange(n)[:, None] % 2, TENTH, -TENTH) * jnp.array([[1.0, 2.0]])
  close(flatness.noise_covariance(samples), TENTH**2 * np.array([[1, 2], [2, 4]]))
  close(flatness.projected_variance(samples, jnp.eye(2)), TENTH**2 * np.array([1, 4]))
  close(flatness.principal_components(samples).variances[0], 5 * TENTH**2)
  found = flatness.hessian_variance_alignment(jnp.eye(2), samples=samples)
  close(found.trace, 5 * TENTH**2)
  product = flatness.hessian_variance_alignment(lambda v: v, samples=samples[:100_000], hessian_trace=2.0)
  close(product.trace, 5 * TENTH**2)
