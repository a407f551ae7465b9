"""Norms at the ends of float32, where squares vanish or overflow: against the plain formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg import constraints, losses, penalties

RNG = np.random.default_rng(0)
W, OTHER = RNG.normal(size=(4, 3)), RNG.normal(size=(4, 3))
LABELS = np.array([0, 1, 2, 0])


def length(w):
  return jnp.sqrt((w**2).sum(0))


def cosines(x):
  return (x @ OTHER[:3]) / length(x.T)[:, None] / length(OTHER[:3])


def margin(x):
  lowered = 64 * (cosines(x) - 0.35 * np.eye(3)[LABELS])
  return (jax.nn.logsumexp(lowered, axis=1) - (lowered * np.eye(3)[LABELS]).sum(1)).sum()


def angles(x):
  widened = jnp.cos(jnp.arccos(cosines(x)) + 0.5)  # no angle of these passes pi - 0.5
  scores = 64 * jnp.where(np.eye(3, dtype=bool)[LABELS], widened, cosines(x))
  return (jax.nn.logsumexp(scores, axis=1) - (scores * np.eye(3)[LABELS]).sum(1)).sum()


def of_kernel(function):
  return lambda w, size: (function({"kernel": w}, size)["kernel"] * OTHER.astype(w.dtype)).sum()


def plain(function):
  return lambda w, size: (function(w, size) * OTHER).sum()


# The function, and the formula, of the weights and of their size; what is bounded is bounded at half of it.
CASES = {
  "unit_norm": (of_kernel(lambda w, s: constraints.unit_norm(w)), plain(lambda w, s: w / length(w))),
  "max_norm": (
    of_kernel(lambda w, s: constraints.max_norm(w, limit=s / 2)),
    plain(lambda w, s: w / length(w) * s / 2),
  ),
  "min_max_norm": (
    of_kernel(lambda w, s: constraints.min_max_norm(w, low=0.0, high=s / 2, rate=0.25)),
    plain(lambda w, s: 0.75 * w + 0.25 * w / length(w) * s / 2),
  ),
  "prox_group_lasso": (
    of_kernel(lambda w, s: constraints.prox_group_lasso(w, s, weight=0.25)),
    plain(lambda w, s: w * (1 - 0.5 * s / length(w))),
  ),
  "group_lasso": (
    lambda w, s: penalties.group_lasso({"kernel": w}, size_weighted=False),
    lambda w, s: length(w).sum(),
  ),
  "cosface": (
    lambda w, s: losses.cosface(w, OTHER[:3].astype(w.dtype), LABELS).sum(),
    lambda w, s: margin(w),
  ),
  "arcface": (
    lambda w, s: losses.arcface(w, OTHER[:3].astype(w.dtype), LABELS).sum(),
    lambda w, s: angles(w),
  ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_at_the_ends_of_float32(name):
  function, formula = CASES[name]
  got, exact = jit(jax.value_and_grad(function)), jax.jit(jax.value_and_grad(formula))
  for size in (1e-30, 1e-20, 1.0, 1e20, 1e30, 1e38):
    w = (W * size).astype(np.float32)
    value, gradient = got(w, np.float32(size))
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
      want, slope = exact(jnp.asarray(w, jnp.float64), size)
    if size == 1e38 and name == "group_lasso":
      continue  # the sum of the norms is no number of float32
    np.testing.assert_allclose(value, want, rtol=1e-5)
    if size < 1e38:  # where gradients that go as 1 / size are no normal numbers
      np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=2e-5 * np.abs(slope).max())


@pytest.mark.thorough
def test_kernels_at_the_ends_of_float32_have_the_same_angles():
  for function in (losses.cosface, losses.arcface):
    at = jit(lambda size, function=function: function(jnp.float32(W), jnp.float32(OTHER[:3]) * size, LABELS))
    for size in (1e-30, 1e38):
      np.testing.assert_allclose(at(np.float32(size)), at(np.float32(1)), rtol=1e-5)
