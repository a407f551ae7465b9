"""Regularizers that look at the examples again, in one or more passes of the network beside the loss's pass.

Each is `(key, view, *, options) -> [batch]`, or `-> scalar` if the term is not a mean over examples. Terms
that need no labels count the examples without a label, too.
"""

import jax
import jax.numpy as jnp

from jaxreg import augment, losses, penalties
from jaxreg.train.lookup import Options
from jaxreg.train.step.network_view import NetworkView
from jaxreg.typing import Array, Key


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
