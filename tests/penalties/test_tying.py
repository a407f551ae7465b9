"""Tied parameters, by pairs and to a reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg.penalties import l2, l2_sp, lora_l2, tying


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


def test_elastic_weight_consolidation_keeps_what_the_first_task_needs(x64):
  """Two quadratics: with the first one's Hessian as Fisher matrix the minimum is that of their sum."""
  first, second = np.array([4.0, 0.1]), np.array([0.5, 3.0])
  at_first, at_second = np.array([1.0, -2.0]), np.array([-1.0, 5.0])
  fisher, start = {"kernel": jnp.asarray(first)}, {"kernel": jnp.asarray(at_first)}

  @jit
  def newton(w):
    objective = lambda w: (
      (0.5 * second * (w - at_second) ** 2).sum() + l2_sp({"kernel": w}, reference=start, fisher=fisher)
    )
    return w - jnp.linalg.solve(jax.hessian(objective)(w), jax.grad(objective)(w))

  want = (first * at_first + second * at_second) / (first + second)
  np.testing.assert_allclose(newton(jnp.zeros(2)), want, rtol=1e-12)
  ones = jax.tree.map(jnp.ones_like, start)
  np.testing.assert_allclose(
    l2_sp({"kernel": jnp.zeros(2)}, reference=start, fisher=ones),
    l2_sp({"kernel": jnp.zeros(2)}, reference=start),
  )


def test_the_product_of_lora_factors_is_numpy_s(x64):
  rng = np.random.default_rng(5)
  a, b = rng.normal(size=(7, 2)), rng.normal(size=(2, 5))
  stacked_a, stacked_b = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 2, 6))
  params = {
    "query": {"kernel": jnp.ones((7, 5)), "lora_a": a, "lora_b": b},
    "blocks": {"lora_a": stacked_a, "lora_b": stacked_b},
  }
  want = 0.5 * (np.linalg.norm(a @ b) ** 2 + np.linalg.norm(stacked_a @ stacked_b) ** 2)
  np.testing.assert_allclose(lora_l2(params), want, rtol=1e-12)
  gradient = jit(jax.grad(lora_l2))(params)
  np.testing.assert_allclose(gradient["query"]["lora_a"], a @ b @ b.T, rtol=1e-10)
  np.testing.assert_allclose(gradient["query"]["lora_b"], a.T @ a @ b, rtol=1e-10)
  assert not gradient["query"]["kernel"].any()
  # It depends on the product alone, unlike L2 of the factors.
  turn = rng.normal(size=(2, 2))
  same = {"lora_a": a @ turn, "lora_b": np.linalg.solve(turn, b)}
  np.testing.assert_allclose(lora_l2(same), 0.5 * np.linalg.norm(a @ b) ** 2, rtol=1e-10)
  other_names = {"A": b.T, "B": a.T}  # as PyTorch stores them: the product is transposed
  np.testing.assert_allclose(lora_l2(other_names, names=("A", "B")), 0.5 * np.linalg.norm(a @ b) ** 2)


def test_no_matrix_of_the_adapted_size_is_formed():
  shapes = {"lora_a": jax.ShapeDtypeStruct((4000, 4), np.float32)}
  shapes["lora_b"] = jax.ShapeDtypeStruct((4, 4000), np.float32)
  memory = jax.jit(jax.value_and_grad(lora_l2)).lower(shapes).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 1e6  # the product alone would be 64 MB
