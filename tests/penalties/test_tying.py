"""Tied parameters, by pairs and to a reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg.penalties import l2, l2_sp, tying


def layers(seed=0):
  rng = np.random.default_rng(seed)
  draw = lambda: {"kernel": jnp.asarray(rng.normal(size=(3, 2))), "bias": jnp.asarray(rng.normal(size=2))}
  return {"first": draw(), "second": draw(), "other": draw()}


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization", "parameter tying and parameter sharing", "the penalty is the squared distance"
)
def test_gradients_are_twice_the_difference(x64):
  params = layers()
  kernels = [("first/kernel", "second/kernel")]
  value, gradient = jax.value_and_grad(lambda params: tying(params, pairs=kernels))(params)
  difference = np.asarray(params["first"]["kernel"] - params["second"]["kernel"])
  np.testing.assert_allclose(value, (difference**2).sum(), rtol=1e-14)
  np.testing.assert_allclose(gradient["first"]["kernel"], 2 * difference, rtol=1e-14)
  np.testing.assert_allclose(gradient["second"]["kernel"], -2 * difference, rtol=1e-14)
  assert not any(x.any() for x in jax.tree.leaves((gradient["other"], gradient["first"]["bias"])))


def test_subtrees_are_tied_leaf_by_leaf(x64):
  params = layers()
  want = sum(((params["first"][name] - params["second"][name]) ** 2).sum() for name in ("kernel", "bias"))
  np.testing.assert_allclose(tying(params, pairs=[("first", "second")]), want, rtol=1e-14)
  # A name is whole: "first" is not the beginning of "first_too".
  params["first_too"] = params["other"]
  np.testing.assert_allclose(tying(params, pairs=[("first", "second")]), want, rtol=1e-14)
  both = [("first", "second"), ("first/bias", "other/bias")]
  extra = ((params["first"]["bias"] - params["other"]["bias"]) ** 2).sum()
  np.testing.assert_allclose(tying(params, pairs=both), want + extra, rtol=1e-14)


@pytest.mark.claim(
  "regularization",
  "parameter tying and parameter sharing",
  "sharing is tying without limit: the tied solution goes to the shared one",
  size="toy",
)
def test_a_strong_tie_is_sharing(x64):
  curvature_a, curvature_b, at_a, at_b = 2.0, 0.5, 1.0, -3.0

  @jit
  def derivatives(strength):
    def objective(w):
      loss = 0.5 * curvature_a * (w[0] - at_a) ** 2 + 0.5 * curvature_b * (w[1] - at_b) ** 2
      return loss + strength * tying({"a": w[0], "b": w[1]}, pairs=[("a", "b")])

    at = np.zeros(2)
    return jax.hessian(objective)(at), jax.grad(objective)(at)

  def minimum(strength):
    hessian, gradient = derivatives(strength)
    return -np.linalg.solve(hessian, gradient)

  shared = (curvature_a * at_a + curvature_b * at_b) / (curvature_a + curvature_b)
  errors = [np.abs(minimum(strength) - shared).max() for strength in (1e1, 1e3, 1e5)]
  np.testing.assert_allclose(minimum(0.0), [at_a, at_b], rtol=1e-12)
  np.testing.assert_allclose(np.divide(errors[:-1], errors[1:]), 100, rtol=0.05)
  assert errors[-1] < 1e-4


@pytest.mark.thorough
def test_l2_sp_of_zero_is_l2_and_of_itself_nothing():
  params = layers()
  zero = jax.tree.map(jnp.zeros_like, params)
  np.testing.assert_allclose(l2_sp(params, reference=zero), l2(params), rtol=1e-6)
  assert l2_sp(params, reference=params) == 0
  gradient = jax.grad(lambda params: l2_sp(params, reference=zero))(params)
  np.testing.assert_allclose(gradient["first"]["kernel"], params["first"]["kernel"], rtol=1e-6)
  assert not gradient["first"]["bias"].any()
