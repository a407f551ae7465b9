"""The checks of `contract.py` on the penalties whose arguments are arrays, and refusals of all of them."""

import functools

import contract
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases_penalties import CASES

from jaxreg import penalties
from jaxreg.paths import everything
from jaxreg.train.lookup import parameters
from jaxreg.train.step.named import REGULARIZERS

pytestmark = pytest.mark.thorough

by_case = pytest.mark.parametrize("case", CASES, ids=str)


def test_every_public_function_has_a_case():
  functions = {case.function.removeprefix("penalties.") for case in CASES}
  # These take and return functions: test_penalized.
  assert functions | {"penalized", "penalized_terms"} == set(penalties.__all__)


@pytest.mark.parametrize("sizes", contract.SHAPES, ids=("one axis", "two axes"))
@by_case
def test_oracle(case, sizes):
  if "gradient" in case.function or "jacobian" in case.function:
    sizes = contract.SIZES  # an example's inputs are what has no batch axis
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


@pytest.mark.parametrize("case", [case for case in CASES if case.gradient], ids=str)
def test_gradients(case):
  contract.check_gradients(case)


@by_case
def test_finite(case):
  contract.check_finite(case)


@by_case
def test_finite_at_zero(case):
  zeros = jax.tree.map(jnp.zeros_like, contract.make(case))
  ones = contract._cotangent(case, np.ones, np.float32)
  outputs, gradient = contract._with_vjp(case)(*contract._split_floats(case, zeros), ones)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves((outputs, gradient)))


ON_PARAMS = {name: penalty for name, penalty in REGULARIZERS.items() if "mask" in parameters(penalty)}
ON_PARAMS["l2_sp"] = functools.partial(penalties.l2_sp, reference={"kernel": jnp.ones((2, 3))})


@pytest.mark.parametrize("name", ON_PARAMS)
def test_refusals_of_params_and_masks(name):
  penalty, params = ON_PARAMS[name], {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3, jnp.int32)}
  assert penalty(params).shape == ()
  with pytest.raises(TypeError, match="params/bias must be floating, got int32"):
    penalty(params, mask=everything)
  with pytest.raises(ValueError, match=r"mask selects no parameter.*bias, kernel"):
    penalty(params, mask=lambda params: jax.tree.map(lambda _: False, params))
  with pytest.raises(ValueError, match="mask must be a tree of bools"):
    penalty(params, mask=lambda params: {"kernel": True})
  assert penalty(params, mask={"kernel": True, "bias": False}) == penalty(params)


@pytest.mark.parametrize(
  ("penalty", "match"),
  [
    (functools.partial(penalties.elastic_net, ratio=1.5), "ratio must lie in"),
    (functools.partial(penalties.gaussian_prior, precision=0.0), "precision must lie in"),
    (functools.partial(penalties.laplace_prior, rate=-1.0), "rate must lie in"),
    (functools.partial(penalties.group_lasso, axis=2), "axis must name axes of kernel"),
    (functools.partial(penalties.orthogonality, axis=(0, -3)), "axis must name axes of kernel"),
    (functools.partial(penalties.l2_sp, reference={"kernel": jnp.ones((3, 2))}), r"\(2, 3\), got shape"),
    (functools.partial(penalties.l2_sp, reference={"weight": jnp.ones((2, 3))}), "got none"),
    (functools.partial(penalties.tying, pairs=[]), "pairs must hold"),
    (functools.partial(penalties.tying, pairs=[("kernel", "kernels")]), "no parameter 'kernels'"),
    (functools.partial(penalties.tying, pairs=[("kernel", "bias")]), "differ"),
  ],
)
def test_refusals_of_options(penalty, match):
  with pytest.raises(ValueError, match=match):
    penalty({"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)})


@pytest.mark.parametrize("function", [penalties.l1_activity, penalties.kl_sparsity, penalties.sparsity])
def test_refusals_of_activations(function):
  for wrong in (jnp.ones((2, 3), jnp.int32), jnp.ones((2, 3), bool)):
    with pytest.raises(TypeError, match="activations must be floating"):
      function(wrong)
  with pytest.raises(ValueError, match="batch axis"):
    function(jnp.ones(()))


def test_other_refusals_on_activations():
  hidden = jnp.ones((2, 3))
  for target in (0.0, 1.0, float("nan")):
    with pytest.raises(ValueError, match="target must lie"):
      penalties.kl_sparsity(hidden, target=target)
  with pytest.raises(ValueError, match="weights must have shape"):
    penalties.kl_sparsity(hidden, weights=jnp.ones(3))
  with pytest.raises(ValueError, match="tolerance must lie"):
    penalties.sparsity(hidden, tolerance=-1.0)


def test_refusals_of_functions_of_inputs():
  apply_fn = lambda params, x: x @ params
  with pytest.raises(ValueError, match=r"apply_fn must give \[batch\].*jacobian_penalty"):
    penalties.gradient_penalty(apply_fn, jnp.ones((3, 2)), jnp.ones((4, 3)))
  with pytest.raises(ValueError, match="apply_fn must give"):
    penalties.jacobian_penalty(lambda _, x: x.sum(), None, jnp.ones((4, 3)))
  for function in (penalties.gradient_penalty, penalties.jacobian_penalty):
    with pytest.raises(TypeError, match="x must be floating"):
      function(apply_fn, jnp.ones((3, 1)), jnp.ones((4, 3), jnp.int32))
    with pytest.raises(ValueError, match="x must have a batch axis"):
      function(apply_fn, jnp.ones((3, 1)), jnp.ones(()))
  with pytest.raises(TypeError, match="key must be given"):
    penalties.jacobian_penalty(apply_fn, jnp.ones((3, 2)), jnp.ones((4, 3)), num_projections=2)
  with pytest.raises(ValueError, match="num_projections must be at least 1"):
    penalties.jacobian_penalty(
      apply_fn, jnp.ones((3, 2)), jnp.ones((4, 3)), num_projections=0, key=jax.random.key(0)
    )
