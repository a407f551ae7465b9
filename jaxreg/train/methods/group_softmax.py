"""Group softmax."""

import functools

import jax.numpy as jnp

from jaxreg import losses, models
from jaxreg._checks import check_choice
from jaxreg._group_scores import GROUPINGS
from jaxreg.train.methods.method import Method
from jaxreg.typing import Array, Key


def group_softmax(
  key: Key,
  *,
  num_groups: int = 8,
  kind: str = "I",
  power: float | None = None,
  grouping: str = "discriminative",
  form: str = "auto",
  **arguments: Array,
) -> Array:
  """Computes `losses.group_softmax`; `grouping` names the rule, and the random rule gets the key."""
  check_choice(grouping, "grouping", GROUPINGS)
  rule = GROUPINGS[grouping]
  if grouping == "random":
    rule = functools.partial(rule, key)
  options = {"num_groups": num_groups, "kind": kind, "power": power, "form": form}
  return losses.group_softmax(**arguments, **options, grouping=rule)


def predict_group_softmax(*, features: Array, kernel: Array, bias: Array, logit_scale: float = 1.0) -> Array:
  """Computes the softmax of `features @ kernel + bias`."""
  # Products of bfloat16 numbers are exact in float32, so they are summed in float32.
  logits = jnp.matmul(features, kernel, preferred_element_type=jnp.float32)
  return losses.softmax_log_probs(logits + bias[None, :].astype(jnp.float32), logit_scale=logit_scale)


METHODS = {
  "group_softmax": Method(
    models.GroupSoftmaxHead, group_softmax, predict_group_softmax, terms=("group_softmax",), draws=("loss",)
  )
}
