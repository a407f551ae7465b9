"""Group softmax: the sum of a softmax loss over groups of features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_option
from jaxreg._group_scores import (
  check_arguments,
  discriminative_scores,
  group_sizes,
  groups_and_order,
)
from jaxreg._sharding import partitioned
from jaxreg._where import only_where
from jaxreg.losses import _group_softmax_forms as forms
from jaxreg.typing import Array

Form = Literal["auto", "dense", "scan", "gather"]


@only_where(shared=("kernel", "bias"))
def group_softmax(
  features: ArrayLike,
  kernel: ArrayLike,
  bias: ArrayLike | None,
  labels: ArrayLike,
  *,
  num_groups: int | Sequence[int] = 8,
  kind: Literal["I", "II"] = "I",
  power: float | None = None,
  grouping: Callable[..., Array] = discriminative_scores,
  form: Form = "auto",
  with_logits: bool = False,
  where: ArrayLike | None = None,
) -> Array | Any:
  r"""Computes the group softmax loss: each group of features must predict the label on its own.

  .. math::
    \ell_a = \frac1a \sum_{i=1}^G \Bigl[\log \sum_c e^{a \bar z_c^i} - a \bar z_y^i\Bigr], \qquad
    \bar z_c^i = \sum_{j \in \mathcal G^i} x_j W_{jc} + \frac{|\mathcal G^i|}{D} b_c

  `kind` I has `a = G`, II has `a = 1`. Both are upper bounds of the softmax loss; II is the larger. Scores
  assign the features to groups, for each example: they are sorted and cut into groups. The default is the
  paper's rule: each feature's evidence for the label against the mean of the other classes. The bias
  is spread over the features, so that the groups' logits add up to the logits of the whole head. The paper
  has no bias.

  The paper advises II below about 500 000 examples and few classes, I above. Its best number of groups
  is not confirmed, so the default is our choice. Predict with the whole head, `features @ kernel + bias`, and
  `softmax_log_probs`. The loss jumps where two features change places between groups: to check gradients or
  search along a line, freeze the grouping.

  `form` selects the computation. `scan`: one masked matrix product per group. `gather`: sums of kernel rows,
  with the same arithmetic for any `G`; only the number of softmaxes grows. Both have a custom gradient, and
  neither supports forward mode. `scan` keeps only the groups and recomputes the logits; `gather` keeps
  `batch * G * classes` residuals; above 2^24 residuals (64 MiB) it recomputes them. `dense`:
  all groups at once by plain autodiff. `auto`: on a CPU `gather` from 16 groups on, if a group has at
  least 4 features. Otherwise `dense` if its residuals, `batch * G * (features + classes)` numbers, are at
  most 2^23 (32 MiB in float32). Otherwise `gather` for 8 groups and 256 classes or more on a CPU, else
  `scan`.

  Args:
    features: `x`, `[..., features]`, floating.
    kernel: `W`, `[features, classes]`, floating.
    bias: `b`, `[classes]`, floating; None for a head without one.
    labels: `y`, `[...]`, integer; soft labels are refused: the groups belong to one class.
    num_groups: `G`, or the sizes of the groups, starting with the group of the smallest scores; static. If
      `G` does not divide the features, the last groups have one more.
    kind: `I` or `II`.
    power: `a`, in place of the kind's; from 1 to `G` the loss falls and stays an upper bound.
    grouping: `(features, kernel, bias, labels, *, num_groups) -> scores [..., features]`.
    form: `auto`, `dense`, `scan` or `gather`.
    with_logits: whether to return `(loss, logits)`.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in nats, float32 or wider. With `with_logits` also, at no extra cost, the logits of the whole
    head for the accuracy, `[..., classes]`, without gradient and 0 where `where` is false.

  Example:
    >>> x, kernel, bias = jnp.ones((2, 8)), jnp.zeros((8, 10)), jnp.zeros(10)
    >>> group_softmax(x, kernel, bias, jnp.array([3, 5]), num_groups=4, kind="II")  # 4 log 10
    Array([9.2103405, 9.2103405], dtype=float32)

  References:
    Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021, supplement, Eq. A.2 and A.13.
  """
  features, kernel, bias, labels = check_arguments(features, kernel, bias, labels)
  dtype = jnp.promote_types(features.dtype, kernel.dtype)
  features, kernel = features.astype(dtype), kernel.astype(dtype)
  sizes = group_sizes(features.shape[-1], num_groups)
  power = _power(kind, power, len(sizes))
  # Group numbers carry no gradient, so the scores need none.
  fixed = jax.lax.stop_gradient((features, kernel, bias))
  scores = grouping(*fixed, labels, num_groups=len(sizes))
  compute = _form(form, labels.size, len(sizes), *kernel.shape)

  def loss_and_logits(labels: Array, features: Array, kernel: Array, bias: Array, scores: Array):
    groups, order = groups_and_order(scores, sizes)

    def flat(x):
      return x.reshape(labels.size, *x.shape[labels.ndim :])

    loss, logits = compute(
      flat(features), kernel, bias, flat(labels), flat(groups), flat(order), sizes, power
    )

    def shaped(x):
      return x.reshape(*labels.shape, *x.shape[1:])

    return shaped(loss), shaped(jax.lax.stop_gradient(logits))

  loss, logits = partitioned(loss_and_logits, labels, features, kernel, bias, scores)
  return (loss, logits) if with_logits else loss


def _power(kind: str, power: float | None, num_groups: int) -> float:
  check_choice(kind, "kind", ("I", "II"))
  if power is None:
    return float(num_groups if kind == "I" else 1)
  check_option(power, "power", (), low=0, open_low=True)
  return power


def _form(
  form: str, batch: int, num_groups: int, num_features: int, num_classes: int
) -> Callable[..., tuple]:
  check_choice(form, "form", ("auto", "dense", "scan", "gather"))
  if form == "auto":  # benchmarks/group_softmax.py has the times
    fits = batch * num_groups * (num_features + num_classes) <= 2**23
    many = num_groups >= 16 or (num_groups >= 8 and num_classes >= 256 and not fits)
    if many and num_features >= 4 * num_groups and jax.default_backend() == "cpu":
      form = "gather"
    else:
      form = "dense" if fits else "scan"
  return getattr(forms, form)
