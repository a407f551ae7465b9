# pyright: reportUnknownMemberType=false
"""A method: a head, a per-example loss on its outputs, and a prediction rule.

Heads return a dict whose names are the arguments of the loss. A method needs a loss in `losses/`, a row in
`REGISTRY`, a config and a test.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike

from jaxreg import losses, models
from jaxreg.losses._group_softmax_scores import GROUPINGS
from jaxreg.losses._multitask import multitask_terms, uncertainty_weighting_terms
from jaxreg.models._method_heads import regression_head
from jaxreg.train.lookup import Options
from jaxreg.typing import Array, Key

Result = TypeVar("Result")
LossTerms = Callable[..., dict[str, Array]]
Predicts = Literal["classes", "yes or no", "means", "moments", "quantiles"]
NUMBERS: tuple[Predicts, ...] = ("means", "moments", "quantiles")


@dataclasses.dataclass(frozen=True)
class Method:
  """A head, a loss and a prediction rule.

  Attributes:
    head: `(**options)` to a Linen module, `features -> outputs`; the options have what
      `of_data` names.
    loss: `(key, *, labels, **outputs, **options)` to per-example terms by name; the loss is their sum.
    predict: `(key, *, **outputs, **options)` to what `predicts` says.
    terms: the names of the loss's terms.
    diagnose: called as `loss`, with all its options; returns per-example quantities that are only logged.
    soft_labels: whether `loss` also takes probabilities `[batch, classes]` as labels.
    shared: the options of the loss that `predict` takes, too, and `head` if it has them.
    predicts: what `predict` returns: log-probabilities of `classes` `[batch, classes]`, or of `yes or no` for
      each label. Of labels that are numbers: `means` or `moments`, both `[batch, ..., 2]` of a mean and a
      variance (0 for `means`), or `quantiles` `[batch, ..., levels]` for the option `levels`.
  """

  head: Callable[..., nn.Module]
  loss: LossTerms
  predict: Callable[..., Array]
  terms: tuple[str, ...] = ("nll",)
  diagnose: LossTerms | None = None
  soft_labels: bool = False
  shared: tuple[str, ...] = ()
  predicts: Predicts = "classes"

  @property
  def of_data(self) -> tuple[str, ...]:
    """What the data tell the head."""
    if self.predicts == "classes":
      return ("num_classes",)
    return ("num_classes", "label_shape") if self.predicts == "yes or no" else ("label_shape",)


def of_logits(loss: Callable[..., Array], term: str, *, soft_labels: bool = False) -> Method:
  """The method for a loss of `(logits, labels, *, ...)`: a linear head, and softmax as the rule."""
  return Method(
    models.SoftmaxHead, single(loss, term), predict_softmax, terms=(term,), soft_labels=soft_labels
  )


def of_outputs(loss: Callable[..., Array], term: str) -> Method:
  """The method for a loss of `(outputs, targets, *, ...)`: a linear head whose outputs are the prediction."""
  parts = (regression_head, of_targets(loss, term), predict_means)
  return Method(*parts, terms=(term,), predicts="means")


def keyless(function: Callable[..., Result]) -> Callable[..., Result]:
  """A deterministic function of outputs, called as a random one."""

  @functools.wraps(function)
  def ignoring_key(key: Key, **arguments: ArrayLike) -> Result:
    del key
    return function(**arguments)

  return ignoring_key


def drawn(loss: Callable[..., Array], name: str) -> LossTerms:
  """A random loss as the one term of an objective."""

  @functools.wraps(loss)
  def terms(key: Key, **arguments: ArrayLike) -> dict[str, Array]:
    return {name: loss(key, **arguments)}

  return terms


def single(loss: Callable[..., Array], name: str) -> LossTerms:
  """A deterministic loss as the one term of an objective."""
  return drawn(keyless(loss), name)


def binary(loss: Callable[..., Array], name: str) -> LossTerms:
  """A loss of yes-or-no labels as the one term of an objective; mixed labels have shares of no and yes."""

  @functools.wraps(loss)
  def terms(key: Key, *, labels: Array, **arguments: ArrayLike) -> dict[str, Array]:
    del key
    yes = labels[..., 1] if jnp.issubdtype(labels.dtype, jnp.floating) else labels
    return {name: loss(labels=yes, **arguments)}

  return terms


def of_targets(loss: Callable[..., Array], name: str) -> LossTerms:
  """A loss of `(outputs, targets, ...)` as the one term of an objective."""

  @functools.wraps(loss)
  def terms(key: Key, *, outputs: Array, labels: Array, **arguments: ArrayLike) -> dict[str, Array]:
    del key
    return {name: loss(outputs, targets=labels, **arguments)}

  return terms


def predict_softmax(key: Key, *, logits: Array, **_: object) -> Array:
  """The softmax of the classes; what else the head returns does not count."""
  del key
  return losses.softmax_log_probs(logits)


def predict_binary(key: Key, *, logits: Array) -> Array:
  """Of each label, the log-probabilities of no and yes: `[batch, ..., 2]`."""
  del key
  wide = _wide(logits)
  return jax.nn.log_sigmoid(jnp.stack([-wide, wide], axis=-1))


def predict_means(key: Key, *, outputs: Array) -> Array:
  """The outputs and their variances, which are 0: `[batch, ..., 2]`."""
  del key
  wide = _wide(outputs)
  return jnp.stack([wide, jnp.zeros_like(wide)], axis=-1)


def predict_gaussian(key: Key, *, outputs: Array, log_vars: Array) -> Array:
  """The mean and the variance, `[batch, ..., 2]`."""
  del key
  return jnp.stack([_wide(outputs), jnp.exp(_wide(log_vars))], axis=-1)


def student_t_nll(
  key: Key, *, outputs: Array, log_vars: Array, labels: Array, df: float = 4.0
) -> dict[str, Array]:
  """`losses.student_t_nll` as the one term of an objective; `log_vars` is the variance of the t."""
  del key
  if not df > 2:
    raise ValueError(f"df must be above 2, where the variance is finite, got {df}")
  log_scales = (_wide(log_vars) + math.log((df - 2) / df)) / 2
  return {"student_t_nll": losses.student_t_nll(outputs, log_scales, labels, df=df)}


def pinball(
  key: Key, *, outputs: Array, labels: Array, levels: tuple[float, ...] = (0.05, 0.5, 0.95)
) -> dict[str, Array]:
  """`losses.pinball` as the one term of an objective."""
  del key
  if len(levels) < 2 or not all(0 < low < high < 1 for low, high in itertools.pairwise(levels)):
    raise ValueError(f"levels must be at least two numbers in (0, 1) that rise, got {levels}")
  return {"pinball": losses.pinball(outputs, labels, levels=jnp.asarray(levels, jnp.float32))}


def predict_quantiles(key: Key, *, outputs: Array, levels: tuple[float, ...]) -> Array:
  """The quantiles in rising order, `[batch, ..., levels]`, because single ones may cross."""
  del key, levels
  return jnp.sort(_wide(outputs), axis=-1)


def _wide(x: Array) -> Array:
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def predict_gated(key: Key, *, logits: Array, retain_logits: Array) -> Array:
  """The prediction of DropMax under the expected mask."""
  del key
  return losses.dropmax_log_probs(logits, retain_logits)


def predict_dropmax(
  key: Key, *, logits: Array, retain_logits: Array, num_samples: int = 0, **_: object
) -> Array:
  """The prediction under the expected mask, or the mean over `num_samples` sampled masks if it is not 0."""
  if num_samples == 0:
    return losses.dropmax_log_probs(logits, retain_logits)
  return losses.dropmax_log_probs(logits, retain_logits, num_samples=num_samples, key=key)


def dropmax_diagnostics(
  key: Key, *, temperature: Array, num_samples: int, logits: Array, **arguments: Array
) -> dict[str, Array]:
  """`losses.dropmax_diagnostics` of the loss's arguments and options, without the weights of its terms."""
  names = ("retain_logits", "residual_logits", "labels", "posterior_logits")
  given = {name: arguments[name] for name in names if name in arguments}
  return losses.dropmax_diagnostics(key, logits, temperature=temperature, num_samples=num_samples, **given)


