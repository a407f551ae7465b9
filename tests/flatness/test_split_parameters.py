"""Curvature of parameters that are split over devices, against JAX's dense Hessian of the whole ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg import flatness, losses
from jaxreg.flatness import _eigen

_draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)
PARAMS = {"hidden": 0.6 * _draw(0, 6, 8), "last": 0.6 * _draw(1, 8, 4), "scale": jnp.ones(8)}
SPECS = {"hidden": P(None, "model"), "last": P("model", None), "scale": P("model")}
BATCH = {"x": 2 * _draw(2, 12, 6), "y": jnp.arange(12) % 4}
HALVES = [jax.tree.map(lambda x, rows=rows: x[rows], BATCH) for rows in (slice(0, 8), slice(8, 12))]


def loss_fn(params, batch, *, key):
  hidden = jnp.tanh(batch["x"] @ params["hidden"]) * params["scale"][None]
  loss = lambda logits, labels: losses.softmax_cross_entropy(logits, labels)
  return losses.linear(loss, hidden, params["last"], batch["y"], chunk_size=3).mean()


def dense():
  """The matrix of the two kernels; the scale is left out."""
  part = flatness.subset(PARAMS, ("hidden", "last"))
  logits = lambda p: (jnp.tanh(BATCH["x"] @ p["hidden"]) * p["scale"][None]) @ p["last"]
  loss = lambda p: losses.softmax_cross_entropy(logits(p), BATCH["y"]).mean()
  return np.asarray(jax.hessian(lambda flat: loss(part.merge(flat)))(part.flat), np.float64)


def split(kind, devices=2):
  mesh = jax.make_mesh((devices,), ("model",), axis_types=(getattr(AxisType, kind),))
  placed = {name: jax.device_put(x, NamedSharding(mesh, SPECS[name])) for name, x in PARAMS.items()}
  data = [jax.device_put(part, NamedSharding(mesh, P())) for part in HALVES]
  return mesh, flatness.Curvature(loss_fn, placed, data, mask=("hidden", "last"))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_the_pairs_and_the_trace_are_those_of_the_whole_and_stay_split(kind):
  mesh, curvature = split(kind)
  with jax.set_mesh(mesh):
    found = curvature.top_eigenpairs(key=jax.random.key(0), num_pairs=3, num_steps=24)
    trace = curvature.trace(key=jax.random.key(1), num_samples=20)
  matrix = dense()
  expected = np.linalg.eigvalsh(matrix)[::-1][:3]
  np.testing.assert_allclose(found.values, expected, rtol=1e-3)
  assert found.converged.all()
  assert abs(trace.mean - np.trace(matrix)) <= 5 * trace.standard_error
  whole = flatness.Curvature(loss_fn, PARAMS, HALVES, mask=("hidden", "last"))
  np.testing.assert_allclose(trace, whole.trace(key=jax.random.key(1), num_samples=20), rtol=1e-4)
  for value, vector in zip(expected, found.vectors, strict=True):
    for name, leaf in vector.items():
      assert leaf.sharding.is_equivalent_to(NamedSharding(mesh, SPECS[name]), leaf.ndim)
      assert leaf.addressable_shards[0].data.size == PARAMS[name].size / 2
    flat = np.concatenate([np.asarray(vector[name]).reshape(-1) for name in ("hidden", "last")])
    np.testing.assert_allclose(matrix @ flat, value * flat, atol=3e-3 * expected[0])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_the_layers_are_the_blocks_of_the_whole(kind):
  mesh, curvature = split(kind)
  with jax.set_mesh(mesh):
    found = flatness.layerwise(curvature, key=jax.random.key(0), num_samples=40, num_steps=20)
  matrix = dense()
  assert found.names == ("hidden", "last")
  for number, rows in enumerate((slice(0, 48), slice(48, 80))):
    block = matrix[rows, rows]
    assert abs(found.traces.mean[number] - np.trace(block)) <= 5 * found.traces.standard_error[number]
    np.testing.assert_allclose(found.top_eigenvalues[number], np.linalg.eigvalsh(block)[-1], rtol=1e-3)
    assert found.residuals[number] <= 1e-2 * found.top_eigenvalues[number]
  assert np.isnan(found.frobenius_norms.mean).all()
  assert found.diagonals == found.densities == ()


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
def test_a_budget_restarts_the_iteration_and_finds_the_same(which):
  """Six vectors beside those of the iteration, for 60 products of a matrix of 80 rows."""
  curvature = flatness.Curvature(loss_fn, PARAMS, HALVES, mask=("hidden", "last"))
  options = {"key": jax.random.key(0), "num_pairs": 2, "num_steps": 60, "which": which}
  found = curvature.top_eigenpairs(max_bytes=10 * 80 * 4, **options)
  values = np.linalg.eigvalsh(dense())
  rank = {"largest": -values, "smallest": values, "magnitude": -np.abs(values)}[which]
  np.testing.assert_allclose(found.values, values[np.argsort(rank)[:2]], rtol=2e-3)
  assert found.converged.all()
  with pytest.raises(ValueError, match="max_bytes must be at least 2240 for 4 vectors, got 100"):
    curvature.top_eigenpairs(max_bytes=100, **options)


@pytest.mark.thorough
def test_a_budget_holds_for_all_arrays_also_in_a_restart(monkeypatch):
  """All live arrays are counted with each step of the arithmetic."""
  names = [f"a{number}" for number in range(4)]
  params = {name: jnp.ones(1000) for name in names}
  loss = lambda params, batch, *, key: sum(
    (jnp.sin(batch * params[name][None]) ** 2).mean() for name in names
  )
  curvature = flatness.Curvature(loss, params, _draw(4, 1, 1000))
  held, orthogonalized = [], _eigen.orthogonalized

  def counted(*arguments):
    held.append(sum(x.nbytes for x in jax.live_arrays()))
    return orthogonalized(*arguments)

  monkeypatch.setattr(_eigen, "orthogonalized", counted)
  before = sum(x.nbytes for x in jax.live_arrays())
  options = {"key": jax.random.key(0), "num_pairs": 2, "num_steps": 30}
  found = curvature.top_eigenpairs(max_bytes=16 * 16000, **options)
  assert held
  assert max(held) - before <= 16 * 16000
  assert max(held) - before >= 14 * 16000, "the budget is used"
  assert len(found.values) == 2


@pytest.mark.thorough
def test_a_matrix_of_low_rank_is_exhausted_without_false_values():
  params, x = {"a": jnp.ones(9)}, _draw(3, 2, 9)
  loss = lambda params, batch, *, key: 0.5 * ((batch @ params["a"]) ** 2).mean()
  found = flatness.Curvature(loss, params, x).top_eigenpairs(
    key=jax.random.key(0), num_pairs=4, num_steps=9, max_bytes=10_000
  )
  expected = np.linalg.eigvalsh(np.asarray(x.T @ x, np.float64) / 2)[::-1][:4]
  np.testing.assert_allclose(found.values, expected, atol=1e-5 * expected[0])


def test_what_cannot_be_split_is_refused():
  _, curvature = split("Auto")
  message = "params are split over devices, where only top_eigenpairs, trace and layerwise"
  key = jax.random.key(0)
  for call in (
    lambda: curvature.diagonal(key=key),
    lambda: curvature.density(key=key),
    lambda: curvature.matrix(),
    lambda: curvature(jnp.ones(80)),
    lambda: curvature.solve(jnp.ones(80), damping=1.0),
  ):
    with pytest.raises(ValueError, match=message):
      call()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_a_gauss_newton_matrix_and_its_layers_stay_split(kind):
  mesh, curvature = split(kind)

  def logits_fn(params, batch, *, key):
    return jnp.einsum(
      "nh,hc->nc", jnp.tanh(batch["x"] @ params["hidden"]), params["last"], out_sharding=OUT[kind]
    )

  def outer_loss(logits, batch):
    return losses.softmax_cross_entropy(logits, batch["y"]).mean()

  OUT = {"Auto": None, "Explicit": P()}
  newton = curvature.gauss_newton(logits_fn, outer_loss)
  with jax.set_mesh(mesh):
    top = newton.top_eigenpairs(key=jax.random.key(0), num_steps=24)
    layers = flatness.layerwise(newton, key=jax.random.key(1), num_samples=2, num_steps=10, num_starts=20)
  plain = lambda params, batch, *, key: jnp.tanh(batch["x"] @ params["hidden"]) @ params["last"]
  matrix = flatness.gauss_newton(plain, outer_loss, PARAMS, BATCH, mask=("hidden", "last")).matrix()
  np.testing.assert_allclose(top.values, np.linalg.eigvalsh(matrix)[-1:], rtol=1e-3)
  for number, rows in enumerate((slice(0, 48), slice(48, 80))):
    error = 5 * layers.frobenius_norms.standard_error[number]
    assert abs(layers.frobenius_norms.mean[number] - np.linalg.norm(matrix[rows, rows])) <= error
  assert len(layers.densities) == 2
