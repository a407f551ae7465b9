"""Auto-PGD: projected gradient ascent with momentum that chooses its own step size."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg._leaves import wide
from jaxreg._sharding import entries, placed_like
from jaxreg.adversarial._common import Bounds, perturbed
from jaxreg.adversarial._pgd import Norm, inside, project, steepest, uniform_start
from jaxreg.typing import Array, Key

MOMENTUM = 0.75  # share of the new step, alpha
RISES = 0.75  # share of the steps since a checkpoint that must raise the loss, rho
# A loss and whether the answer is wrong, for each example.
Values = Callable[[Array], tuple[Array, Array]]


class Search(NamedTuple):
  """The state of a run; all arrays have one row per example."""

  number: Array  # of steps before this point
  point: Array  # the perturbation
  before: Array  # the perturbation one step ago
  loss: Array  # one step ago
  best: Array  # the perturbation with the largest loss
  best_gradient: Array
  best_loss: Array
  step_size: Array
  rises: Array  # steps since the last checkpoint that raised the loss
  halved: Array  # whether the last checkpoint halved the step size
  checked_loss: Array  # the largest loss at the last checkpoint
  result: Array  # the first perturbation with a wrong answer
  success: Array  # whether there is one


def checkpoints(num_steps: int) -> np.ndarray:
  r"""Returns at each step the number of steps since the last checkpoint if it is one, else 0.

  .. math:: w_j = \lceil p_j N \rceil, \quad p_1 = 0.22, \quad
    p_{j+1} = p_j + \max(p_j - p_{j-1} - 0.03, 0.06)
  """
  widths, last, part, previous = np.zeros(num_steps + 1, np.int32), 0, 22, 0  # parts in per cent
  while part <= 100:
    step = -(-part * num_steps // 100)
    if step > last:
      widths[step], last = step - last, step
    part, previous = part + max(part - previous - 3, 6), part
  return widths


def ascent(
  point: Array,
  before: Array,
  gradient: Array,
  *,
  step_size: Array,
  share: Array | float,
  norm: Norm,
  onto_ball: Callable[[Array], Array],
) -> Array:
  r"""Moves a perturbation by one step.

  .. math:: z = P(\delta_k + \eta s), \qquad
    \delta_{k+1} = P(\delta_k + \alpha (z - \delta_k) + (1 - \alpha)(\delta_k - \delta_{k-1}))
  """
  ahead = onto_ball(point + step_size * steepest(gradient, norm))
  return onto_ball(point + share * (ahead - point) + (1 - share) * (point - before))


def is_halved(rises: Array, width: Array, halved: Array, best_loss: Array, checked_loss: Array) -> Array:
  """Returns whether a checkpoint halves the step size: few rises, or no larger loss with the same step."""
  return (rises < RISES * width) | (~halved & (best_loss == checked_loss))


def apgd(
  key: Key,
  values: Values,
  x: Array,
  *,
  radius: Array,
  norm: Norm,
  num_steps: int,
  clip: Bounds,
  done: Array,
) -> tuple[Array, Array]:
  """Returns a perturbation for each example, and whether the answer is wrong there.

  It stops once every example that is not `done` has a wrong answer.

  References:
    Croce and Hein, `Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse Parameter-free
    Attacks`, 2020, Algorithm 1 and section 3.1.
  """
  widths = jnp.asarray(checkpoints(num_steps))

  def onto_ball(delta: Array) -> Array:
    return inside(x, project(delta, radius, norm), clip)

  def total(x: Array) -> tuple[Array, tuple[Array, Array]]:
    losses, wrong = values(x)
    return losses.sum(), (losses, wrong)

  def evaluate(delta: Array) -> tuple[Array, Array, Array]:
    gradient, (losses, wrong) = jax.grad(total, has_aux=True)(perturbed(x, delta, clip))
    # A direction that is NaN would put the input outside of the ball.
    gradient = jnp.nan_to_num(wide(gradient), nan=0.0)
    return jax.lax.stop_gradient(gradient), jax.lax.stop_gradient(losses), wrong

  def goes_on(search: Search) -> Array:
    return (search.number <= num_steps) & ~(done | search.success).all()

  def advance(search: Search) -> Search:
    # The start is evaluated here, too: a second gradient before the loop would double the time to compile.
    first = search.number == 0
    gradient, loss, wrong = evaluate(search.point)
    result = jnp.where(like(search.success, x), search.result, search.point)
    better = first | (loss > search.best_loss)
    best, best_gradient = (
      jnp.where(like(better, x), *pair)
      for pair in ((search.point, search.best), (gradient, search.best_gradient))
    )
    best_loss, rises = jnp.where(better, loss, search.best_loss), search.rises + (loss > search.loss)
    width = widths[search.number]
    checked = first | (width > 0)
    halve = is_halved(rises, width, search.halved, best_loss, search.checked_loss) & (width > 0)
    at_best = like(halve, x)
    point = jnp.where(at_best, best, search.point)
    step_size = jnp.where(halve, search.step_size / 2, search.step_size)
    share = jnp.where(first, 1.0, MOMENTUM)
    following = ascent(
      point,
      search.before,
      jnp.where(at_best, best_gradient, gradient),
      step_size=like(step_size, x),
      share=share.astype(point.dtype),
      norm=norm,
      onto_ball=onto_ball,
    )
    return Search(
      number=search.number + 1,
      point=following,
      before=point,
      loss=jnp.where(halve, best_loss, loss),
      best=best,
      best_gradient=best_gradient,
      best_loss=best_loss,
      step_size=step_size,
      rises=jnp.where(checked, 0, rises),
      halved=jnp.where(checked, halve, search.halved),
      checked_loss=jnp.where(checked, best_loss, search.checked_loss),
      result=result,
      success=search.success | wrong,
    )

  start = onto_ball(radius * placed_like(uniform_start(key, x, norm), x))
  no_loss = jnp.zeros_like(done, jax.eval_shape(values, x)[0].dtype)
  search = Search(
    number=jnp.int32(0),
    point=start,
    before=start,
    loss=no_loss,
    best=start,
    best_gradient=jnp.zeros_like(start),
    best_loss=no_loss,
    step_size=jnp.zeros_like(done, start.dtype) + 2 * radius.reshape(-1),
    rises=jnp.zeros_like(done, jnp.int32),
    halved=jnp.zeros_like(done),
    checked_loss=no_loss,
    result=start,
    success=jnp.zeros_like(done),
  )
  search = jax.lax.while_loop(goes_on, advance, search)
  return search.result, search.success


def like(values: Array, x: Array) -> Array:
  """Returns `[batch]` as `[batch, 1, ...]`, ready for arithmetic with `x`."""
  return values.reshape(-1, *[1] * (x.ndim - 1))


def cross_entropy(logits: Array, labels: Array) -> Array:
  """Returns minus the log-probability of each label, `[batch]`."""
  return -entries(jax.nn.log_softmax(logits), labels)[:, 0]


def targeted_dlr(logits: Array, labels: Array, targets: Array) -> Array:
  r"""Returns the targeted difference-of-logits ratio, `[batch]`; it is 0 if the four largest are equal.

  Logits of -inf are left out of the mean in the denominator, which is 1 if fewer than three are left.

  .. math:: -\frac{z_y - z_t}{z_{\pi_1} - (z_{\pi_3} + z_{\pi_4}) / 2}

  References:
    Croce and Hein, 2020, Eq. 7.
  """
  largest = jax.lax.top_k(logits, 4)[0]
  # An excluded class has a logit of -inf. Two classes that are left have no scale.
  kept = largest[:, 2:] > -jnp.inf
  middle = jnp.where(kept, largest[:, 2:], 0).sum(axis=1) / jnp.maximum(kept.sum(axis=1), 1)
  scale = jnp.where(kept.any(axis=1), largest[:, 0] - middle, 1)
  behind = entries(logits, targets)[:, 0] - entries(logits, labels)[:, 0]
  return jnp.where(scale > 0, behind / jnp.where(scale > 0, scale, 1), 0)
