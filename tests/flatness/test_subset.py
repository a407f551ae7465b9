import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxreg import flatness, paths

TREE = {
  "a": {"kernel": np.arange(6.0).reshape(2, 3), "bias": np.array([7.0])},
  "b": {"kernel": np.array([9.0])},
}


@pytest.mark.parametrize(
  ("mask", "names", "flat"),
  [
    ("*", ("a/bias", "a/kernel", "b/kernel"), [7, 0, 1, 2, 3, 4, 5, 9]),
    ("a/*", ("a/bias", "a/kernel"), [7, 0, 1, 2, 3, 4, 5]),
    (["*/bias", "b/*"], ("a/bias", "b/kernel"), [7, 9]),
    (re.compile("^a/k"), ("a/kernel",), [0, 1, 2, 3, 4, 5]),
    (lambda tree: paths.select(tree, lambda name: name.startswith("b")), ("b/kernel",), [9]),
    (jax.tree.map(lambda x: x.ndim == 2, TREE), ("a/kernel",), [0, 1, 2, 3, 4, 5]),
  ],
)
def test_selects_by_name(mask, names, flat):
  part = flatness.subset(TREE, mask)
  assert part.names == names
  np.testing.assert_array_equal(part.flat, flat)


def test_merge_changes_what_is_selected_and_nothing_else():
  merged = flatness.subset(TREE, "a/*").merge(jnp.arange(10.0, 17.0))
  np.testing.assert_array_equal(merged["a"]["bias"], [10])
  np.testing.assert_array_equal(merged["a"]["kernel"], [[11, 12, 13], [14, 15, 16]])
  assert merged["b"]["kernel"] is TREE["b"]["kernel"]


def test_works_inside_a_transformation():
  gradient = jax.grad(lambda v: (flatness.subset(TREE, "a/kernel").merge(v)["a"]["kernel"] ** 2).sum())
  np.testing.assert_array_equal(gradient(jnp.ones(6)), 2 * np.ones(6))


@pytest.mark.parametrize(
  "mask", ["c/*", ["a/*", "kernle"], lambda tree: paths.select(tree, lambda name: False)]
)
def test_selecting_nothing_is_told(mask):
  with pytest.raises(
    ValueError, match=r"mask.* selects no parameter.*; there are a/bias, a/kernel, b/kernel"
  ):
    flatness.subset(TREE, mask)


def test_a_vector_of_another_size_is_refused():
  with pytest.raises(ValueError, match=r"vector must have shape \(7,\), got \(8,\)"):
    flatness.subset(TREE, "a/*").merge(jnp.ones(8))
  with pytest.raises(
    TypeError, match=r"vector must be a vector of shape \(7,\).*got a tree; convert it with subset"
  ):
    flatness.subset(TREE, "a/*").merge(TREE)


class _Norms(nnx.Module):
  def __init__(self):
    self.norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))


LINEN = {"params": {"scale": np.ones(2)}, "batch_stats": {"mean": np.ones(2), "var": np.ones(2)}}
EQUINOX = eqx.filter(eqx.nn.BatchNorm(2, axis_name="batch", mode="batch"), eqx.is_inexact_array)


@pytest.mark.parametrize(
  ("params", "named", "mask", "size"),
  [
    (LINEN, "batch_stats/mean, batch_stats/var", "params/*", 2),
    (nnx.split(_Norms())[1], "norm/mean, norm/var", ["*bias*", "*scale*"], 4),
    (EQUINOX, "batch_state_index/init/0, batch_state_index/init/1", ["weight", "bias"], 4),
  ],
  ids=["linen", "nnx", "equinox"],
)
def test_running_averages_are_no_parameters(params, named, mask, size):
  with pytest.raises(ValueError, match=f"mask selects {named}, which the model updates itself"):
    flatness.subset(params)
  assert flatness.subset(params, mask).flat.size == size


def test_integers_are_refused():
  with pytest.raises(TypeError, match="mask: count must be floating, got int32"):
    flatness.subset({"count": jnp.arange(3)})
