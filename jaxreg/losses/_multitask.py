"""Several tasks on shared parameters: one loss from the tasks' losses, with fixed or learned weights."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_option, check_wide
from jaxreg._where import only_where
from jaxreg.typing import Array


@only_where(end=None)
def multitask_terms(
  losses: Mapping[str, ArrayLike],
  *,
  weights: Mapping[str, ArrayLike] | None = None,
  where: ArrayLike | None = None,
) -> dict[str, Array]:
  """Computes the terms of `multitask` by task; their sum is the loss.

  Args:
    losses, weights, where: as in `multitask`.

  Returns:
    By task, the weighted loss, float32 or wider.

  Example:
    >>> losses = {"digit": jnp.array([2.0]), "parity": jnp.array([1.0])}
    >>> multitask_terms(losses, weights={"digit": 1.0, "parity": 0.5})["parity"]
    Array([0.5], dtype=float32)
  """
  losses = _checked(losses, losses if weights is None else weights, "weights")
  for task, weight in (weights or {}).items():
    check_option(weight, f"weights[{task!r}]", losses[task].shape)
  return {task: loss if weights is None else loss * weights[task] for task, loss in losses.items()}


def multitask(
  losses: Mapping[str, ArrayLike],
  *,
  weights: Mapping[str, ArrayLike] | None = None,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the weighted sum of the tasks' losses.

  .. math:: \ell = \sum_t w_t \ell_t

  Shared parameters get the weighted sum of the tasks' gradients; each task's head gets its own task's
  gradient. For a learning rate per part use `optax.partition`.

  Args:
    losses: by task, all of the same shape: `[batch]`, or scalars; floating. The `where` of a
      task's loss makes it 0 for examples without a label.
    weights: by task, scalars or of the shape of a loss, not necessarily positive; default all 1.
    where: `[...]`, bool: which examples count.

  Returns:
    The shape of one loss, float32 or wider.

  Example:
    >>> losses = {"digit": jnp.array([2.0]), "parity": jnp.array([1.0])}
    >>> multitask(losses, weights={"digit": 1.0, "parity": 0.5})
    Array([2.5], dtype=float32)

  References:
    Caruana, `Multitask Learning`, 1997.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, multi-task learning.
  """
  return functools.reduce(jnp.add, multitask_terms(losses, weights=weights, where=where).values())


@only_where(end=None)
def uncertainty_weighting_terms(
  losses: Mapping[str, ArrayLike],
  log_vars: Mapping[str, ArrayLike],
  *,
  where: ArrayLike | None = None,
) -> dict[str, Array]:
  """Computes the terms of `uncertainty_weighting` by task, each with its `s / 2`; their sum is the loss.

  Args:
    losses, log_vars, where: as in `uncertainty_weighting`.

  Returns:
    By task, the weighted loss plus `s / 2`, float32 or wider.

  Example:
    >>> losses = {"digit": jnp.array([2.0]), "parity": jnp.array([0.5])}
    >>> uncertainty_weighting_terms(losses, {"digit": jnp.log(4.0), "parity": jnp.log(1.0)})["parity"]
    Array([0.5], dtype=float32)
  """
  losses = _checked(losses, log_vars, "log_vars")
  logs = {task: check_wide(log_vars[task], f"log_vars[{task!r}]", shape=()) for task in losses}
  return {task: jnp.exp(-logs[task]) * loss + 0.5 * logs[task] for task, loss in losses.items()}


def uncertainty_weighting(
  losses: Mapping[str, ArrayLike],
  log_vars: Mapping[str, ArrayLike],
  *,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the sum of the tasks' losses, each weighted by one over a learned noise variance.

  .. math:: \ell = \sum_t \Bigl(e^{-s_t} \ell_t + \tfrac12 s_t\Bigr), \qquad s_t = \log \sigma_t^2

  The `s_t` are parameters, trained with the others from 0. At the optimum a task's weight is one over twice
  its mean loss, so the scale of a loss has no effect. For half a squared error this is minus the
  log-likelihood of a Gaussian without its constant. For a cross-entropy it is the paper's approximation to
  the loss of a softmax at temperature `sigma_t^2`, exact at 1.

  Args:
    losses, where: as in `multitask`; for a squared error pass half of it.
    log_vars: `s` by task, scalars, floating.

  Returns:
    The shape of one loss, float32 or wider.

  Example:
    >>> losses = {"digit": jnp.array([2.0]), "parity": jnp.array([0.5])}
    >>> uncertainty_weighting(losses, {"digit": jnp.log(4.0), "parity": jnp.log(1.0)})  # optimum: 1 + log 2
    Array([1.6931472], dtype=float32)

  References:
    Kendall, Gal and Cipolla, `Multi-Task Learning Using Uncertainty to Weigh Losses`, 2018.
  """
  return functools.reduce(jnp.add, uncertainty_weighting_terms(losses, log_vars, where=where).values())


def _checked(losses: Mapping[str, ArrayLike], others: Mapping[str, ArrayLike], name: str) -> dict[str, Array]:
  if not losses:
    raise ValueError("losses must hold at least one task, got none")
  if set(others) != set(losses):
    raise ValueError(f"{name} must have the tasks of losses, {sorted(losses)}, got {sorted(others)}")
  wide = {task: check_wide(loss, f"losses[{task!r}]") for task, loss in losses.items()}
  shapes = {task: loss.shape for task, loss in wide.items()}
  if len(set(shapes.values())) > 1:
    raise ValueError(f"losses must have the same shape, got {shapes}")
  return wide
