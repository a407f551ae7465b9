"""What the operators and projections refuse."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest

from jaxreg import constraints

STEP = {"step": 0.5, "weight": 3.0}
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


@pytest.mark.thorough
@pytest.mark.parametrize("name", ON_PARAMS)
def test_refusals_of_params_and_masks(name):
  function, params = ON_PARAMS[name], {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3, jnp.int32)}
  with pytest.raises(TypeError, match="params/bias must be floating, got int32"):
    function(params, mask="*")
  with pytest.raises(ValueError, match=r"mask selects no parameter.*bias, kernel"):
    function(params, mask=lambda params: jax.tree.map(lambda _: False, params))
  tree = {"kernel": True, "bias": False}
  for mask in (tree, None, "kernel", lambda params: tree):
    chex.assert_trees_all_equal(function(params, mask=mask), function(params))


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
