# pyright: reportUnknownMemberType=false
"""Regularizers that look at the examples again, in one or more passes of the network beside the loss's pass.

Each is `(key, view, *, options) -> [batch]`, or `-> scalar` if the term is not a mean over examples. Terms
that need no labels count the examples without a label, too.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxreg import adversarial, augment, losses, penalties
from jaxreg.train import keys
from jaxreg.train.lookup import Options
from jaxreg.train.step.network import Outputs
from jaxreg.typing import Array, Key, PyTree

TrainedFn = Callable[[Key, Array], Array]  # as `NetworkView.trained_fn`


@dataclasses.dataclass(frozen=True)
class NetworkView:
  """Everything that a term may ask of the network, at the parameters of the step.

  Attributes:
    inputs: `[batch, ...]`, floating, in the model's units.
    weights: `[batch]`, the weights of all examples, with a label or without.
    log_probs: `[batch, classes]`, from the loss's pass.
    features: `[batch, ...]`, the input of the head in the same pass.
    noise: the key of the loss's pass; None for a model with BatchNorm, because its training mode would mix
      the examples of the batch.
    loss_fn: `(inputs, noise) -> [batch]`, the method's loss; `noise=None` gives the loss in evaluation mode.
    log_probs_fn: `(inputs, noise) -> [batch, classes]`, likewise.
    teacher_fn: `inputs -> [batch, classes]`, log-probabilities under the averaged parameters and statistics,
      without noise and without gradient; None if the run averages no parameters.
    trained_fn: `(key, inputs) -> [batch, classes]`, log-probabilities of a trained run, without gradient; the
      key is for predictions that draw. None if no run is given.
    outputs: what the head returns in the loss's pass, by name, such as `logits` `[batch, classes]`.
    predicts_numbers: whether the labels are numbers; the predictions in place of log-probabilities are then
      standardised, as `Numbers` describes them.
  """

  inputs: Array
  weights: Array
  log_probs: Array
  features: PyTree
  noise: Key | None
  loss_fn: Callable[[Array, Key | None], Array]
  log_probs_fn: Callable[[Array, Key | None], Array]
  teacher_fn: Callable[[Array], Array] | None
  trained_fn: TrainedFn | None = None
  outputs: Outputs = dataclasses.field(default_factory=dict[str, PyTree])
  predicts_numbers: bool = False

  @property
  def same_noise(self) -> Key | None:
    """The key of the noise in the loss's pass, cloned: its second use is intended."""
    return None if self.noise is None else keys.again(self.noise)

  def log_probs_same_noise(self, x: Array) -> Array:
    """The log-probabilities `[batch, classes]` of the inputs `x`, with the noise of the loss's pass."""
    return self.log_probs_fn(x, self.same_noise)


def r_drop(key: Key, view: NetworkView) -> Array:
  """`losses.r_drop` between the loss's pass and a pass under other noise."""
  return losses.r_drop(view.log_probs, view.log_probs_fn(view.inputs, key))


def pi_model(key: Key, view: NetworkView) -> Array:
  """`losses.consistency` between the loss's pass and a pass under other noise."""
  return losses.consistency(view.log_probs, view.log_probs_fn(view.inputs, key))


def mean_teacher(key: Key, view: NetworkView) -> Array:
  """`losses.consistency` between the prediction and the prediction of the averaged parameters."""
  del key
  if view.teacher_fn is None:
    raise ValueError("mean_teacher needs averaged parameters")
  return losses.consistency(view.log_probs, view.teacher_fn(view.inputs))


def distillation(key: Key, view: NetworkView, *, temperature: float = 4.0) -> Array:
  """`losses.distillation` from a trained teacher, whose predictions have no noise."""
  if view.trained_fn is None:
    raise ValueError("distillation needs a trained teacher")
  return losses.distillation(view.log_probs, view.trained_fn(key, view.inputs), temperature=temperature)


def entropy(key: Key, view: NetworkView) -> Array:
  """`losses.entropy` of the prediction."""
  del key
  return losses.entropy(view.log_probs)


def z_loss(key: Key, view: NetworkView) -> Array:
  """`losses.z_loss` of the head's logits."""
  del key
  if "logits" not in view.outputs:
    raise ValueError(f"z_loss needs a head that returns logits, got {', '.join(view.outputs)}")
  return losses.z_loss(view.outputs["logits"])


def reconstruction(key: Key, view: NetworkView, *, likelihood: str = "gaussian") -> Array:
  """`losses.reconstruction` of the clean inputs by the head's decoder."""
  del key
  if "reconstruction" not in view.outputs:
    raise ValueError("reconstruction needs a head with a decoder, such as that of the autoencoder")
  options: Options = {"likelihood": likelihood}
  return losses.reconstruction(view.outputs["reconstruction"], view.inputs, **options)


def pseudo_label(key: Key, view: NetworkView, *, threshold: float = 0.95) -> Array:
  """`losses.pseudo_label` of the loss's pass; the target is predicted from the same inputs without noise."""
  del key
  return losses.pseudo_label(view.log_probs, view.log_probs_fn(view.inputs, None), threshold=threshold)


def fixmatch(
  key: Key,
  view: NetworkView,
  *,
  threshold: float = 0.95,
  num_ops: int = 2,
  magnitude: float = 9.0,
  cutout_size: int = 16,
) -> Array:
  """`losses.pseudo_label` for two views of images: the weak view teaches, the strong view learns.

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
  strong = augment.rand_augment(for_ops, {"inputs": view.inputs}, num_ops=num_ops, magnitude=magnitude)
  if cutout_size:
    strong = augment.cutout(for_cutout, strong, size=cutout_size, fill=0.5)
  target = view.log_probs_fn(view.inputs, None)
  return losses.pseudo_label(
    view.log_probs_fn(strong["inputs"], view.same_noise), target, threshold=threshold
  )


def augmix(
  key: Key,
  view: NetworkView,
  *,
  num_chains: int = 3,
  num_ops: int = 3,
  severity: float = 3.0,
  alpha: float = 1.0,
) -> Array:
  """`losses.jensen_shannon` of the loss's pass and of two views of its images by `augment.augmix`.

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
  mixed = [augment.augmix(own, {"inputs": view.inputs}, **options) for own in jax.random.split(key)]
  others = [view.log_probs_fn(batch["inputs"], view.same_noise) for batch in mixed]
  return losses.jensen_shannon(jnp.stack([view.log_probs, *others], axis=-2))


def l1_activity(key: Key, view: NetworkView) -> Array:
  """`penalties.l1_activity` of the features."""
  del key
  return penalties.l1_activity(view.features)


def kl_sparsity(key: Key, view: NetworkView, *, target: float = 0.05) -> Array:
  """`penalties.kl_sparsity` of the features, summed over units; all features must lie between 0 and 1.

  A unit's mean is over the batch. Where `pmap` or `accumulate` divides the batch, it is over one part.
  """
  del key
  features = view.features.reshape(len(view.features), -1)
  return penalties.kl_sparsity(features, target=target, weights=view.weights.astype(features.dtype)).sum()


def gradient_penalty(key: Key, view: NetworkView) -> Array:
  """`penalties.gradient_penalty` of the loss."""
  del key
  return penalties.gradient_penalty(lambda _, x: view.loss_fn(x, view.same_noise), None, view.inputs)


def jacobian_penalty(key: Key, view: NetworkView, *, num_samples: int = 1) -> Array:
  """`penalties.jacobian_penalty` of the log-probabilities, estimated by random projections."""
  return penalties.jacobian_penalty(
    lambda _, x: view.log_probs_same_noise(x), None, view.inputs, num_samples=num_samples, key=key
  )


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
