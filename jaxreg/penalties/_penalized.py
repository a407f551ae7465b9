"""A loss function with added penalties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_function, check_loss_fn, check_option, loss_and_aux, one_line
from jaxreg.typing import Array, Batch, Key, LossFn, Params

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
    ValueError: in a call, for a schedule without `step`.

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
  check_loss_fn(loss_fn)
  for term in terms:
    if not (isinstance(term, tuple) and len(term) == 2 and callable(term[1])):
      raise TypeError(
        f"terms must be pairs of a weight and a function of the parameters, got {one_line(term)}"
      )
    check_function(term[1], "a penalty", "params -> scalar", takes=1)
    if not callable(term[0]):
      check_option(term[0], "weight", (), low=0)

  def total(params: Params, batch: Batch, *, key: Key | None = None, step: ArrayLike | None = None) -> Any:
    loss, aux = loss_and_aux(loss_fn(params, batch, key=key), has_aux)
    loss = loss.astype(jnp.promote_types(loss.dtype, jnp.float32))
    for weight, penalty in terms:
      loss = loss + jnp.multiply(_at(weight, step), penalty(params))
    return (loss, aux) if has_aux else loss

  return total


def _at(weight: Weight, step: ArrayLike | None) -> ArrayLike:
  if not callable(weight):
    return weight
  if step is None:
    raise ValueError("step must be given: a weight is a schedule")
  return weight(step)
