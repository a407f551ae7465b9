"""The terms that noise on weights or inputs adds to a squared error, to first order in its variance.

There are two terms of the same order. One is the textbook's squared gradient. The other has the Laplacian of
the prediction, and the textbook leaves it out. It vanishes if the prediction is linear in the disturbed
variables. It also vanishes if the residuals weighted by it average to zero, as they may at the end of an
unregularised fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_range, check_wide
from jaxreg.paths import chosen, kernels_only
from jaxreg.typing import Array, Mask, Params

PredictFn = Callable[[Params, Array], Array]


def weight_noise_terms(
  predict_fn: PredictFn,
  params: Params,
  inputs: ArrayLike,
  targets: ArrayLike,
  *,
  variance: ArrayLike,
  kind: Literal["additive", "multiplicative"] = "additive",
  mask: Mask | Any = kernels_only,
) -> dict[str, Array]:
  r"""Computes the terms that `noise.weight_noise` adds to each squared error, as `variance` goes to 0.

  .. math:: \mathbb{E} \|\hat y_{W + \epsilon} - y\|^2 = \|\hat y - y\|^2
    + \eta \|\nabla_W \hat y\|_F^2 + \eta (\hat y - y)^\top \operatorname{tr} \nabla_W^2 \hat y + O(\eta^2),
    \qquad \epsilon \sim \mathcal{N}(0, \eta I)

  For a model that is linear in `W` this is exact and equals :math:`\eta \|x\|^2`: a constant, so no
  regularisation at all. With multiplicative noise each derivative is multiplied by its weight.

  Args:
    predict_fn: `(params, inputs) -> [batch, ...]`, real predictions; each depends only on its own example.
    params: any pytree.
    inputs: `[batch, ...]`.
    targets: the shape of the predictions, floating.
    variance: `eta`, at least 0: the square of `std`.
    kind: whether the noise is added or multiplied.
    mask: which leaves are noisy: a tree of bools, or a function from `params` to one.

  Returns:
    `gradient` and `laplacian`, `[batch]` each, whose sum is the added error; float32 or wider. Takes as many
    passes as there are noisy weights.

  Raises:
    TypeError: if `targets` are not floating.
    ValueError: if the shapes do not fit, `variance` is negative, or `mask` selects nothing.

  Example:
    >>> square = lambda params, x: (params["kernel"] * x) ** 2
    >>> params, x, y = {"kernel": jnp.ones(())}, jnp.array([1., 2.]), jnp.zeros(2)
    >>> weight_noise_terms(square, params, x, y, variance=0.01)
    {'gradient': Array([0.04, 0.64], dtype=float32), 'laplacian': Array([0.02, 0.32], dtype=float32)}

  References:
    Goodfellow, Bengio and Courville, `Deep Learning`, 2016, section 7.5, which has the first term.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, noise robustness,
    the same.
  """
  check_choice(kind, "kind", ("additive", "multiplicative"))
  flat, unravel = ravel_pytree(params)
  noisy = zip(jax.tree.leaves(params), chosen(params, mask))
  where = np.flatnonzero(np.concatenate([np.full(np.size(leaf), taken) for leaf, taken in noisy]))
  predict = lambda flat: predict_fn(unravel(flat), jnp.asarray(inputs))
  lengths = flat[where] if kind == "multiplicative" else jnp.ones(len(where), flat.dtype)
  return _terms(predict, flat, where, lengths, targets, variance)


def input_noise_terms(
  predict_fn: PredictFn, params: Params, inputs: ArrayLike, targets: ArrayLike, *, variance: ArrayLike
) -> dict[str, Array]:
  r"""Computes the terms that additive `noise.gaussian_noise` on inputs adds to each squared error.

  .. math:: \mathbb{E} \|\hat y(x + \epsilon) - y\|^2 = \|\hat y - y\|^2
    + \eta \|\nabla_x \hat y\|_F^2 + \eta (\hat y - y)^\top \Delta_x \hat y + O(\eta^2)

  The terms are of first order in the variance. For a linear model they are exact and equal
  :math:`\eta \|w\|^2`: ridge regression.

  Args:
    predict_fn, params, targets, variance: as in `weight_noise_terms`.
    inputs: `[batch, ...]`, floating.

  Returns:
    `gradient` and `laplacian`, `[batch]` each, whose sum is the added error; float32 or wider.

  Raises:
    TypeError: if `inputs` or `targets` are not floating.
    ValueError: if the shapes do not fit or `variance` is negative.

  Example:
    >>> linear = lambda w, x: x @ w
    >>> input_noise_terms(linear, jnp.array([1., 2.]), jnp.ones((1, 2)), jnp.zeros(1), variance=0.1)
    {'gradient': Array([0.5], dtype=float32), 'laplacian': Array([0.], dtype=float32)}

  References:
    Bishop, `Training with Noise is Equivalent to Tikhonov Regularization`, 1995.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, dataset augmentation.
  """
  inputs = check_wide(inputs, "inputs")
  if inputs.ndim == 0:
    raise ValueError("inputs must have shape [batch, ...], got ()")
  # One direction for all examples at once, because each prediction depends only on its own input.
  shift = jnp.zeros(inputs[0].size, inputs.dtype)
  predict = lambda shift: predict_fn(
    params, inputs + jnp.broadcast_to(shift.reshape(inputs.shape[1:]), inputs.shape)
  )
  where = np.arange(shift.size)
  return _terms(predict, shift, where, jnp.ones_like(shift), targets, variance)


def _terms(
  predict: Callable[[Array], Array],
  at: Array,
  where: np.ndarray,
  lengths: Array,
  targets: ArrayLike,
  variance: ArrayLike,
) -> dict[str, Array]:
  """Sums the first and second derivatives along the coordinates `where`, one by one."""
  check_range(variance, "variance", low=0)
  predicted = predict(at)
  targets = check_wide(targets, "targets", shape=predicted.shape)

  def add(sums: tuple[Array, Array], coordinate: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
    index, length = coordinate
    direction = jnp.zeros_like(at).at[index].set(length)
    slope = lambda x: jax.jvp(predict, (x,), (direction,))[1]
    first, second = jax.jvp(slope, (at,), (direction,))
    return (sums[0] + jnp.square(first.astype(wide)), sums[1] + second.astype(wide)), None

  # In bfloat16 a sum of ones stops at 256.
  wide = jnp.promote_types(predicted.dtype, jnp.float32)
  zeros = jnp.zeros(predicted.shape, wide)
  (squares, laplacian), _ = jax.lax.scan(add, (zeros, zeros), (jnp.asarray(where), lengths))
  total = lambda x: variance * x.reshape(x.shape[0], -1).sum(axis=-1)
  return {"gradient": total(squares), "laplacian": total((predicted - targets) * laplacian)}
