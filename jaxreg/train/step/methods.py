"""The methods that `method.name` can name: a head, a per-example loss on its outputs, a prediction rule.

Heads return a dict whose names are the arguments of the loss. A method needs a row here, a loss in `losses/`,
a config and a test. A method from outside is a `Method` or a loss in any module, named `module:NAME`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxreg import losses, models
from jaxreg.train.lookup import find, short, takes
from jaxreg.typing import Array, Key


@dataclasses.dataclass(frozen=True)
class Method:
  """A head, a loss and a prediction rule.

  Attributes:
    head: `(num_classes, **options)` to a Linen module, `features -> outputs`.
    loss: `(key, *, labels, **outputs, **options)` to per-example terms by name; the loss is their sum.
    predict: `(key, *, **outputs, **options)` to log-probabilities `[batch, classes]`; an option without a
      default takes the value of the loss's option.
    terms: the names of the loss's terms.
    diagnose: like `loss`, but it returns per-example quantities that are only logged.
    soft_labels: whether `loss` also takes probabilities `[batch, classes]` as labels.
  """

  head: Callable[..., Any]
  loss: Callable[..., dict[str, Array]]
  predict: Callable[..., Array]
  terms: tuple[str, ...] = ("nll",)
  diagnose: Callable[..., dict[str, Array]] | None = None
  soft_labels: bool = False


def _single(loss: Callable[..., Array], name: str) -> Callable[..., dict[str, Array]]:
  """A deterministic loss as the one term of an objective."""

  @functools.wraps(loss)
  def terms(key: Key, **arguments: Any) -> dict[str, Array]:
    del key
    return {name: loss(**arguments)}

  return terms


def _drawn(loss: Callable[..., Array], name: str) -> Callable[..., dict[str, Array]]:
  """A random loss as the one term of an objective."""

  @functools.wraps(loss)
  def terms(key: Key, **arguments: Any) -> dict[str, Array]:
    return {name: loss(key, **arguments)}

  return terms


def _keyless(loss_terms: Callable[..., dict[str, Array]]) -> Callable[..., dict[str, Array]]:
  """Deterministic terms as the terms of an objective: a function that ignores its key."""

  @functools.wraps(loss_terms)
  def terms(key: Key, **arguments: Any) -> dict[str, Array]:
    del key
    return loss_terms(**arguments)

  return terms


def _predict_softmax(key: Key, *, logits: Array) -> Array:
  del key
  return losses.softmax_log_probs(logits)


def _predict_dropmax(
  key: Key, *, logits: Array, retain_logits: Array, num_samples: int = 0, **_: Any
) -> Array:
  """The prediction under the expected mask, or the mean over `num_samples` sampled masks if it is not 0."""
  if num_samples == 0:
    return losses.dropmax_log_probs(logits, retain_logits)
  return losses.dropmax_monte_carlo_log_probs(key, logits, retain_logits, num_samples=num_samples)


def _predict_gated(key: Key, *, logits: Array, retain_logits: Array) -> Array:
  del key
  return losses.dropmax_log_probs(logits, retain_logits)


def _predict_sparsemax(key: Key, *, logits: Array) -> Array:
  del key
  return losses.sparsemax_log_probs(logits)


GROUPINGS = ("discriminative", "random", "fixed", "interleaved", "posterior", "rival")


def _group_softmax(
  key: Key,
  *,
  num_groups: int = 8,
  kind: str = "I",
  power: float | None = None,
  grouping: str = "discriminative",
  form: str = "auto",
  **arguments: Any,
) -> dict[str, Array]:
  """The term of `losses.group_softmax`; `grouping` names the rule, and the random rule gets the key."""
  if grouping not in GROUPINGS:
    raise ValueError(f"grouping must be one of {', '.join(GROUPINGS)}, got {grouping!r}")
  rule = getattr(losses, f"{grouping}_scores")
  if grouping == "random":
    rule = functools.partial(rule, key)
  options: Any = {"num_groups": num_groups, "kind": kind, "power": power, "form": form}
  return {"group_softmax": losses.group_softmax(**arguments, **options, grouping=rule)}


def _predict_group_softmax(
  key: Key, *, features: Array, kernel: Array, bias: Array, logit_scale: float = 1.0
) -> Array:
  del key
  # Products of bfloat16 numbers are exact in float32, so they are summed in float32.
  logits = jnp.matmul(features, kernel, preferred_element_type=jnp.float32) + bias[None, :].astype(
    jnp.float32
  )
  return losses.group_softmax_log_probs(logits, logit_scale=logit_scale)


def _logit_adjustment(
  key: Key, *, logits: Array, labels: Array, class_counts: tuple[float, ...] = (), strength: float = 1.0
) -> dict[str, Array]:
  """`losses.logit_adjustment` with the prior of the training set's class counts."""
  del key
  classes = logits.shape[-1]
  if len(class_counts) != classes or not all(
    isinstance(count, int | float) and count > 0 for count in class_counts
  ):
    raise ValueError(
      f"method.logit_adjustment.loss.class_counts must be {classes} numbers above 0, one per class, "
      f"got {class_counts}"
    )
  log_prior = jnp.log(jnp.asarray(class_counts, jnp.float32))
  return {"nll": losses.logit_adjustment(logits, labels, log_prior, strength=strength)}


def _predict_bi_tempered(key: Key, *, logits: Array, t2: float) -> Array:
  del key
  return losses.bi_tempered_log_probs(logits, t2=t2)


def _predict_cosine(key: Key, *, features: Array, kernel: Array, scale: float) -> Array:
  del key
  return losses.cosine_log_probs(features, kernel, scale=scale)


