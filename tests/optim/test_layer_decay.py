"""Learning rates by layer: what a pattern picks, and optimizers by label."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreg import optim, paths

PARAMS = {name: {"kernel": jnp.ones(2)} for name in ("a", "b", "c")}


def test_each_layer_has_its_power_after_the_optimizer():
  """After an optimizer that a factor of the gradient would not change."""
  tx = optim.layer_decay(optax.sign_sgd(0.1), layers=("a/*", "b/*", "c/*"), decay=0.5)
  updates, _ = tx.update(jax.tree.map(lambda w: 7 * w, PARAMS), tx.init(PARAMS), PARAMS)
  for name, factor in (("a", 0.25), ("b", 0.5), ("c", 1.0)):
    np.testing.assert_allclose(updates[name]["kernel"], -0.1 * factor, rtol=1e-6)


def test_labels_are_those_of_a_partition():
  tx = optax.partition({0: optax.sgd(1.0), 1: optax.set_to_zero()}, lambda p: paths.labels(p, ["*", "b/*"]))
  updates, _ = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
  assert [float(updates[name]["kernel"][0]) for name in "abc"] == [-1, 0, -1]


def test_refusals():
  with pytest.raises(ValueError, match="decay must lie in"):
    optim.layer_decay(optax.sgd(0.1), layers=("*",), decay=1.5)
  tx = optim.layer_decay(optax.sgd(0.1), layers=("a/*", "b/*"))
  with pytest.raises(ValueError, match=r"patterns must match all parameters, .* for 'c/kernel'"):
    tx.update(PARAMS, tx.init(PARAMS), PARAMS)