def predict_sparsemax(key: Key, *, logits: Array) -> Array:
  del key
  return losses.sparsemax_log_probs(logits)


def group_softmax(
  key: Key,
  *,
  num_groups: int = 8,
  kind: str = "I",
  power: float | None = None,
  grouping: str = "discriminative",
  form: str = "auto",
  **arguments: Array,
) -> dict[str, Array]:
  """The term of `losses.group_softmax`; `grouping` names the rule, and the random rule gets the key."""
  if grouping not in GROUPINGS:
    raise ValueError(f"grouping must be one of {', '.join(GROUPINGS)}, got {grouping!r}")
  rule = GROUPINGS[grouping]
  if grouping == "random":
    rule = functools.partial(rule, key)
  options: Options = {"num_groups": num_groups, "kind": kind, "power": power, "form": form}
  return {"group_softmax": losses.group_softmax(**arguments, **options, grouping=rule)}


def predict_group_softmax(
  key: Key, *, features: Array, kernel: Array, bias: Array, logit_scale: float = 1.0
) -> Array:
  del key
  # Products of bfloat16 numbers are exact in float32, so they are summed in float32.
  logits = jnp.matmul(features, kernel, preferred_element_type=jnp.float32) + bias[None, :].astype(
    jnp.float32
  )
  return losses.softmax_log_probs(logits, logit_scale=logit_scale)


def _above_zero(number: object) -> bool:
  return isinstance(number, int | float) and number > 0


def logit_adjustment(
  key: Key, *, logits: Array, labels: Array, class_counts: tuple[float, ...] = (), weight: float = 1.0
) -> dict[str, Array]:
  """`losses.logit_adjustment` with the prior of the training set's class counts."""
  del key
  classes = logits.shape[-1]
  if len(class_counts) != classes or not all(_above_zero(count) for count in class_counts):
    raise ValueError(f"class_counts must be {classes} numbers above 0, one per class, got {class_counts}")
  log_prior = jnp.log(jnp.asarray(class_counts, jnp.float32))
  return {"nll": losses.logit_adjustment(logits, labels, log_prior, weight=weight)}


def autoencoder(key: Key, *, logits: Array, reconstruction: Array, labels: Array) -> dict[str, Array]:
  """The classifier's loss; the decoder's, `regularizers.reconstruction`, needs no labels."""
  del key, reconstruction
  return {"nll": losses.softmax_cross_entropy(logits, labels)}


def multitask(
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
    terms = multitask_terms(each, weights={name: 1.0 if name == "nll" else weight for name in each})
  else:
    terms = uncertainty_weighting_terms(each, dict(zip(each, log_vars, strict=True)))
  nll = terms.pop("nll")
  return {"nll": nll, "tasks": sum(terms.values(), start=jnp.zeros_like(nll))}
