"""DropMax, and the baselines of its paper."""

from flax import linen as nn

from jaxreg import losses, models
from jaxreg._initializers import initializers
from jaxreg.train.methods.method import Method
from jaxreg.train.methods.softmax import on_logits
from jaxreg.typing import Array, Key


class AttentionHead(nn.Module):
  """Two affine layers, logits and gate: `logits` and `retain_logits`, each `[batch, classes]`."""

  num_classes: int
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    init = initializers(self.initializer)
    return {
      "logits": nn.Dense(self.num_classes, name="classifier", **init)(features),
      "retain_logits": nn.Dense(self.num_classes, name="prior", **init)(features),
    }


def predict_gated(*, logits: Array, retain_logits: Array) -> Array:
  """Computes the prediction of DropMax under the expected mask."""
  return losses.dropmax_log_probs(logits, retain_logits)


def predict_dropmax(
  key: Key, *, logits: Array, retain_logits: Array, num_samples: int = 0, **_: object
) -> Array:
  """Predicts under the expected mask, or by the mean over `num_samples` sampled masks if that is not 0."""
  if num_samples == 0:
    return losses.dropmax_log_probs(logits, retain_logits)
  return losses.dropmax_log_probs(logits, retain_logits, num_samples=num_samples, key=key)


def dropmax_diagnostics(
  key: Key, *, temperature: float, num_samples: int, logits: Array, **arguments: Array
) -> dict[str, Array]:
  """Computes `losses.dropmax_diagnostics` of the loss's arguments, without the weights of its terms."""
  names = ("retain_logits", "residual_logits", "labels", "posterior_logits")
  known = {name: arguments[name] for name in names if name in arguments}
  return losses.dropmax_diagnostics(key, logits, temperature=temperature, num_samples=num_samples, **known)


METHODS = {
  "random_dropmax": on_logits(losses.random_dropmax, "nll", draws=("loss",)),
  "deterministic_attention": Method(
    AttentionHead, losses.deterministic_attention, predict_gated, soft_labels=True
  ),
  "deterministic_dropmax": Method(
    AttentionHead,
    losses.deterministic_dropmax_terms,
    predict_gated,
    terms=("nll", "auxiliary"),
    soft_labels=True,
  ),
  "dropmax_qp": Method(
    AttentionHead,
    losses.dropmax_qp_terms,
    predict_dropmax,
    terms=("nll", "kl", "neg_entropy"),
    draws=("loss", "predict"),
  ),
  "dropmax": Method(
    models.DropMaxHead,
    losses.dropmax_terms,
    predict_dropmax,
    terms=("nll", "kl", "neg_entropy", "auxiliary"),
    draws=("loss", "predict"),
    diagnose=dropmax_diagnostics,
  ),
}
