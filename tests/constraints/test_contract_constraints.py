"""The checks of `contract.py` on the operators and projections, and the refusals of all of them."""

import functools

import contract
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import Case, Input

from jaxreg import constraints
from jaxreg.paths import everything

pytestmark = pytest.mark.thorough

PARAMS = {"params": {"kernel": Input("real", "BK"), "bias": Input("real", "K")}}
STEP = {"step": 0.5, "weight": 3.0}  # a threshold of 1.5


def _norms(w):
  return np.sqrt((w**2).sum(tuple(range(w.ndim - 1)), keepdims=True))


def _of(function):
  """An oracle of the kernel alone: the bias is not selected."""
  return lambda a: {"kernel": function(a.params["kernel"]), "bias": a.params["bias"]}


def _of_all(function):
  return lambda a: {name: function(w) for name, w in a.params.items()}


def soft(w, threshold):
  return np.sign(w) * np.maximum(np.abs(w) - threshold, 0)


def _group(w):
  # A bias is one group.
  axes = tuple(range(max(w.ndim - 1, 1)))
  norms = np.sqrt((w**2).sum(axes, keepdims=True))
  size = np.prod([w.shape[axis] for axis in axes])
  return w * np.maximum(1 - 1.5 * np.sqrt(size) / np.maximum(norms, 1e-300), 0)


def _min_max(w):
  norms = _norms(w)
  target = 0.25 * norms.clip(3, 6) + 0.75 * norms
  return w * target / np.where(norms > 0, norms, 1)


CASES = tuple(
  Case(f"constraints.{name}", inputs, oracle, options, output="same")
  for name, inputs, oracle, options in (
    ("soft_threshold", {"x": Input("real", "BK")}, lambda a: soft(a.x, 1.5), {"threshold": 1.5}),
    ("prox_l1", PARAMS, _of_all(lambda w: soft(w, 1.5)), STEP),
    ("prox_elastic_net", PARAMS, _of_all(lambda w: soft(w, 0.375) / 2.125), {**STEP, "ratio": 0.25}),
    ("prox_group_lasso", PARAMS, _of_all(_group), STEP),
    ("prox_l0", PARAMS, _of_all(lambda w: np.where(w**2 > 3, w, 0)), STEP),
    ("prox_non_negative", PARAMS, _of_all(lambda w: np.maximum(w, 0)), {}),
    ("max_norm", PARAMS, _of(lambda w: w / np.maximum(1, _norms(w) / 4)), {"limit": 4.0}),
    ("unit_norm", PARAMS, _of(lambda w: w / np.where(_norms(w) > 0, _norms(w), 1)), {}),
    ("min_max_norm", PARAMS, _of(_min_max), {"low": 3.0, "high": 6.0, "rate": 0.25}),
  )
)
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
  "check", [contract.check_jit, contract.check_vmap, contract.check_sharded], ids=lambda f: f.__name__
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
    (functools.partial(constraints.prox_group_lasso, step=0.1, weight=1.0, axis=3), "axis must be axes"),
    (functools.partial(constraints.max_norm, limit=0.0), "limit must lie in"),
    (functools.partial(constraints.max_norm, limit=1.0, axis=(0, 5)), "axis must be axes"),
    (functools.partial(constraints.min_max_norm, low=2.0, high=1.0), "high - low must lie in"),
    (functools.partial(constraints.min_max_norm, low=-1.0, high=1.0), "low must lie in"),
    (functools.partial(constraints.min_max_norm, low=0.0, high=1.0, rate=1.5), "rate must lie in"),
  ],
)
def test_refusals_of_options(function, match):
  with pytest.raises(ValueError, match=match):
    function({"kernel": jnp.ones((2, 3))})
