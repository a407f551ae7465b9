"""Regularizers that look at the examples again, in one or more further passes of the network.

Each is `(key, view, *, options) -> [batch]`, or `-> scalar` if the term is not a mean over examples. The view
is `jaxreg.objective.View`. Its batch has `inputs`, floating and in the model's units, and its `aux` is the
`Pass` of the loss. Terms that need no labels count the examples without a label, too.
"""
# pyright: reportUnknownMemberType=false

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxreg import adversarial, augment, losses, penalties
from jaxreg._errors import ArgumentError
from jaxreg.objective import View
from jaxreg.train.entries import Options
from jaxreg.typing import Array, Key

Divergence = Callable[[Array, Array], Array]  # `(clean, moved) -> [batch]` of two predictions
TeacherFn = Callable[[Key, Array], Array]  # `(key, inputs) -> log-probabilities` of a trained run


def predictions(view: View, x: Array) -> Array:
  """Computes the predictions `[batch, classes]` for the inputs `x`, with the noise of the loss's pass.

  A network with statistics, such as BatchNorm's, is in evaluation mode: training mode would mix the examples.
  """
  if view.batch["model_state"]:
    return view.again(inputs=x, key=None).aux.predictions
  return view.again(inputs=x).aux.predictions


def losses_at(view: View, x: Array) -> Array:
  """Computes the method's loss `[batch]` at the inputs `x`, with the noise of the loss's pass."""
  if view.batch["model_state"]:
    return view.again(inputs=x, key=None).loss
  return view.again(inputs=x).loss


def losses_without_noise(view: View, x: Array) -> Array:
  """Computes the method's loss `[batch]` at the inputs `x` in evaluation mode."""
  return view.again(inputs=x, key=None).loss


def r_drop(key: Key, view: View) -> Array:
  """Computes `losses.r_drop` between the loss's pass and a pass under other noise."""
  return losses.r_drop(view.aux.predictions, view.again(key=key).aux.predictions)


def pi_model(key: Key, view: View) -> Array:
  """Computes `losses.consistency` between the loss's pass and a pass under other noise."""
  return losses.consistency(view.aux.predictions, view.again(key=key).aux.predictions)


def mean_teacher(key: Key, view: View) -> Array:
  """Computes `losses.consistency` between the prediction and the prediction of the averaged parameters."""
  del key
  averaged = view.batch["averaged"]
  batch = {**view.batch, "model_state": averaged["model_state"]}
  teacher = view.again(params=averaged["params"], batch=batch, key=None).aux.predictions
  return losses.consistency(view.aux.predictions, jax.lax.stop_gradient(teacher))


def distillation(key: Key, view: View, *, teacher: TeacherFn, temperature: float = 4.0) -> Array:
  """Computes `losses.distillation` from a trained `teacher`, whose predictions have no noise."""
  return losses.distillation(
    view.aux.predictions, teacher(key, view.batch["inputs"]), temperature=temperature
  )


def entropy(key: Key, view: View) -> Array:
  """Computes `losses.entropy` of the prediction."""
  del key
  return losses.entropy(view.aux.predictions)


def z_loss(key: Key, view: View) -> Array:
  """Computes `losses.z_loss` of the head's logits."""
  del key
  if "logits" not in view.aux.outputs:
    raise ValueError(f"z_loss needs a head that returns logits, got {', '.join(view.aux.outputs)}")
  return losses.z_loss(view.aux.outputs["logits"])


def reconstruction(key: Key, view: View, *, likelihood: str = "gaussian") -> Array:
  """Computes `losses.reconstruction` of the clean inputs by the head's decoder."""
  del key
  if "reconstruction" not in view.aux.outputs:
    raise ValueError("reconstruction needs a head with a decoder, as the autoencoder has")
  options: Options = {"likelihood": likelihood}
  return losses.reconstruction(view.aux.outputs["reconstruction"], view.batch["inputs"], **options)


def pseudo_label(key: Key, view: View, *, threshold: float = 0.95) -> Array:
  """Computes `losses.pseudo_label` of the loss's pass; the target is the prediction without noise."""
  del key
  return losses.pseudo_label(view.aux.predictions, view.again(key=None).aux.predictions, threshold=threshold)


def fixmatch(
  key: Key,
  view: View,
  *,
  threshold: float = 0.95,
  num_ops: int = 2,
  magnitude: float = 9.0,
  cutout_size: int = 16,
) -> Array:
  """Computes `losses.pseudo_label` for two views of images: the weak view teaches, the strong view learns.

  The weak view is the step's inputs, which the augmentations in `augment.names` have shifted or mirrored. Its
  prediction has no noise. The strong view is the weak view after `augment.rand_augment` and `augment.cutout`
  with a gray square, `cutout_size` pixels wide; 0 leaves the square out. The strong view's pass has the noise
  of the loss's pass.

  Args:
    key: draws the strong view.
    view: the batch and the network.
    threshold: how sure the weak view's prediction must be, in [0, 1].
    num_ops: RandAugment's operations for each strong view.
    magnitude: RandAugment's magnitude, in [0, 10].
    cutout_size: side of the gray square of the strong view in pixels; 0: none.
  """
  for_ops, for_cutout = jax.random.split(key)
  strong = augment.rand_augment(
    for_ops, {"inputs": view.batch["inputs"]}, num_ops=num_ops, magnitude=magnitude
  )
  if cutout_size:
    strong = augment.cutout(for_cutout, strong, size=cutout_size, fill=0.5)
  target = view.again(key=None).aux.predictions
  return losses.pseudo_label(predictions(view, strong["inputs"]), target, threshold=threshold)


