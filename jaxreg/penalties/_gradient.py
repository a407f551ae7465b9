"""How strongly outputs change with inputs: the norms of gradients and Jacobians."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_batched, check_count, check_key
from jaxreg._leaves import wide
from jaxreg._sharding import placed_like
from jaxreg.typing import Array, Key, Params


def gradient_penalty(apply_fn: Callable[[Params, Array], Array], params: Params, x: ArrayLike) -> Array:
  r"""Computes the squared norm of the gradient of a scalar output with respect to the inputs.

  .. math:: \Omega(x) = \|\nabla_x \hat y(x)\|_2^2

  Input noise of variance `s` adds `s` times this penalty to the expected squared loss. For a linear model
  this is exact, and equals `s` times the squared norm of the weights. For any other model there is a second
  term of the same order, `s` times residual times Laplacian, which vanishes with the residuals.

  Args:
    apply_fn: `(params, x) -> [batch]` or `[batch, 1]`; an example's output may depend only on its own input,
      so not on batch statistics.
    params: any pytree.
    x: `[batch, ...]`, floating.

  Returns:
    `[batch]`, float32 or wider.

  Raises:
    ValueError: for several outputs an example; see `jacobian_penalty`.

  Example:
    >>> linear = lambda w, x: x @ w
    >>> gradient_penalty(linear, jnp.array([3.0, 4.0]), jnp.ones((2, 2)))
    Array([25., 25.], dtype=float32)

  References:
    Drucker and LeCun, `Improving generalization performance using double backpropagation`, 1992.
    Bishop, `Training with Noise is Equivalent to Tikhonov Regularization`, 1995.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, dataset augmentation.
  """
  x = check_batched(x, "x")
  outputs, pull = jax.vjp(lambda x: apply_fn(params, x), x)
  if outputs.shape not in ((x.shape[0],), (x.shape[0], 1)):
    raise ValueError(
      f"apply_fn must give [batch] or [batch, 1] for a batch of {x.shape[0]}, got {outputs.shape}; "
      "for several outputs use jacobian_penalty"
    )
  return _squares(pull(jnp.ones_like(outputs))[0])


def jacobian_penalty(
  apply_fn: Callable[[Params, Array], Array],
  params: Params,
  x: ArrayLike,
  *,
  num_samples: int | None = None,
  key: Key | None = None,
) -> Array:
  r"""Computes the squared Frobenius norm of the Jacobian of the outputs with respect to the inputs.

  .. math:: \Omega(x) = \|J(x)\|_F^2 = \sum_c \|\nabla_x \hat y_c\|_2^2
    = C\, \mathbb{E}_v \|v^\top J(x)\|_2^2, \qquad v \text{ uniform on the unit sphere}

  The exact value takes one backward pass per output; an unbiased estimate takes one per projection.

  Args:
    apply_fn, params, x: as in `gradient_penalty`, but for outputs `[batch, ...]`.
    num_samples: number of random directions; None for the exact sum.
    key: one draw for all directions; with `num_samples`.

  Returns:
    `[batch]`, float32 or wider.

  Example:
    >>> linear = lambda w, x: x @ w
    >>> jacobian_penalty(linear, jnp.array([[3.0, 0.0], [0.0, 4.0]]), jnp.ones((2, 2)))
    Array([25., 25.], dtype=float32)

  References:
    Hoffman, Roberts and Yaida, `Robust Learning with Jacobian Regularization`, 2019, section 2.
  """
  x = check_batched(x, "x")
  outputs, pull = jax.vjp(lambda x: apply_fn(params, x), x)
  if outputs.shape[:1] != x.shape[:1]:
    raise ValueError(f"apply_fn must give [batch, ...] for a batch of {x.shape[0]}, got {outputs.shape}")
  size = math.prod(outputs.shape[1:])
  if num_samples is None:
    rows = jnp.broadcast_to(jnp.eye(size, dtype=outputs.dtype)[:, None], (size, x.shape[0], size))
    scale = 1.0
  else:
    check_count(num_samples, "num_samples")
    if key is None:
      raise TypeError("key must be given with num_samples, got None")
    normal = jax.random.normal(check_key(key), (num_samples, x.shape[0], size), wide(outputs).dtype)
    rows = normal / jnp.linalg.norm(normal, axis=-1, keepdims=True)
    scale = size / num_samples
  rows = placed_like(rows.astype(outputs.dtype).reshape(len(rows), *outputs.shape), outputs)
  return scale * jax.vmap(lambda row: _squares(pull(row)[0]))(rows).sum(axis=0)


def _squares(gradient: Array) -> Array:
  return jnp.square(wide(gradient)).sum(axis=tuple(range(1, gradient.ndim)))
