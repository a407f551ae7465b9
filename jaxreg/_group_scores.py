"""Rules that group the features for the group softmax: a score per feature, to be sorted and cut.

Every rule is `(features, kernel, bias, labels, *, num_groups) -> scores [..., features]`, the arguments of
the loss, in at least float32. `random_scores` takes a key first: `functools.partial(random_scores, key)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_floating, check_key, check_labels, check_wide
from jaxreg._errors import ArgumentError, ArgumentTypeError
from jaxreg._labels import is_target_of
from jaxreg._sharding import drawn_like, partitioned, placed_like, sharding_like
from jaxreg.typing import Array, Key


def discriminative_scores(
  features: ArrayLike, kernel: ArrayLike, bias: ArrayLike | None, labels: ArrayLike, *, num_groups: int = 2
) -> Array:
  r"""Scores each feature's evidence for the label against the mean of the other classes: the paper's rule.

  .. math:: \lambda_j = z_{jy} - \frac{1}{C - 1} \sum_{c \ne y} z_{jc}, \qquad z_{jc} = x_j W_{jc}

  The cost is O(features) per example plus one mean over the kernel. The bias, spread over the features,
  would add the same number to every score. For two classes no other groups of these sizes have a larger loss.
  For more classes, sorting and cutting maximises a lower bound of the loss (Kobayashi, supplement, Eq. A.14);
  `papers/group_softmax` measures the gap on a trained head.
  """
  del num_groups
  features, kernel, bias, labels = _checked(features, kernel, bias, labels)
  others = max(kernel.shape[1] - 1, 1)
  target = _class_column(kernel, labels, features)
  every = jnp.broadcast_to(kernel.sum(axis=1), target.shape)
  return features * (target - (every - target) / others)


def posterior_scores(
  features: ArrayLike, kernel: ArrayLike, bias: ArrayLike | None, labels: ArrayLike, *, num_groups: int = 2
) -> Array:
  r"""Scores like `discriminative_scores`, but weights the other classes by their softmax probabilities.

  .. math:: \lambda_j = z_{jy} - \sum_{c \ne y} \pi_c z_{jc}, \qquad \pi = \mathrm{softmax}(\bar z_{c \ne y})

  The log-sum-exp of the other classes is at least `sum_c pi_c z_c + H(pi)` for any weights. Uniform weights
  give the paper's rule; these weights give the tangent at the whole logits. This costs two more matrix
  products. The rule is a control of our own.
  """
  del num_groups
  features, kernel, bias, labels = _checked(features, kernel, bias, labels)
  weights = jax.nn.softmax(_other_logits(features, kernel, bias, labels))
  return features * (_class_column(kernel, labels, features) - weights @ kernel.T)


def rival_scores(
  features: ArrayLike, kernel: ArrayLike, bias: ArrayLike | None, labels: ArrayLike, *, num_groups: int = 2
) -> Array:
  r"""Scores each feature's evidence for the label against the likeliest other class.

  .. math:: \lambda_j = z_{jy} - z_{jr}, \qquad r = \operatorname{argmax}_{c \ne y} \bar z_c
  """
  del num_groups
  features, kernel, bias, labels = _checked(features, kernel, bias, labels)
  rival = _other_logits(features, kernel, bias, labels).argmax(axis=-1)
  return features * (_class_column(kernel, labels, features) - _class_column(kernel, rival, features))


def interleaved_scores(
  features: ArrayLike, kernel: ArrayLike, bias: ArrayLike | None, labels: ArrayLike, *, num_groups: int = 2
) -> Array:
  """Deals the discriminative ranks out like cards, so that every group gets features of every kind.

  This is the opposite of sorting and cutting the same scores: a control for `discriminative_scores`.
  """
  check_count(num_groups, "num_groups")
  scores = jax.lax.stop_gradient(discriminative_scores(features, kernel, bias, labels))
  rank = partitioned(lambda scores: jnp.argsort(jnp.argsort(scores, axis=-1), axis=-1), scores)
  # Counts from the top, so that the last groups are the larger ones, as in `feature_groups`.
  return ((rank - scores.shape[-1]) % num_groups).astype(scores.dtype)


def random_scores(
  key: Key,
  features: ArrayLike,
  kernel: ArrayLike,
  bias: ArrayLike | None,
  labels: ArrayLike,
  *,
  num_groups: int = 2,
) -> Array:
  """Samples uniform scores for each example and each key: a control for `discriminative_scores`."""
  del num_groups
  features, *_ = _checked(features, kernel, bias, labels)
  drawn = drawn_like(features, jax.random.uniform, check_key(key), features.shape, dtype=jnp.float32)
  return drawn.astype(features.dtype)


def fixed_scores(
  features: ArrayLike, kernel: ArrayLike, bias: ArrayLike | None, labels: ArrayLike, *, num_groups: int = 2
) -> Array:
  """Scores the features by their position, so that all examples have the same groups: a control."""
  del num_groups
  features, *_ = _checked(features, kernel, bias, labels)
  return _position(features)


GROUPINGS: dict[str, Callable[..., Array]] = {
  "discriminative": discriminative_scores,
  "random": random_scores,
  "fixed": fixed_scores,
  "interleaved": interleaved_scores,
  "posterior": posterior_scores,
  "rival": rival_scores,
}


def feature_groups(scores: ArrayLike, *, num_groups: int | Sequence[int]) -> Array:
  r"""Sorts the scores of each example, cuts them into groups and returns each feature's group number.

  .. math:: \mathcal G^i = \{j \mid \tau_{i-1} < \lambda_j \le \tau_i\}, \qquad |\mathcal G^i| = D / G

  The groups are exact in float32 and in float64, for any dtype of the network. Position breaks ties, and a
  score below the smallest normal number counts as 0. If the number of groups does not divide the number of
  features, the last groups, with the largest scores, have one more (Kobayashi, supplement, Eq. A.13).
  """
  return groups_and_order(scores, num_groups)[0]


def groups_and_order(scores: ArrayLike, num_groups: int | Sequence[int]) -> tuple[Array, Array]:
  """Returns `feature_groups`, and the positions `[..., features]` of the features in group order."""
  scores = jax.lax.stop_gradient(check_wide(scores, "scores"))
  sizes = group_sizes(scores.shape[-1], num_groups)
  number = np.repeat(np.arange(len(sizes), dtype=np.min_scalar_type(len(sizes) - 1)), sizes)

  def sort_and_cut(values: Array) -> tuple[Array, Array]:
    order = _sorted_positions(values)

    def put(order):
      return (
        jnp.zeros(len(number), number.dtype)
        .at[order]
        .set(number, unique_indices=True, mode="promise_in_bounds")
      )

    flat = order.reshape(-1, order.shape[-1])
    return jax.vmap(put)(flat).reshape(order.shape), order

  return partitioned(sort_and_cut, _order_preserving(scores), kept=(slice(None), slice(None)))


def group_sizes(num_features: int, num_groups: int | Sequence[int]) -> tuple[int, ...]:
  """Checks `num_groups` and returns the sizes of the groups."""
  if isinstance(num_groups, Sequence):
    sizes = tuple(num_groups)
    if not all(isinstance(size, int | np.integer) for size in sizes):
      raise ArgumentTypeError("num_groups", f"must be an integer or integers, got {num_groups}")
    if not sizes or min(sizes) < 0 or sum(sizes) != num_features:
      raise ArgumentError(
        "num_groups", f"must be group sizes that add up to {num_features} features, got {num_groups}"
      )
    return sizes
  check_count(num_groups, "num_groups")
  if num_groups > num_features:
    raise ArgumentError(
      "num_groups", f"must be at most the number of features, {num_features}, got {num_groups}"
    )
  size, larger = divmod(num_features, num_groups)
  return (size,) * (num_groups - larger) + (size + 1,) * larger


def _checked(
  features: ArrayLike, kernel: ArrayLike, bias: ArrayLike | None, labels: ArrayLike
) -> tuple[Array, ...]:
  features, kernel, bias, labels = check_arguments(features, kernel, bias, labels)
  dtype = jnp.promote_types(jnp.promote_types(features.dtype, kernel.dtype), jnp.float32)
  return *(x.astype(dtype) for x in (features, kernel, bias)), labels


def check_arguments(
  features: ArrayLike, kernel: ArrayLike, bias: ArrayLike | None, labels: ArrayLike
) -> tuple[Array, Array, Array, Array]:
  """Checks the four arrays and returns them, with zeros for a missing bias."""
  features = check_floating(features, "features")
  kernel = check_floating(kernel, "kernel")
  if features.ndim == 0 or kernel.ndim != 2 or kernel.shape[0] != features.shape[-1]:
    raise ValueError(
      "kernel must have shape [features, classes] for features [..., features], "
      f"got kernel {kernel.shape} for features {features.shape}"
    )
  bias = jnp.zeros(kernel.shape[1:], kernel.dtype) if bias is None else bias
  bias = check_floating(bias, "bias", shape=kernel.shape[1:])
  return features, kernel, bias, check_labels(labels, features, "features", num_classes=kernel.shape[1])


def _class_column(kernel: Array, labels: Array, features: Array) -> Array:
  """Returns each label's column of the kernel, `[..., features]`, split over devices like the features."""
  return kernel.T.at[labels].get(out_sharding=sharding_like(features))


