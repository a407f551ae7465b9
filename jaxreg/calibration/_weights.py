"""The common start of every statistic: checked arguments and the weights of the examples."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg._checks import check_array, check_labels, check_log_probs, check_logits, known_values
from jaxreg._where import check_weights, check_where, zero_elsewhere
from jaxreg.typing import Array


class Examples(NamedTuple):
  """Predictions in at least float32; a broken one has a label out of range or NaN among its `log_probs`."""

  log_probs: Array  # `[..., classes]`; equal probabilities for an example of weight 0
  labels: Array  # `[...]`, in range; may be 0 for an example that does not count or is broken
  weights: Array  # `[...]`, the factors in the sums; NaN for a broken example
  counts: Array  # `[...]`, the weights as they were given


def predictions(
  log_probs: ArrayLike, labels: ArrayLike, weights: ArrayLike | None, where: ArrayLike | None = None
) -> Examples:
  """Like `weighted_examples`, but checks that values with a weight are log-probabilities."""
  examples = weighted_examples(log_probs, labels, weights, where)
  check_log_probs(examples.log_probs, "log_probs")
  return examples


def weighted_examples(
  log_probs: ArrayLike, labels: ArrayLike, weights: ArrayLike | None, where: ArrayLike | None = None
) -> Examples:
  """Returns the examples with their weights, by default 1, and 0 where `where` is false.

  A known label out of range is refused; a traced one makes the sums of its example NaN. Equal
  probabilities replace the contents of an example of weight 0: padding may hold anything, even NaN or no
  label, and must reach neither the value nor the gradient.
  """
  log_probs = check_logits(log_probs, "log_probs")
  raw_labels, labels = labels, check_labels(labels, log_probs, "log_probs", bounded=False)
  counts = counted_weights(weights, where, labels.shape, log_probs.dtype)
  weighted = weights is not None or where is not None
  known, known_weights = known_values(raw_labels), known_values(counts) if weighted else 1
  if known is not None and known_weights is not None:
    check_labels(np.where(known_weights == 0, 0, known), log_probs, "log_probs")
  return _marked(log_probs, labels, counts, weighted)


@functools.partial(jax.jit, static_argnums=3, inline=True)  # one program for an eager call
def _marked(log_probs: Array, labels: Array, counts: Array, weighted: bool) -> Examples:
  """Marks broken examples by their weights, and replaces what does not count."""
  used = counts != 0
  if weighted:
    log_probs = jnp.where(used[..., None], log_probs, -math.log(log_probs.shape[-1]))
  outside = (labels < 0) | (labels >= log_probs.shape[-1])
  # Marked in the weights, not in log_probs: on a CPU, compiled code may evaluate exp(NaN) to a number.
  broken = used & (outside | jnp.isnan(log_probs).any(axis=-1))
  labels = jnp.where(outside | ~used, 0, labels)
  return Examples(log_probs, labels, jnp.where(broken, jnp.nan, counts), counts)


def counted_weights(weights: ArrayLike | None, where: Any, shape: tuple[int, ...], dtype: Any) -> Any:
  """Returns the weights, by default 1, and 0 where `where` is false, as an array of NumPy or JAX."""
  if where is not None:
    where = check_where(where, shape)
  if weights is None:
    return jnp.ones(shape, dtype) if where is None else where.astype(dtype)
  weights = weights if isinstance(weights, np.ndarray) else check_array(weights, "weights")
  if weights.shape != shape:
    raise ValueError(f"weights must have shape {shape}, got {weights.shape}")
  if where is not None:
    weights = zero_elsewhere(where, weights)
  return check_weights(weights).astype(dtype)


def fraction_of(value: Any) -> Fraction:
  """Returns a number as it is written, so that 0.1 is a tenth; True is 1."""
  return Fraction(str(1 * value))


def ceil_of(share: Fraction, number: int | Array, most: int) -> Any:
  """Returns `ceil(share * number)` exactly; `number` may be traced and is at most `most`."""
  # In floats, 10 * (1 - 0.7) is above 3, and its ceiling 4.
  return at_number(lambda n: math.ceil(share * n), number, most)


def at_number(rule: Callable[[int], float], number: int | Array, most: int) -> Any:
  """Returns `rule(number)`, computed on the host; `number` may be traced and is at most `most`."""
  if isinstance(number, int):
    return rule(number)
  if isinstance(number, Tracer):  # the table of all numbers is slow
    return jnp.asarray([*map(rule, range(most + 1))])[number]
  return jnp.asarray([rule(int(n)) for n in np.ravel(number)]).reshape(np.shape(number))
