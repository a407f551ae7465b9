"""Example terms that train at inputs moved against the network: FGSM, PGD, VAT and TRADES."""

import jax
import jax.numpy as jnp

from jaxreg import adversarial
from jaxreg.train.lookup import Options
from jaxreg.train.step.network_view import NetworkView
from jaxreg.typing import Array, Key


def fgsm(key: Key, view: NetworkView, *, eps: float = 0.1, clip: tuple[float, ...] = ()) -> Array:
  """The loss at the inputs that `adversarial.fgsm` finds for the network without noise."""
  del key
  moved = adversarial.fgsm(lambda x: view.loss_fn(x, None), view.inputs, eps=eps, clip=_bounds(clip))
  return view.loss_fn(jax.lax.stop_gradient(moved), view.same_noise)


def pgd(
  key: Key,
  view: NetworkView,
  *,
  eps: float = 0.1,
  step_size: float = 0.025,
  num_steps: int = 7,
  norm: str = "linf",
  clip: tuple[float, ...] = (),
) -> Array:
  """The loss at the inputs that `adversarial.pgd` finds for the network without noise."""
  options: Options = {"eps": eps, "step_size": step_size, "num_steps": num_steps, "norm": norm}
  moved = adversarial.pgd(key, lambda x: view.loss_fn(x, None), view.inputs, **options, clip=_bounds(clip))
  return view.loss_fn(jax.lax.stop_gradient(moved), view.same_noise)


def virtual_adversarial(key: Key, view: NetworkView, *, eps: float = 1.0, num_steps: int = 1) -> Array:
  """`adversarial.vat_loss`; all passes have the noise of the loss's pass.

  Where the labels are numbers, the divergence is half the squared distance of the predictions.
  """
  divergence = _half_squared if view.predicts_numbers else None
  options: Options = {"eps": eps, "num_steps": num_steps, "divergence": divergence}
  return adversarial.vat_loss(key, view.log_probs_same_noise, view.inputs, **options)


def _half_squared(clean: Array, moved: Array) -> Array:
  return jnp.square(moved - clean).sum(axis=tuple(range(1, clean.ndim))) / 2


def trades(
  key: Key,
  view: NetworkView,
  *,
  eps: float = 0.1,
  step_size: float = 0.025,
  num_steps: int = 10,
  norm: str = "linf",
  clip: tuple[float, ...] = (),
) -> Array:
  """`adversarial.trades_loss`; all passes have the noise of the loss's pass.

  Args:
    key: draws the start of the attack.
    view: the batch and the network.
    eps: radius of the ball around an input, in units of the scaled inputs.
    step_size: length of a step of the attack.
    num_steps: steps of the attack.
    norm: norm of the ball: linf, l2 or l1.
    clip: bounds of the moved inputs, or ().
  """
  options: Options = {"eps": eps, "step_size": step_size, "num_steps": num_steps, "norm": norm}
  return adversarial.trades_loss(key, view.log_probs_same_noise, view.inputs, **options, clip=_bounds(clip))


def _bounds(clip: tuple[float, ...]) -> tuple[float, float] | None:
  if not clip:
    return None
  if len(clip) != 2 or not clip[0] < clip[1]:
    raise ValueError(f"clip must be () or the least and the largest input, got {clip}")
  return clip[0], clip[1]
