"""A loss function with added penalties, and its terms by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.typing import (
  Array,
  Batch,
  Key,
  LossFn,
  Params,
  check_function,
  check_loss_fn,
  check_range,
  loss_and_aux,
  one_line,
)

Weight = ArrayLike | Callable[[Any], ArrayLike]
Term = tuple[Weight, Callable[[Params], Array]]


def penalized(
  loss_fn: LossFn | Callable[..., tuple[Array, Any]], *terms: Term, has_aux: bool = False
) -> Callable[..., Any]:
  r"""Adds weighted penalties on the parameters to a loss function.

  .. math:: \tilde J(\theta) = J(\theta) + \sum_i \alpha_i \Omega_i(\theta)

  A penalty is added once per call. So average the values of several devices: a sum would count it once per
  device.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`; `key` is always passed, by name, even to a loss that ignores
      it.
    *terms: pairs of a weight and a function `params -> scalar`. A weight is at least 0, or an Optax schedule.
      Bind options of a penalty with `functools.partial`.
    has_aux: whether `loss_fn` returns `(scalar, aux)`, as for `jax.grad`; the result then does too.

  Returns:
    A function of the same signature as `loss_fn`, with `key=None` as default; its value is float32 or wider.
    It also takes a number `step`, which schedules need and `loss_fn` does not see.

  Raises:
    TypeError: if a term is not a pair with a function of the parameters alone, or `loss_fn` does not take
      these arguments; in a call, if the loss is a tuple or not floating, or `has_aux` is set and it is no
      pair.
    ValueError: if a weight is negative; in a call, if the loss is no scalar, or a schedule has no `step`.

  Example:
    >>> loss_fn = lambda params, batch, *, key: (params["kernel"] * batch).sum()
    >>> ridge = penalized(loss_fn, (0.1, lambda params: 0.5 * (params["kernel"] ** 2).sum()))
    >>> ridge({"kernel": jnp.array([2.0])}, jnp.array([1.0]), key=None)
    Array(2.2, dtype=float32)

    A weight that grows with the steps:

    >>> import optax
    >>> from jaxreg.penalties import l2
    >>> warmed_up = penalized(loss_fn, (optax.linear_schedule(0.0, 0.1, transition_steps=100), l2))
    >>> warmed_up({"kernel": jnp.array([2.0])}, jnp.array([1.0]), step=50)
    Array(2.1, dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, parameter norm penalties.
  """
  terms_fn = penalized_terms(loss_fn, *terms, has_aux=has_aux)

  def total(params: Params, batch: Batch, *, key: Key | None = None, step: ArrayLike | None = None) -> Any:
    values = terms_fn(params, batch, key=key, step=step)
    add_up = lambda values: functools.reduce(jnp.add, values.values())
    return (add_up(values[0]), values[1]) if has_aux else add_up(values)

  return total


def penalized_terms(
  loss_fn: LossFn | Callable[..., tuple[Array, Any]], *terms: Term, has_aux: bool = False
) -> Callable[..., Any]:
  """Builds a function that returns the terms of `penalized` by name; their sum is the penalised loss.

  Args:
    loss_fn: as for `penalized`.
    *terms: as for `penalized`.
    has_aux: as for `penalized`.

  Returns:
    `(params, batch, *, key, step) -> {"loss": ..., name of a penalty: weight times its value, ...}`, or with
    `has_aux` the pair of this dict and the aux value. If two penalties share a name, the second is called
    `l2_2`, and so on.

  Raises:
    TypeError, ValueError: as `penalized`.

  Example:
    >>> from jaxreg.penalties import l1, l2
    >>> loss_fn = lambda params, batch, *, key: (params["kernel"] * batch).sum()
    >>> terms = penalized_terms(loss_fn, (0.5, l2), (0.25, l1))
    >>> terms({"kernel": jnp.array([2.0])}, jnp.array([1.0]), key=None)
    {'loss': Array(2., dtype=float32), 'l2': Array(1., dtype=float32), 'l1': Array(0.5, dtype=float32)}
  """
  check_loss_fn(loss_fn)
  named: dict[str, Term] = {}
  for term in terms:
    if not (isinstance(term, tuple) and len(term) == 2 and callable(term[1])):
      raise TypeError(
        f"terms must be pairs of a weight and a function of the parameters, got {one_line(term)}"
      )
    check_function(term[1], "a penalty", "params -> scalar", takes=1)
    if not callable(term[0]):
      check_range(term[0], "weight", low=0)
    named[_free(_name(term[1]), named)] = term

  def by_name(params: Params, batch: Batch, *, key: Key | None = None, step: ArrayLike | None = None) -> Any:
    loss, aux = loss_and_aux(loss_fn(params, batch, key=key), has_aux)
    values = {"loss": loss.astype(jnp.promote_types(loss.dtype, jnp.float32))}
    for name, (weight, penalty) in named.items():
      values[name] = jnp.multiply(_at(weight, step, name), penalty(params))
    return (values, aux) if has_aux else values

  return by_name


def _at(weight: Weight, step: ArrayLike | None, name: str) -> ArrayLike:
  if not callable(weight):
    return weight
  if step is None:
    raise ValueError(f"step must be given: the weight of {name} is a schedule")
  return weight(step)


def _name(penalty: Callable) -> str:
  while isinstance(penalty, functools.partial):
    penalty = penalty.func
  return getattr(penalty, "__name__", "penalty").replace("<lambda>", "penalty")


def _free(name: str, taken: dict[str, Term]) -> str:
  count = 2
  free = name
  while free in taken or free == "loss":
    free, count = f"{name}_{count}", count + 1
  return free
