"""Virtual adversarial training: the direction in which the model's own prediction changes most."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.typing import ArrayLike

from jaxreg._checks import check_batched, check_count, check_key, check_log_probs
from jaxreg._divergence import kl_divergence
from jaxreg._leaves import wide
from jaxreg._loops import repeat
from jaxreg._sharding import placed_like
from jaxreg.adversarial._common import per_example, unit
from jaxreg.typing import Array, Key

Divergence = Callable[[Array, Array], Array]


def virtual_adversarial(
  key: Key,
  log_probs_fn: Callable[[Array], Array],
  x: ArrayLike,
  *,
  eps: ArrayLike,
  num_steps: int = 1,
  divergence: Divergence | None = None,
) -> Array:
  r"""Moves each input by `eps` along the direction that changes the prediction most, to second order.

  .. math:: x' = x + \epsilon d, \qquad d \leftarrow \frac{H d}{\|H d\|_2}, \qquad
    H = \nabla_r^2 \, \mathrm{KL}\bigl(p(\cdot \mid x) \,\|\, p(\cdot \mid x + r)\bigr) \big|_{r = 0}

  The method is power iteration from a random direction. The gradient of the divergence is 0 at `r = 0`, and a
  finite difference of it drowns in rounding. So the products with `H` are exact: a forward derivative of the
  gradient, and `log_probs_fn` must support both modes. If `H d` is 0, `d` does not change.

  `x'` is rounded to the dtype of `x`: in bfloat16 a move below 1/512 of an entry is lost, so give float32
  inputs.

  Args:
    key: one draw of the first direction for all examples.
    log_probs_fn: `x -> [batch, ..., classes]`, log-probabilities that depend only on the example's own input;
      it closes over parameters and the key of its noise. It needs no labels: the model is its own teacher.
    x: `[batch, ...]`, floating.
    eps: the Euclidean norm of an example's move, a scalar or `[batch]`, at least 0, in units of `x`.
    num_steps: at least 1; static.
    divergence: `(clean, moved) -> [batch]`, twice differentiable and least where both are equal; default: the
      Kullback-Leibler divergence. With one of your own, such as half the squared distance for a regression,
      `log_probs_fn` may return any `[batch, ...]`.

  Returns:
    `x'`, of the shape and dtype of `x`.

  Example:
    >>> log_probs = lambda x: jax.nn.log_softmax(x @ jnp.array([[3.0, -3.0], [0.0, 0.0]]))
    >>> moved = virtual_adversarial(jax.random.key(0), log_probs, jnp.zeros((1, 2)), eps=2.0)
    >>> jnp.abs(moved)  # d and -d are equally bad
    Array([[2., 0.]], dtype=float32)

  References:
    Miyato et al., `Virtual Adversarial Training`, 2018, section 3.3.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, adversarial training.
  """
  x = check_batched(x, "x")
  radius = per_example(eps, "eps", x)
  check_count(num_steps, "num_steps")
  clean = _clean(log_probs_fn, x, divergence)
  return _move(
    check_key(key), log_probs_fn, x, clean, radius, num_steps, divergence or divergence_of_examples
  )


def vat_loss(
  key: Key,
  log_probs_fn: Callable[[Array], Array],
  x: ArrayLike,
  *,
  eps: ArrayLike,
  num_steps: int = 1,
  divergence: Divergence | None = None,
) -> Array:
  r"""Computes how far the prediction moves at `virtual_adversarial` inputs: a penalty without labels.

  .. math:: \mathrm{KL}\bigl(p(\cdot \mid x) \,\|\, p(\cdot \mid x')\bigr)

  The first argument, the target, and `x' - x` are constants to differentiation. In bfloat16 small moves are
  lost, as in `virtual_adversarial`.

  Args:
    key, log_probs_fn, x, eps, num_steps, divergence: as in `virtual_adversarial`.

  Returns:
    `[batch]`, in nats, float32 or wider; summed over the axes between batch and classes.

  Example:
    >>> log_probs = lambda x: jax.nn.log_softmax(x @ jnp.array([[3.0, -3.0], [0.0, 0.0]]))
    >>> vat_loss(jax.random.key(0), log_probs, jnp.zeros((1, 2)), eps=0.5)  # log cosh 1.5
    Array([0.85544014], dtype=float32)

  References:
    Miyato et al., `Virtual Adversarial Training`, 2018.
  """
  x = check_batched(x, "x")
  radius = per_example(eps, "eps", x)
  check_count(num_steps, "num_steps")
  clean, divergence = _clean(log_probs_fn, x, divergence), divergence or divergence_of_examples
  moved = _move(check_key(key), log_probs_fn, x, clean, radius, num_steps, divergence)
  return divergence(clean, wide(log_probs_fn(moved)))


def _move(
  key: Key,
  log_probs_fn: Callable[[Array], Array],
  x: Array,
  clean: Array,
  radius: Array,
  num_steps: int,
  divergence: Divergence,
) -> Array:
  gradient = jax.grad(lambda x: divergence(clean, wide(log_probs_fn(x))).sum())

  def iterate(d: Array) -> Array:
    product = jax.jvp(gradient, (x,), (d.astype(x.dtype),))[1]
    return unit(wide(jax.lax.stop_gradient(product)), otherwise=d)

  start = unit(placed_like(jax.random.normal(key, x.shape, wide(x).dtype), x))
  direction = repeat(num_steps, iterate, start)
  return (wide(x) + radius * direction).astype(x.dtype)


def _clean(log_probs_fn: Callable[[Array], Array], x: Array, divergence: Divergence | None) -> Array:
  return jax.lax.stop_gradient(predicted(log_probs_fn, x) if divergence is None else wide(log_probs_fn(x)))


def predicted(log_probs_fn: Callable[[Array], Array], x: Array) -> Array:
  """The log-probabilities of the inputs, in at least float32."""
  clean = log_probs_fn(x)
  if clean.ndim < 2 or clean.shape[0] != x.shape[0]:
    raise ValueError(
      f"log_probs_fn must give [batch, ..., classes] for a batch of {x.shape[0]}, got {clean.shape}; "
      "adversarial_loss needs an attacked_fn that returns log-probabilities to use vat as its attack"
    )
  return check_log_probs(clean, "the values of log_probs_fn")


def divergence_of_examples(log_p: Array, log_q: Array) -> Array:
  """Sums `KL(p || q)` over the axes between batch and classes: `[batch]`."""
  each = kl_divergence(log_p, log_q)
  return each.sum(axis=tuple(range(1, each.ndim)))
