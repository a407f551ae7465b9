"""Regularizers that look at the examples again, in one or more passes of the network beside the loss's pass.

Each is `(key, view, *, options) -> [batch]`, or `-> scalar` if the term is not a mean over examples. Terms
that need no labels count the examples without a label, too.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg import adversarial, augment, losses, penalties
from jaxreg.typing import Array, Key


@dataclasses.dataclass(frozen=True)
class View:
  """Everything that a term may ask of the network, at the parameters of the step.

  Attributes:
    inputs: `[batch, ...]`, floating, scaled.
    weights: `[batch]`, the weights of all examples, with a label or without.
    log_probs: `[batch, classes]`, from the pass that the loss sees.
    features: `[batch, ...]`, the input of the head in the same pass.
    noise: the key of the pass that the loss sees; None for a model with BatchNorm, because its training mode
      would mix the examples of the batch.
    loss_fn: `(inputs, noise) -> [batch]`, the method's loss; `noise=None` gives the loss in evaluation mode.
    log_probs_fn: `(inputs, noise) -> [batch, classes]`, likewise.
    teacher_fn: `inputs -> [batch, classes]`, log-probabilities under the averaged parameters, without noise
      and without gradient; None if the run averages no parameters.
    trained_fn: `(key, inputs) -> [batch, classes]`, log-probabilities of a trained run, without gradient; the
      key is for predictions that draw. None if no run is given.
    outputs: what the head returns in the loss's pass, by name, such as `logits` `[batch, classes]`.
  """

  inputs: Array
  weights: Array
  log_probs: Array
  features: Any
  noise: Key | None
  loss_fn: Callable[[Array, Key | None], Array]
  log_probs_fn: Callable[[Array, Key | None], Array]
  teacher_fn: Callable[[Array], Array] | None
  trained_fn: Callable[[Key, Array], Array] | None = None
  outputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def same_noise(self) -> Key | None:
    """The key of the noise in the loss's pass, cloned: its second use is intended."""
    return None if self.noise is None else jax.random.clone(self.noise)


def fgsm(key: Key, view: View, *, eps: float = 0.1, clip: tuple[float, ...] = ()) -> Array:
  """The loss at the inputs that `adversarial.fgsm` finds for the network without noise."""
  del key
  moved = adversarial.fgsm(lambda x: view.loss_fn(x, None), view.inputs, eps=eps, clip=_bounds(clip))
  return view.loss_fn(jax.lax.stop_gradient(moved), view.same_noise)


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
  """The loss at the inputs that `adversarial.pgd` finds for the network without noise."""
  options: Any = {"eps": eps, "step_size": step_size, "num_steps": num_steps, "norm": norm}
  moved = adversarial.pgd(key, lambda x: view.loss_fn(x, None), view.inputs, **options, clip=_bounds(clip))
  return view.loss_fn(jax.lax.stop_gradient(moved), view.same_noise)


def virtual_adversarial(key: Key, view: View, *, eps: float = 1.0, num_iters: int = 1) -> Array:
  """`adversarial.vat_loss`; all passes have the noise of the loss's pass."""
  log_probs_fn = lambda x: view.log_probs_fn(x, view.same_noise)
  return adversarial.vat_loss(key, log_probs_fn, view.inputs, eps=eps, num_iters=num_iters)


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
  """`adversarial.trades_loss`; all passes have the noise of the loss's pass."""
  log_probs_fn = lambda x: view.log_probs_fn(x, view.same_noise)
  options: Any = {"eps": eps, "step_size": step_size, "num_steps": num_steps, "norm": norm}
  return adversarial.trades_loss(key, log_probs_fn, view.inputs, **options, clip=_bounds(clip))


def r_drop(key: Key, view: View) -> Array:
  """`losses.r_drop` between the loss's pass and a pass under other noise."""
  return losses.r_drop(view.log_probs, view.log_probs_fn(view.inputs, key))


def pi_model(key: Key, view: View) -> Array:
  """`losses.consistency` between the loss's pass and a pass under other noise."""
  return losses.consistency(view.log_probs, view.log_probs_fn(view.inputs, key))


def mean_teacher(key: Key, view: View) -> Array:
  """`losses.consistency` between the prediction and the prediction of the averaged parameters."""
  del key
  if view.teacher_fn is None:
    raise ValueError("regularizers.mean_teacher needs a teacher; give average.name=ema")
  return losses.consistency(view.log_probs, view.teacher_fn(view.inputs))


def distillation(key: Key, view: View, *, temperature: float = 4.0) -> Array:
  """`losses.distillation` from the run in `teacher.workdir`, whose predictions have no noise."""
  if view.trained_fn is None:
    raise ValueError("regularizers.distillation needs a trained teacher; give teacher.workdir")
  return losses.distillation(view.log_probs, view.trained_fn(key, view.inputs), temperature=temperature)