def _other_logits(features: Array, kernel: Array, bias: Array, labels: Array) -> Array:
  logits = features @ kernel + jnp.expand_dims(bias, tuple(range(features.ndim - 1)))
  return jnp.where(is_target_of(labels, logits), jnp.finfo(logits.dtype).min / 2, logits)


def _order_preserving(scores: Array) -> Array:
  """Maps floats to integers of the same order: the bits, with all but the sign flipped in negative numbers.

  Zeros of both signs and denormal floats are 0.
  """
  dtype = jnp.int64 if scores.dtype == jnp.float64 else jnp.int32
  bits = jax.lax.bitcast_convert_type(scores, dtype)
  bits = jnp.where(bits < 0, bits ^ jnp.iinfo(dtype).max, bits)
  return jnp.where(jnp.abs(scores) < jnp.finfo(scores.dtype).tiny, 0, bits)


def _sorted_positions(values: Array) -> Array:
  """Returns the positions of the integers in ascending order; position breaks ties."""
  position = _position(values.astype(jnp.int32))
  if values.dtype == jnp.int64 or jax.default_backend() != "cpu":
    return jax.lax.sort((values, position), num_keys=1)[1]
  # One integer of both: a CPU sorts it in a fifth of the time of a pair, which calls a comparison.
  with jax.enable_x64(True):
    bits = max(values.shape[-1] - 1, 1).bit_length()
    packed = (values.astype(jnp.int64) << bits) | position.astype(jnp.int64)
    return (jnp.sort(packed, axis=-1) & (2**bits - 1)).astype(jnp.int32)


def _position(like: Array) -> Array:
  return placed_like(jax.lax.broadcasted_iota(like.dtype, like.shape, like.ndim - 1), like)
