"""Samples of training noise that are drawn where they are used: never all of them in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg.flatness._common import scalar_loss, widened
from jaxreg.flatness._subset import Where, selected, split
from jaxreg.typing import Array, Batch, Key, LossFn, Params, check_count, check_key, check_loss_fn


@partial(
  jax.tree_util.register_dataclass,
  data_fields=["state", "batch", "key"],
  meta_fields=["num", "size", "following"],
)
@dataclasses.dataclass(frozen=True)
class LazySamples:
  """The result of `lazy_gradients` or `lazy_trajectory`: a pytree, so data are arguments of compiled code.

  Attributes:
    num: the number of samples.
    size: the length of a sample.
  """

  state: Any
  batch: Batch
  key: Key
  num: int
  size: int
  following: Callable[[Any, Batch, Key], tuple[Any, Array]]

  def __repr__(self) -> str:
    return f"LazySamples([{self.num}, {self.size}])"

  def next(self, state: Any, number: Array) -> tuple[Any, Array]:
    """Returns the next state, and the sample of a number `[size]`, in float32 or wider."""
    state, sample = self.following(state, self.batch, jax.random.fold_in(self.key, number))
    return state, widened(sample)

  @property
  def dtype(self) -> Any:
    """The dtype of a sample."""
    return jax.eval_shape(self.next, self.state, 0)[1].dtype

  def fold(self, add: Callable[[Any, Array], Any], carry: Any) -> Any:
    """Adds one sample after the other to a carry, in compiled code."""

    def step(both: Any, number: Array) -> tuple[Any, None]:
      state, carry = both
      state, sample = self.next(state, number)
      return (state, add(carry, sample)), None

    return jax.lax.scan(step, (self.state, carry), jnp.arange(self.num))[0][1]


def lazy_gradients(
  loss_fn: LossFn, params: Params, batch: Batch, *, key: Key, num: int, where: Where = "*"
) -> LazySamples:
  """Returns the samples of `sample_gradients` without drawing them.

  `projected_variance` and `hessian_variance_alignment` take them, and draw one at a time: they need the
  memory of a few vectors instead of `[num, size]`.

  Args:
    loss_fn, params, batch, key, num, where: as in `sample_gradients`.

  Returns:
    `LazySamples`, the same numbers each time.

  Raises:
    TypeError: if `key` is no typed key, `num` no integer or a selected leaf not floating.
    ValueError: if `where` selects nothing or `num` is below 1.

  Example:
    >>> loss = lambda params, batch, *, key: params @ (batch + jax.random.normal(key, (2,)))
    >>> lazy_gradients(loss, jnp.ones(2), jnp.zeros(2), key=jax.random.key(0), num=5)
    LazySamples([5, 2])
  """
  check_key(key)
  check_loss_fn(loss_fn)
  check_count(num, "num")
  mask, params = selected(params, where), widened(params)
  size = split(params, mask).flat.size
  return LazySamples(params, widened(batch), key, num, size, _Gradient(loss_fn, mask))


def lazy_trajectory(
  step_fn: Callable[..., Any],
  state: Any,
  batch: Batch,
  *,
  key: Key,
  num: int,
  where: Where = "*",
  params_of: Callable[[Any], Params] = lambda state: state.params,
) -> LazySamples:
  """Returns the samples of `sample_trajectory` without computing them: see `lazy_gradients`.

  Args:
    step_fn, state, batch, key, num, where, params_of: as in `sample_trajectory`.

  Returns:
    `LazySamples`; each use repeats the training.

  Raises:
    TypeError: if `key` is no typed key, `num` no integer or a selected leaf not floating.
    ValueError: if `where` selects nothing or `num` is below 1.

  Example:
    >>> step = lambda w, batch, *, key: w + batch * jax.random.normal(key, (2,))
    >>> lazy_trajectory(step, jnp.zeros(2), 0.1, key=jax.random.key(0), num=5, params_of=lambda w: w)
    LazySamples([5, 2])
  """
  check_key(key)
  check_count(num, "num")
  mask = selected(params_of(state), where)
  size = split(params_of(state), mask).flat.size
  return LazySamples(state, batch, key, num, size, _Step(step_fn, params_of, mask))


@dataclasses.dataclass(frozen=True)
class _Gradient:
  loss_fn: LossFn
  mask: tuple[bool, ...]

  def __call__(self, params: Params, batch: Batch, key: Key) -> tuple[Params, Array]:
    part = split(params, self.mask)
    return params, jax.grad(lambda flat: scalar_loss(self.loss_fn, part.merge(flat), batch, key))(part.flat)


@dataclasses.dataclass(frozen=True)
class _Step:
  step_fn: Callable[..., Any]
  params_of: Callable[[Any], Params]
  mask: tuple[bool, ...]

  def __call__(self, state: Any, batch: Batch, key: Key) -> tuple[Any, Array]:
    state = self.step_fn(state, batch, key=key)
    return state, split(self.params_of(state), self.mask).flat


def sum_of_rows(function: Callable[[Array], Array], samples: Array, zero: Array, rows: int = 64) -> Array:
  """Sums a function of some rows `[rows, size]` over all, without a copy of all of them."""
  rows = min(rows, len(samples))
  chunks, rest = divmod(len(samples), rows)
  part = lambda number: jax.lax.dynamic_slice_in_dim(samples, number * rows, rows)
  total = jax.lax.fori_loop(0, chunks, lambda number, total: total + function(part(number)), zero)
  return total + function(samples[chunks * rows :]) if rest else total
