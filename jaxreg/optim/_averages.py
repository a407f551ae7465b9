"""Running averages over steps of gradients and of their sizes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_range
from jaxreg._leaves import wide
from jaxreg.typing import Array


class Average(NamedTuple):
  """A running average: the sum of the weights so far, and the value."""

  weight: Array
  value: Any


def check_decay(decay: ArrayLike | None, name: str, debias: bool) -> None:
  """Checks that a decay is in [0, 1]; 1 averages all values equally, so its weights must sum to 1."""
  if decay is not None:
    check_range(decay, name, low=0, high=1)
    if not debias:
      check_range(decay, f"{name} without debias", low=0, high=1, open_high=True)


def average_init(tree: Any) -> Average:
  return Average(jnp.zeros(()), jax.tree.map(lambda x: jnp.zeros_like(wide(x)), tree))


def average_step(
  average: Average, new: Any, decay: ArrayLike, *, debias: bool, root: bool = False
) -> Average:
  """Adds one value to a running mean or, with `root`, to a running root mean square.

  Each step multiplies the weight of older values by `decay`. With `debias` the weights sum to 1: `decay` 0
  gives the last value and 1 the flat mean. Without `debias` it is the plain recursion from 0.
  """
  weight = jnp.asarray(decay * average.weight + 1, average.weight.dtype)
  rate = 1 / weight if debias else 1 - jnp.asarray(decay)

  def step(old: Array, x: Array) -> Array:
    r = rate.astype(old.dtype)
    # A square would vanish below 1e-19 and overflow above 1e19 in float32; hypot does neither.
    both = jnp.hypot(jnp.sqrt(1 - r) * old, jnp.sqrt(r) * x) if root else old + r * (x - old)
    return both.astype(old.dtype)

  return Average(weight, jax.tree.map(step, average.value, new))
