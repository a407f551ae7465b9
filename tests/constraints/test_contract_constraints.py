"""The checks of `contract.py` on the operators and projections, and the refusals of all of them."""

import functools

import contract
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases_constraints import CASES, STEP

from jaxreg import constraints
from jaxreg.paths import everything

pytestmark = pytest.mark.thorough

by_case = pytest.mark.parametrize("case", CASES, ids=str)


def test_every_public_function_has_a_case():
  functions = {case.function.removeprefix("constraints.") for case in CASES}
  # States, transforms and the multiplier have tests of their own.
  others = {"DualState", "ProximalState", "proximal", "project", "apply_updates_and_project"}
  assert functions | others | {"dual_init", "dual_step", "lagrangian"} == set(constraints.__all__)


@pytest.mark.parametrize("sizes", contract.SHAPES, ids=("one axis", "two axes"))
@by_case
def test_oracle(case, sizes):
  contract.check_oracle(case, sizes)


@pytest.mark.parametrize("check", [contract.check_float64, contract.check_dtypes], ids=lambda f: f.__name__)
@by_case
def test_dtypes(case, check):
  check(case)


@pytest.mark.parametrize(
  "check",
  [
    contract.check_jit,
    pytest.param(contract.check_vmap, marks=pytest.mark.slow),
    pytest.param(contract.check_sharded, marks=pytest.mark.slow),
  ],
  ids=lambda f: f.__name__,
)
@by_case
def test_transforms(case, check):
  check(case)


@by_case
def test_gradients(case):
  contract.check_gradients(case)


@by_case
def test_finite_at_extremes_and_zero(case):
  contract.check_finite(case)
  zeros = jax.tree.map(jnp.zeros_like, contract.make(case))
  ones = contract._cotangent(case, np.ones, np.float32)
  outputs, gradient = contract._with_vjp(case)(*contract._split_floats(case, zeros), ones)
  assert all((x == 0).all() for x in jax.tree.leaves(outputs))
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


ON_PARAMS = {
  name: functools.partial(getattr(constraints, name), **options)
  for name, options in {
    "prox_l1": STEP,
    "prox_elastic_net": {**STEP, "ratio": 0.5},
    "prox_group_lasso": STEP,
    "prox_l0": STEP,
    "prox_non_negative": {},
    "max_norm": {"limit": 1.0},
    "unit_norm": {},
    "min_max_norm": {"low": 1.0, "high": 2.0},
  }.items()
}


@pytest.mark.parametrize("name", ON_PARAMS)
def test_refusals_of_params_and_masks(name):
  function, params = ON_PARAMS[name], {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3, jnp.int32)}
  with pytest.raises(TypeError, match="params/bias must be floating, got int32"):
    function(params, mask=everything)
  with pytest.raises(ValueError, match=r"mask selects no parameter.*bias, kernel"):
    function(params, mask=lambda params: jax.tree.map(lambda _: False, params))
  tree = {"kernel": True, "bias": False}
  jax.tree.map(
    np.testing.assert_array_equal, function(params, mask=tree), function(params, mask=lambda params: tree)
  )


@pytest.mark.parametrize(
  ("function", "match"),
  [
    (functools.partial(constraints.prox_l1, step=0.1, weight=-1.0), "weight must lie in"),
    (functools.partial(constraints.prox_elastic_net, step=0.1, weight=1.0, ratio=2.0), "ratio must lie in"),
    (functools.partial(constraints.prox_group_lasso, step=0.1, weight=1.0, axis=3), "axis must name axes"),
    (functools.partial(constraints.max_norm, limit=0.0), "limit must lie in"),
    (functools.partial(constraints.max_norm, limit=1.0, axis=(0, 5)), "axis must name axes"),
    (functools.partial(constraints.min_max_norm, low=2.0, high=1.0), "high - low must lie in"),
    (functools.partial(constraints.min_max_norm, low=-1.0, high=1.0), "low must lie in"),
    (functools.partial(constraints.min_max_norm, low=0.0, high=1.0, rate=1.5), "rate must lie in"),
  ],
)
def test_refusals_of_options(function, match):
  with pytest.raises(ValueError, match=match):
    function({"kernel": jnp.ones((2, 3))})
