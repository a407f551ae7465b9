"""Projected gradient ascent within a ball around the inputs."""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg._checks import check_batched, check_choice, check_count, check_key
from jaxreg._leaves import wide
from jaxreg._loops import repeat
from jaxreg._sharding import placed_like
from jaxreg.adversarial._common import (
  Bounds,
  LossOfInputs,
  check_clip,
  input_gradient,
  lengths,
  per_example,
  perturbed,
  unit,
)
from jaxreg.typing import Array, Key

Norm = Literal["linf", "l2", "l1"]


def pgd(
  key: Key | None,
  loss_of_inputs: LossOfInputs,
  x: ArrayLike,
  *,
  eps: ArrayLike,
  step_size: ArrayLike | None = None,
  num_steps: int | Array,
  norm: Norm = "linf",
  random_start: bool = True,
  clip: Bounds = None,
  targeted: bool = False,
) -> Array:
  r"""Moves inputs by steps of steepest ascent, each followed by a projection onto a ball around `x`.

  .. math:: \delta \leftarrow P_{\|\delta\| \le \epsilon} \Bigl(\delta
    + \eta \operatorname*{argmax}_{\|v\| \le 1} v^\top \nabla_x J(x + \delta)\Bigr)

  The steepest direction is the sign of the gradient for `linf`, the gradient divided by its norm for `l2`,
  and the single coordinate with the largest gradient for `l1`. So `l1` needs many steps.

  One step in the norm `linf` without a random start is the fast gradient sign method: `x + eps * sign(g)` for
  the gradient `g`. If the loss is monotone in a linear function of `x`, as in logistic regression, this is
  the worst point of the box of half-width `eps`. It adds `eps * ||w||_1` to the negative margin.

  Args:
    key: one draw of the start for all examples; may be None without a random start.
    loss_of_inputs: `x -> [batch]`, any loss in which examples do not depend on each other; it closes over
      parameters, labels and the key of its noise.
    x: `[batch, ...]`, floating; inside `clip`, if that is given.
    eps: radius of the ball, a scalar or `[batch]`, at least 0, in units of `x`; it holds up to the
      rounding of `x + delta`.
    step_size: a scalar or `[batch]`, at least 0; by default `2.5 * eps / num_steps`.
    num_steps: at least 1; if it is traced, one program serves all numbers, and reverse mode does not.
    norm: `linf`, `l2` or `l1`, over all axes of an example.
    random_start: whether the first point is uniform in the ball instead of `x`.
    clip: the least and largest value that an input may have, applied after every projection.
    targeted: whether to descend instead, on the loss of a target class.

  Returns:
    `x + delta`, of the shape and dtype of `x`.

  Example:
    >>> loss = lambda x: x @ jnp.array([3.0, 4.0])
    >>> options = dict(eps=1.0, step_size=0.5, num_steps=3, random_start=False)
    >>> pgd(None, loss, jnp.zeros((1, 2)), norm="l2", **options).round(3)
    Array([[0.6, 0.8]], dtype=float32)

  References:
    Madry et al., `Towards Deep Learning Models Resistant to Adversarial Attacks`, 2018, section 2.1.
    Goodfellow, Shlens and Szegedy, `Explaining and Harnessing Adversarial Examples`, 2015, section 4.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, adversarial training.
  """
  x = check_batched(x, "x")
  check_clip(clip, x)
  radius = per_example(eps, "eps", x)
  if not isinstance(num_steps, Tracer):
    check_count(num_steps, "num_steps")
  # A traced number of steps may be 0, and then no step is taken.
  rate = 2.5 * radius / num_steps if step_size is None else per_example(step_size, "step_size", x)
  check_choice(norm, "norm", ("linf", "l2", "l1"))
  rate = -rate if targeted else rate

  def step(delta: Array) -> Array:
    gradient = input_gradient(loss_of_inputs, perturbed(x, delta, clip))
    return inside(x, project(delta + rate * steepest(gradient, norm), radius, norm), clip)

  start = jnp.zeros_like(wide(x))
  if random_start:
    start = radius * placed_like(uniform_start(key, x, norm), x)
  return perturbed(x, repeat(num_steps, step, inside(x, start, clip)), clip)


def inside(x: Array, delta: Array, clip: Bounds) -> Array:
  """Returns the perturbation of `x` clipped to the bounds."""
  # Clipping brings a coordinate nearer to x, so the result stays in the ball.
  return delta if clip is None else jnp.clip(wide(x) + delta, *clip) - wide(x)


def steepest(gradient: Array, norm: Norm) -> Array:
  """Returns the direction of length 1 along which the loss rises most."""
  if norm == "linf":
    return jnp.sign(gradient)
  if norm == "l2":
    return unit(gradient)
  flat = gradient.reshape(gradient.shape[0], -1)
  largest = jax.nn.one_hot(jnp.abs(flat).argmax(axis=-1), flat.shape[-1], dtype=flat.dtype)
  return (largest * jnp.sign(flat)).reshape(gradient.shape)


def project(delta: Array, radius: Array, norm: Norm) -> Array:
  """Returns the nearest point of the ball."""
  if norm == "linf":
    return jnp.clip(delta, -radius, radius)
  if norm == "l2":
    return unit(delta) * jnp.minimum(lengths(delta), radius)
  # Optax divides by the radius, which may be 0.
  divisors = jnp.broadcast_to(jnp.where(radius > 0, radius, 1).ravel(), delta.shape[:1])
  return jnp.where(radius > 0, jax.vmap(optax.projections.projection_l1_ball)(delta, divisors), 0)


def uniform_start(key: Any, x: Array, norm: Norm) -> Array:
  """Draws a uniform point of the unit ball for each example."""
  key, dtype = check_key(key), wide(x).dtype
  if norm == "linf":
    return jax.random.uniform(key, x.shape, dtype, -1, 1)
  batch, size = x.shape[0], math.prod(x.shape[1:])
  # Projecting a sphere with two more dimensions, or an L1 sphere with one more, gives a uniform ball.
  if norm == "l2":
    normal = jax.random.normal(key, (batch, size + 2), dtype)
    points = normal / lengths(normal)
  else:
    laplace = jax.random.laplace(key, (batch, size + 1), dtype)
    points = laplace / jnp.abs(laplace).sum(axis=-1, keepdims=True)
  return points[:, :size].reshape(x.shape)
