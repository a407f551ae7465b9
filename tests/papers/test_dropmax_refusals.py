"""What all functions of DropMax's theory do: they widen to float32, and refuse what does not fit."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from papers import dropmax

# By the number of their logits.
FUNCTIONS = {
  dropmax.dropmax_expected_nll: 2,
  dropmax.dropmax_regularizer: 2,
  dropmax.dropmax_target_gradients: 2,
  dropmax.dropmax_nontarget_gradients: 2,
  dropmax.dropmax_gradient_norms: 2,
  dropmax.dropmax_mask_posterior: 2,
  dropmax.dropmax_marginal_logits: 2,
  dropmax.dropmax_mean_field: 3,
  dropmax.dropmax_optimal_target_logit: 3,
  dropmax.dropmax_learn_posterior: 3,
}


@pytest.mark.thorough
@pytest.mark.parametrize(("function", "number"), FUNCTIONS.items(), ids=[f.__name__ for f in FUNCTIONS])
def test_dtypes_and_misfits(function, number):
  o, y = jnp.zeros((2, 3), jnp.bfloat16), jnp.zeros(2, int)
  found = jax.eval_shape(function, *[o] * number, y)
  assert {x.dtype for x in jax.tree.leaves(found)} == {np.dtype(np.float32)}
  cases = [
    (ValueError, "(posterior|retain|keep)_logits", [*[o] * (number - 1), o[:1], y]),
    (TypeError, "^logits", [jnp.zeros((2, 3), int), *[o] * (number - 1), y]),
    (ValueError, "labels", [*[o] * number, y[:1]]),
    (TypeError, "labels", [*[o] * number, jnp.zeros(2)]),
    (ValueError, "at most 16", [*[jnp.zeros(17)] * number, jnp.array(0)]),
  ]
  for error, message, arguments in cases:
    with pytest.raises(error, match=message):
      function(*arguments)
  if "target" in inspect.signature(function).parameters:
    with pytest.raises(ValueError, match="target"):
      function(*[o] * number, y, target="dropped")