def augmix(
  key: Key,
  view: View,
  *,
  num_chains: int = 3,
  num_ops: int = 3,
  severity: float = 3.0,
  alpha: float = 1.0,
) -> Array:
  """Computes `losses.jensen_shannon` of the loss's pass and of two views of its images by `augment.augmix`.

  The source's weight is 12. All passes have the noise of the loss's pass.

  Args:
    key: draws the two views.
    view: the batch and the network.
    num_chains: chains of operations that each view mixes.
    num_ops: the most operations of a chain.
    severity: the largest magnitude of an operation, in [0.1, 10].
    alpha: parameter of the Dirichlet and beta distributions of the mixtures.
  """
  options: Options = {"num_chains": num_chains, "num_ops": num_ops, "severity": severity, "alpha": alpha}
  mixed = [augment.augmix(own, {"inputs": view.batch["inputs"]}, **options) for own in jax.random.split(key)]
  others = [predictions(view, batch["inputs"]) for batch in mixed]
  return losses.jensen_shannon(jnp.stack([view.aux.predictions, *others], axis=-2))


def l1_activity(key: Key, view: View) -> Array:
  """Computes `penalties.l1_activity` of the features."""
  del key
  return penalties.l1_activity(view.aux.features)


def kl_sparsity(key: Key, view: View, *, target: float = 0.05) -> Array:
  """Computes `penalties.kl_sparsity` of features between 0 and 1, summed over units.

  A unit's mean is over the batch. Where `pmap` or `accumulate` divides the batch, it is over one part.
  """
  del key
  features, weights = _flat_features(view)
  return penalties.kl_sparsity(features, target=target, weights=weights).sum()


def activity_variance(key: Key, view: View, *, target: float = 1.0) -> Array:
  """Computes the mean over units of `penalties.activity_variance` of the features."""
  del key
  features, weights = _flat_features(view)
  return penalties.activity_variance(features, target=target, weights=weights).mean()


def activity_covariance(key: Key, view: View) -> Array:
  """Computes the mean over units of `penalties.activity_covariance` of the features."""
  del key
  features, weights = _flat_features(view)
  return penalties.activity_covariance(features, weights=weights).mean()


def _flat_features(view: View) -> tuple[Array, Array]:
  """Returns the features `[batch, units]` and the weights of the examples `[batch]`."""
  features = view.aux.features.reshape(len(view.aux.features), -1)
  return features, view.batch["examples"].weights.astype(features.dtype)


def gradient_penalty(key: Key, view: View) -> Array:
  """Computes `penalties.gradient_penalty` of the loss."""
  del key

  def loss_fn(_: None, x: Array) -> Array:
    return losses_at(view, x)

  return penalties.gradient_penalty(loss_fn, None, view.batch["inputs"])


def jacobian_penalty(key: Key, view: View, *, num_samples: int = 1) -> Array:
  """Computes `penalties.jacobian_penalty` of the log-probabilities, estimated by random projections."""

  def apply_fn(_: None, x: Array) -> Array:
    return predictions(view, x)

  return penalties.jacobian_penalty(apply_fn, None, view.batch["inputs"], num_samples=num_samples, key=key)


def fgsm(key: Key, view: View, *, eps: float = 0.1, clip: tuple[float, ...] = ()) -> Array:
  """Computes the loss after one step of `adversarial.pgd` on the network without noise.

  Args:
    key, view: as for every term.
    eps: the length of the step in the maximum norm.
    clip: the least and largest value that an input may have.
  """
  del key
  options: Options = {"eps": eps, "num_steps": 1, "random_start": False, "clip": _bounds(clip)}
  moved = adversarial.pgd(
    None, functools.partial(losses_without_noise, view), view.batch["inputs"], **options
  )
  return losses_at(view, jax.lax.stop_gradient(moved))


def pgd(
  key: Key,
  view: View,
  *,
  eps: float = 0.1,
  step_size: float = 0.025,
  num_steps: int = 7,
  norm: str = "linf",
  clip: tuple[float, ...] = (),
) -> Array:
  """Computes the loss at the inputs that `adversarial.pgd` finds for the network without noise."""
  options: Options = {"eps": eps, "step_size": step_size, "num_steps": num_steps, "norm": norm}
  moved = adversarial.pgd(
    key, functools.partial(losses_without_noise, view), view.batch["inputs"], **options, clip=_bounds(clip)
  )
  return losses_at(view, jax.lax.stop_gradient(moved))


def virtual_adversarial(
  key: Key, view: View, *, divergence: Divergence | None, eps: float = 1.0, num_steps: int = 1
) -> Array:
  """Computes `adversarial.vat_loss`; all passes have the noise of the loss's pass.

  The `divergence` of numbers is half the squared distance of the predictions.
  """
  options: Options = {"eps": eps, "num_steps": num_steps, "divergence": divergence}
  return adversarial.vat_loss(key, functools.partial(predictions, view), view.batch["inputs"], **options)


def half_squared_distance(clean: Array, moved: Array) -> Array:
  """Computes the divergence of predicted numbers, `[batch]`."""
  return jnp.square(moved - clean).sum(axis=tuple(range(1, clean.ndim))) / 2


def trades(
  key: Key,
  view: View,
  *,
  eps: float = 0.1,
  step_size: float = 0.025,
  num_steps: int = 10,
  norm: str = "linf",
  clip: tuple[float, ...] = (),
) -> Array:
  """Computes `adversarial.trades_loss`; all passes have the noise of the loss's pass.

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
  return adversarial.trades_loss(
    key, functools.partial(predictions, view), view.batch["inputs"], **options, clip=_bounds(clip)
  )


def _bounds(clip: tuple[float, ...]) -> tuple[float, float] | None:
  if not clip:
    return None
  if len(clip) != 2 or not clip[0] < clip[1]:
    raise ArgumentError("clip", f"must be () or the minimum and maximum input, got {clip}")
  return clip[0], clip[1]
