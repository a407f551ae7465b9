"""Virtual adversarial training: the direction in which the model's own prediction changes most."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.adversarial._common import batched, unit, wide
from jaxreg.typing import Array, Key, check_count, check_key, check_range


def virtual_adversarial(
  key: Key, log_probs_fn: Callable[[Array], Array], x: ArrayLike, *, eps: ArrayLike, num_iters: int = 1
) -> Array:
  r"""Moves each input by `eps` where the prediction changes most, to second order.

  .. math:: x' = x + \epsilon d, \qquad d \leftarrow \frac{H d}{\|H d\|_2}, \qquad
    H = \nabla_r^2 \, \mathrm{KL}\bigl(p(\cdot \mid x) \,\|\, p(\cdot \mid x + r)\bigr) \big|_{r = 0}

  Power iteration from a random direction. The divergence has no gradient at `r = 0`, and a finite
  difference of it drowns in rounding: the products with `H` are exact here, a forward derivative of the
  gradient, so `log_probs_fn` must have both. Where `H d` is 0, `d` stays as it is.

  Args:
    key: for the first direction, one draw for all examples.
    log_probs_fn: `x -> [batch, ..., classes]`, log-probabilities, of an example's own input alone; it closes
      over parameters and the key of its noise. No labels: the model is its own teacher.
    x: `[batch, ...]`, floating.
    eps: the Euclidean norm of an example's move, at least 0, in units of `x`.
    num_iters: at least 1; static.

  Returns:
    `x'`, of the shape and dtype of `x`.

  Raises:
    TypeError: if `x` is not floating, `key` not a typed key or `num_iters` no integer.
    ValueError: if `eps` is negative, `num_iters` below 1 or the log-probabilities do not fit `x`.

  Example:
    >>> log_probs = lambda x: jax.nn.log_softmax(x @ jnp.array([[3.0, -3.0], [0.0, 0.0]]))
    >>> moved = virtual_adversarial(jax.random.key(0), log_probs, jnp.zeros((1, 2)), eps=2.0)
    >>> jnp.abs(moved)  # d and -d are as bad
    Array([[2., 0.]], dtype=float32)

  References:
    Miyato et al., `Virtual Adversarial Training`, 2018, section 3.3.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, adversarial training.
  """
  x = batched(x)
  check_range(eps, "eps", low=0)
  check_count(num_iters, "num_iters")
  return _move(check_key(key), log_probs_fn, x, _clean(log_probs_fn, x), eps, num_iters)


def vat_loss(
  key: Key, log_probs_fn: Callable[[Array], Array], x: ArrayLike, *, eps: ArrayLike, num_iters: int = 1
) -> Array:
  r"""How far the prediction moves at `virtual_adversarial` inputs: a penalty that needs no labels.

  .. math:: \mathrm{KL}\bigl(p(\cdot \mid x) \,\|\, p(\cdot \mid x')\bigr)

  The first argument, the target, and `x' - x` are constants to differentiation.

  Args:
    key, log_probs_fn, x, eps, num_iters: as `virtual_adversarial` has them.

  Returns:
    `[batch]`, in nats, float32 or wider; summed over the axes between batch and classes.

  Raises:
    TypeError: if `x` is not floating, `key` not a typed key or `num_iters` no integer.
    ValueError: if `eps` is negative, `num_iters` below 1 or the log-probabilities do not fit `x`.

  Example:
    >>> log_probs = lambda x: jax.nn.log_softmax(x @ jnp.array([[3.0, -3.0], [0.0, 0.0]]))
    >>> vat_loss(jax.random.key(0), log_probs, jnp.zeros((1, 2)), eps=0.5)  # log cosh 1.5
    Array([0.85544014], dtype=float32)

  References:
    Miyato et al., `Virtual Adversarial Training`, 2018.
  """
  x = batched(x)
  check_range(eps, "eps", low=0)
  check_count(num_iters, "num_iters")
  clean = _clean(log_probs_fn, x)
  return _kl(clean, wide(log_probs_fn(_move(check_key(key), log_probs_fn, x, clean, eps, num_iters))))


def _move(
  key: Key, log_probs_fn: Callable[[Array], Array], x: Array, clean: Array, eps: ArrayLike, num_iters: int
) -> Array:
  gradient = jax.grad(lambda x: _kl(clean, wide(log_probs_fn(x))).sum())

  def iterate(_, d: Array) -> Array:
    product = jax.jvp(gradient, (x,), (d.astype(x.dtype),))[1]
    return unit(wide(jax.lax.stop_gradient(product)), otherwise=d)

  start = unit(jax.random.normal(key, x.shape, wide(x).dtype))
  direction = jax.lax.fori_loop(0, num_iters, iterate, start)
  return (wide(x) + eps * direction).astype(x.dtype)


def _clean(log_probs_fn: Callable[[Array], Array], x: Array) -> Array:
  clean = log_probs_fn(x)
  if clean.ndim < 2 or clean.shape[0] != x.shape[0]:
    raise ValueError(
      f"log_probs_fn must give [batch, ..., classes] for a batch of {x.shape[0]}, got {clean.shape}; "
      "adversarial_loss needs an attacked_fn that returns log-probabilities to use vat as its attack"
    )
  return wide(jax.lax.stop_gradient(clean))


def _kl(log_p: Array, log_q: Array) -> Array:
  p = jnp.exp(log_p)
  # What has probability 0 counts for nothing, also where its logarithm is -inf.
  gap = jnp.where(p > 0, log_p - log_q, 0)
  return (p * gap).sum(axis=tuple(range(1, p.ndim)))
