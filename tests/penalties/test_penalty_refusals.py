"""What the penalties refuse."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxreg import penalties
from jaxreg.train.registry import REGISTRY

ON_PARAMS = {
  name: functools.partial(entry.function, **entry.defaults)
  for name, entry in REGISTRY["regularizers"].items()
  if "mask" in entry.needs
}
ON_PARAMS["l2_sp"] = functools.partial(penalties.l2_sp, reference={"kernel": jnp.ones((2, 3))})
ON_ACTIVATIONS = [
  getattr(penalties, name)
  for name in ("l1_activity", "kl_sparsity", "activity_variance", "activity_covariance")
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ON_PARAMS)
def test_refusals_of_params_and_masks(name):
  penalty, params = ON_PARAMS[name], {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3, jnp.int32)}
  assert penalty(params).shape == ()
  with pytest.raises(TypeError, match="params/bias must be floating, got int32"):
    penalty(params, mask="*")
  with pytest.raises(ValueError, match=r"mask selects no parameter.*bias, kernel"):
    penalty(params, mask=lambda params: jax.tree.map(lambda _: False, params))
  with pytest.raises(ValueError, match="mask must be globs, a tree of bools"):
    penalty(params, mask=lambda params: {"kernel": True})
  for mask in ({"kernel": True, "bias": False}, None, "kernel", ("k*",)):
    assert penalty(params, mask=mask) == penalty(params)


@pytest.mark.parametrize(
  ("penalty", "match"),
  [
    (functools.partial(penalties.elastic_net, ratio=1.5), "ratio must lie in"),
    (functools.partial(penalties.group_lasso, axis=2), "axis must name axes of kernel"),
    (functools.partial(penalties.orthogonality, axis=(0, -3)), "axis must name axes of kernel"),
    (functools.partial(penalties.l2_sp, reference={"kernel": jnp.ones((3, 2))}), r"\(2, 3\), got shape"),
    (functools.partial(penalties.l2_sp, reference={"weight": jnp.ones((2, 3))}), "got none"),
    (
      functools.partial(
        penalties.l2_sp, reference={"kernel": jnp.ones((2, 3))}, fisher={"kernel": jnp.ones(3)}
      ),
      r"fisher must have 'kernel' of shape \(2, 3\), got shape \(3,\)",
    ),
    (penalties.lora_l2, "names must name pairs of factors, lora_a and lora_b, got one: none at all"),
    (functools.partial(penalties.lora_l2, names=("kernel", "scale")), "got one: "),
    (functools.partial(penalties.lora_l2, names=("kernel", "bias")), "must name factors"),
    (functools.partial(penalties.lora_l2, names=("bias", "bias")), "must be two different names"),
    (functools.partial(penalties.tying, pairs=[]), "pairs must hold"),
    (functools.partial(penalties.tying, pairs=[("kernel", "kernels")]), "no parameter 'kernels'"),
    (functools.partial(penalties.tying, pairs=[("kernel", "bias")]), "must have equal shapes"),
  ],
)
def test_refusals_of_options(penalty, match):
  with pytest.raises(ValueError, match=match):
    penalty({"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)})


@pytest.mark.parametrize("function", ON_ACTIVATIONS)
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
  for function in ON_ACTIVATIONS[1:]:
    with pytest.raises(ValueError, match="weights must have shape"):
      function(hidden, weights=jnp.ones(3))
  with pytest.raises(ValueError, match="target must lie"):
    penalties.activity_variance(hidden, target=-1.0)
  with pytest.raises(ValueError, match="eps must lie"):
    penalties.activity_variance(hidden, eps=0.0)


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
    penalties.jacobian_penalty(apply_fn, jnp.ones((3, 2)), jnp.ones((4, 3)), num_samples=2)
  with pytest.raises(ValueError, match="num_samples must be at least 1"):
    penalties.jacobian_penalty(
      apply_fn, jnp.ones((3, 2)), jnp.ones((4, 3)), num_samples=0, key=jax.random.key(0)
    )