def entropy(key: Key, view: View) -> Array:
  """`losses.entropy` of the prediction."""
  del key
  return losses.entropy(view.log_probs)


def z_loss(key: Key, view: View) -> Array:
  """`losses.z_loss` of the head's logits."""
  del key
  if "logits" not in view.outputs:
    raise ValueError(f"regularizers.z_loss needs a head that returns logits, got {', '.join(view.outputs)}")
  return losses.z_loss(view.outputs["logits"])


def reconstruction(key: Key, view: View, *, likelihood: str = "gaussian") -> Array:
  """`losses.reconstruction` of the clean inputs by the head's decoder, as in `method.name=autoencoder`."""
  del key
  if "reconstruction" not in view.outputs:
    raise ValueError("regularizers.reconstruction needs a head with a decoder; give method.name=autoencoder")
  kind: Any = likelihood
  return losses.reconstruction(view.outputs["reconstruction"], view.inputs, likelihood=kind)


def pseudo_label(key: Key, view: View, *, threshold: float = 0.95) -> Array:
  """`losses.pseudo_label` of the loss's pass; the target is predicted from the same inputs without noise."""
  del key
  return losses.pseudo_label(view.log_probs, view.log_probs_fn(view.inputs, None), threshold=threshold)


def fixmatch(
  key: Key,
  view: View,
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
  view: View,
  *,
  num_chains: int = 3,
  num_ops: int = 3,
  severity: float = 3.0,
  alpha: float = 1.0,
) -> Array:
  """`losses.jensen_shannon` of the loss's pass and of two views of its images by `augment.augmix`.

  The source's weight is 12. All passes have the noise of the loss's pass.
  """
  options: Any = {"num_chains": num_chains, "num_ops": num_ops, "severity": severity, "alpha": alpha}
  mixed = [augment.augmix(own, {"inputs": view.inputs}, **options) for own in jax.random.split(key)]
  others = [view.log_probs_fn(batch["inputs"], view.same_noise) for batch in mixed]
  return losses.jensen_shannon(jnp.stack([view.log_probs, *others], axis=-2))


def l1_activity(key: Key, view: View) -> Array:
  """`penalties.l1_activity` of the features."""
  del key
  return penalties.l1_activity(view.features)


def kl_sparsity(key: Key, view: View, *, target: float = 0.05) -> Array:
  """`penalties.kl_sparsity` of the features, summed over units; all features must lie between 0 and 1.

  A unit's mean is over the batch. Where `pmap` or `accumulate` divides the batch, it is over one part.
  """
  del key
  features = view.features.reshape(len(view.features), -1)
  return penalties.kl_sparsity(features, target=target, weights=view.weights.astype(features.dtype)).sum()


def gradient_penalty(key: Key, view: View) -> Array:
  """`penalties.gradient_penalty` of the loss."""
  del key
  return penalties.gradient_penalty(lambda _, x: view.loss_fn(x, view.same_noise), None, view.inputs)


def jacobian_penalty(key: Key, view: View, *, num_projections: int = 1) -> Array:
  """`penalties.jacobian_penalty` of the log-probabilities, estimated by random projections."""
  log_probs_fn = lambda _, x: view.log_probs_fn(x, view.same_noise)
  return penalties.jacobian_penalty(log_probs_fn, None, view.inputs, num_projections=num_projections, key=key)


TERMS: dict[str, Callable[..., Array]] = {
  "fgsm": fgsm,
  "pgd": pgd,
  "gradient_penalty": gradient_penalty,
  "virtual_adversarial": virtual_adversarial,
  "trades": trades,
  "r_drop": r_drop,
  "pi_model": pi_model,
  "mean_teacher": mean_teacher,
  "distillation": distillation,
  "entropy": entropy,
  "z_loss": z_loss,
  "reconstruction": reconstruction,
  "pseudo_label": pseudo_label,
  "fixmatch": fixmatch,
  "augmix": augmix,
  "l1_activity": l1_activity,
  "kl_sparsity": kl_sparsity,
  "jacobian_penalty": jacobian_penalty,
}
OF_LABELS = ("fgsm", "pgd", "gradient_penalty")


def needs_labels(term: Callable[..., Array]) -> bool:
  """Whether a term counts labelled examples alone.

  A term from outside this package does, unless its attribute `needs_labels` is False.
  """
  ours = {function: name in OF_LABELS for name, function in TERMS.items()}
  return getattr(term, "needs_labels", ours.get(term, True))


def _bounds(clip: tuple[float, ...]) -> tuple[float, float] | None:
  if not clip:
    return None
  if len(clip) != 2 or not clip[0] < clip[1]:
    raise ValueError(f"clip must be () or the least and the largest input, got {clip}")
  return clip[0], clip[1]
