"""The paper's three relations on a small network, and what keep probability means."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxreg import flatness, losses, noise

KEEP = 0.8
WIDTHS = (12, 14, 14, 4)


def _forward(params, x, key=None):
  x = jax.nn.relu(x @ params["first"]["kernel"] + params["first"]["bias"][None])
  x = jax.nn.relu(x @ params["second"]["kernel"] + params["second"]["bias"][None])
  if key is not None:
    x = noise.dropout(key, x, rate=1 - KEEP)
  return x @ params["third"]["kernel"] + params["third"]["bias"][None]


def _loss(params, batch, *, key):
  return losses.softmax_cross_entropy(_forward(params, batch[0], key), batch[1]).mean()


@functools.cache
def _trained():
  """Full-batch gradient descent with dropout until every example is right; labels of a random teacher."""
  generator = np.random.default_rng(0)
  x = jnp.asarray(generator.normal(size=(300, WIDTHS[0])), jnp.float32)
  labels = jnp.asarray((np.asarray(x) @ generator.normal(size=(WIDTHS[0], WIDTHS[-1]))).argmax(-1))
  params = {
    name: {
      "kernel": jnp.asarray(generator.normal(size=(a, b)) * np.sqrt(2 / a), jnp.float32),
      "bias": jnp.zeros(b),
    }
    for name, a, b in zip(("first", "second", "third"), WIDTHS, WIDTHS[1:])
  }

  def step(params, key):
    grads = jax.grad(_loss)(params, (x, labels), key=key)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), None

  params, _ = jax.jit(lambda p: jax.lax.scan(step, p, jax.random.split(jax.random.key(0), 3000)))(params)
  assert (_forward(params, x).argmax(-1) == labels).mean() > 0.99
  return params, (x, labels)


@functools.cache
def _samples():
  params, batch = _trained()
  return np.asarray(
    flatness.sample_gradients(
      _loss, params, batch, key=jax.random.key(1), num_samples=1500, mask="second/*", chunk_size=50
    )
  )


@pytest.mark.slow
@pytest.mark.claim(
  "flatness",
  "figure 2",
  "the noise's variance is larger along sharper directions; isotropic noise's is not",
  size="toy",
)
def test_variance_falls_with_flatness():
  params, batch = _trained()
  samples = _samples()
  control = samples.std() * np.random.default_rng(0).normal(size=samples.shape).astype(np.float32)
  slopes = {}
  for name, each in (("dropout", samples), ("isotropic", control)):
    parts = flatness.principal_components(each)
    rows = np.asarray(parts.directions)[: int(parts.rank) : 3]
    width = flatness.interval_flatness(_loss, params, rows, batch, mask="second/*").width
    fit = flatness.power_law_fit(width, jnp.asarray(parts.variances)[: int(parts.rank) : 3])
    slopes[name] = np.asarray(fit.slope_interval)
  assert slopes["dropout"][1] < -1
  assert slopes["isotropic"][0] < 0.1
  assert slopes["isotropic"][1] > -0.1


@pytest.mark.slow
@pytest.mark.claim(
  "flatness", "figure 3", "the projected variance grows with the Hessian's eigenvalue", size="toy"
)
def test_projected_variance_grows_with_curvature():
  params, batch = _trained()
  hessian = flatness.hessian(_loss, params, batch, mask="second/*")
  values, vectors = np.linalg.eigh(np.asarray(hessian, np.float64))
  variances = flatness.projected_variance(_samples(), vectors.T.astype(np.float32))
  mask = values > 1e-6 * values.max()
  fit = flatness.power_law_fit(np.abs(values).astype(np.float32), variances, where=mask)
  assert float(fit.slope_interval[0]) > 0.1
  assert float(fit.correlation_interval[0]) > 0.3
  control = np.random.default_rng(0).normal(size=(1500, len(values))).astype(np.float32)
  variances = flatness.projected_variance(control, vectors.T.astype(np.float32))
  low, high = flatness.power_law_fit(np.abs(values).astype(np.float32), variances, where=mask).slope_interval
  assert -0.02 < float(low) < 0.02
  assert -0.02 < float(high) < 0.02


@pytest.mark.claim(
  "flatness", "figure 4", "Tr(H Sigma) is much larger than with isotropic noise of the same trace", size="toy"
)
@pytest.mark.thorough
def test_noise_aligns_with_curvature():
  params, batch = _trained()
  hessian = flatness.hessian(_loss, params, batch, mask="second/*")
  found = flatness.hessian_variance_alignment(hessian, samples=_samples())
  assert float(found.ratio) > 5
  # Which parameter comes first is nothing to it.
  order = np.random.default_rng(0).permutation(len(hessian))
  again = flatness.hessian_variance_alignment(hessian[order][:, order], samples=_samples()[:, order])
  np.testing.assert_allclose(again.ratio, found.ratio, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.claim(
  "flatness",
  "section 3.3",
  "p is the probability of keeping: the mask is 1/p with probability p, its variance (1-p)/p",
)
@pytest.mark.parametrize("framework", ["ours", "flax"])
def test_keep_probability_is_one_less_the_rate(framework):
  ones, key = jnp.ones(200_000), jax.random.key(0)
  if framework == "ours":
    mask = noise.dropout(key, ones, rate=1 - KEEP)
  else:
    mask = nn.Dropout(1 - KEEP, deterministic=False).apply({}, ones, rngs={"dropout": key})
  assert set(np.unique(np.asarray(mask)).round(5)) == {0, np.float32(1 / KEEP)}
  share = float((mask > 0).mean())
  assert share == pytest.approx(KEEP, abs=4 * np.sqrt(KEEP * (1 - KEEP) / 200_000))
  assert float(mask.mean()) == pytest.approx(1, abs=5e-3)
  assert float(mask.var()) == pytest.approx((1 - KEEP) / KEEP, abs=5e-3)