def _autoencoder(key: Key, *, logits: Array, reconstruction: Array, labels: Array) -> dict[str, Array]:
  """The classifier's loss; the decoder's, `regularizers.reconstruction`, needs no labels."""
  del key, reconstruction
  return {"nll": losses.softmax_cross_entropy(logits, labels)}


def _multitask(
  key: Key,
  *,
  logits: Array,
  task_logits: tuple[Array, ...],
  task_labels: tuple[Array, ...],
  log_vars: Array | None,
  labels: Array,
  weight: float = 1.0,
) -> dict[str, Array]:
  """`losses.multitask` of the classes and the coarser tasks, or with learned weights instead of `weight`."""
  del key
  if not jnp.issubdtype(labels.dtype, jnp.integer):
    raise TypeError(f"labels must be integers, got {labels.dtype}")
  each = {"nll": losses.softmax_cross_entropy(logits, labels)}
  for number, (task, of_class) in enumerate(zip(task_logits, task_labels, strict=True)):
    each[f"task{number}"] = losses.softmax_cross_entropy(task, of_class[labels])
  if log_vars is None:
    terms = losses.multitask_terms(each, {name: 1.0 if name == "nll" else weight for name in each})
  else:
    terms = losses.uncertainty_weighting_terms(each, dict(zip(each, log_vars, strict=True)))
  nll = terms.pop("nll")
  return {"nll": nll, "tasks": sum(terms.values(), start=jnp.zeros_like(nll))}


def _predict_classes(key: Key, *, logits: Array, **_: Any) -> Array:
  """The softmax of the classes; what else the head returns does not count."""
  del key
  return losses.softmax_log_probs(logits)


def of_logits(loss: Callable[..., Array], term: str, *, soft_labels: bool = False) -> Method:
  """The method for a loss of `(logits, labels, *, ...)`: a linear head, and softmax as its prediction rule.

  Args:
    loss: a per-example loss.
    term: the name of the loss among the metrics.
    soft_labels: whether the loss also takes probabilities as labels.
  """
  return Method(
    models.SoftmaxHead, _single(loss, term), _predict_softmax, terms=(term,), soft_labels=soft_labels
  )


METHODS = {
  "softmax": of_logits(losses.softmax_cross_entropy, "nll", soft_labels=True),
  "label_smoothing": of_logits(losses.label_smoothing, "label_smoothing", soft_labels=True),
  "focal": of_logits(losses.focal, "focal", soft_labels=True),
  "poly_loss": of_logits(losses.poly_loss, "poly_loss", soft_labels=True),
  "confidence_penalty": of_logits(losses.confidence_penalty, "confidence_penalty", soft_labels=True),
  "large_margin": of_logits(losses.large_margin, "large_margin"),
  "logit_adjustment": Method(models.SoftmaxHead, _logit_adjustment, _predict_softmax, soft_labels=True),
  "cosface": Method(
    models.CosineHead, _single(losses.cosface, "cosface"), _predict_cosine, terms=("cosface",)
  ),
  "arcface": Method(
    models.CosineHead, _single(losses.arcface, "arcface"), _predict_cosine, terms=("arcface",)
  ),
  "bi_tempered": Method(
    models.SoftmaxHead,
    _single(losses.bi_tempered, "bi_tempered"),
    _predict_bi_tempered,
    terms=("bi_tempered",),
    soft_labels=True,
  ),
  "sparsemax": Method(
    models.SoftmaxHead,
    _single(losses.sparsemax, "sparsemax"),
    _predict_sparsemax,
    terms=("sparsemax",),
    soft_labels=True,
  ),
  "group_softmax": Method(
    models.GroupSoftmaxHead, _group_softmax, _predict_group_softmax, terms=("group_softmax",)
  ),
  "sampled_softmax": Method(models.SoftmaxHead, _drawn(losses.sampled_softmax, "nll"), _predict_softmax),
  "random_dropmax": Method(models.SoftmaxHead, _drawn(losses.random_dropmax, "nll"), _predict_softmax),
  "deterministic_attention": Method(
    models.AttentionHead, _single(losses.deterministic_attention, "nll"), _predict_gated, soft_labels=True
  ),
  "deterministic_dropmax": Method(
    models.AttentionHead,
    _keyless(losses.deterministic_dropmax_terms),
    _predict_gated,
    terms=("nll", "auxiliary"),
    soft_labels=True,
  ),
  "autoencoder": Method(models.DecodingHead, _autoencoder, _predict_classes, soft_labels=True),
  "multitask": Method(models.CoarseTasksHead, _multitask, _predict_classes, terms=("nll", "tasks")),
  "dropmax_qp": Method(
    models.AttentionHead, losses.dropmax_qp_terms, _predict_dropmax, terms=("nll", "kl", "neg_entropy")
  ),
  "dropmax": Method(
    models.DropMaxHead,
    losses.dropmax_terms,
    _predict_dropmax,
    terms=("nll", "kl", "neg_entropy", "auxiliary"),
    diagnose=losses.dropmax_diagnostics,
  ),
}


def find_method(name: str) -> Method:
  """The method that `method.name` names; it may also name a loss of `(logits, labels, ...)`.

  Raises:
    RunError: if there is none.
  """
  kind = "a jaxreg.train.Method, or a loss of (logits, labels, ...)"
  fits = lambda found: isinstance(found, Method) or takes(found, "logits", "labels")
  found = find(name, METHODS, "method.name", kind, fits)
  return found if isinstance(found, Method) else of_logits(found, short(name))
