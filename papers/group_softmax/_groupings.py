"""The group softmax over all groupings: how adversarial a rule is, and the rank of its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_key, check_range, check_wide
from jaxreg.typing import Array, Key

MAX_PARTITIONS = 10**6


def equal_partitions(num_features: int, num_groups: int) -> np.ndarray:
  """Enumerates all ways to split features into unnamed groups of equal size.

  There are `D! / ((D / G)!^G G!)` ways: 5775 for 12 features and 3 groups.

  Args:
    num_features: `D`.
    num_groups: `G`, which must divide `D`.

  Returns:
    `[partitions, D]`, the number of each feature's group; groups are numbered by their first feature.

  Raises:
    TypeError: if a number is not an integer.
    ValueError: if `G` does not divide `D`, or there are more than a million ways.

  Example:
    >>> equal_partitions(4, 2)
    array([[0, 0, 1, 1],
           [0, 1, 0, 1],
           [0, 1, 1, 0]])

  References:
    Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021, supplement, Eq. A.20.
  """
  check_count(num_features, "num_features")
  check_count(num_groups, "num_groups")
  if num_features % num_groups:
    raise ValueError(f"num_groups must divide the number of features, {num_features}, got {num_groups}")
  size = num_features // num_groups
  number = math.factorial(num_features) // (math.factorial(size) ** num_groups * math.factorial(num_groups))
  if number > MAX_PARTITIONS:
    raise ValueError(
      f"num_features must give at most {MAX_PARTITIONS} partitions, got {num_features}, which gives {number}"
    )
  partial = [((), (0,) * num_groups)]
  for _ in range(num_features):
    longer = []
    for groups, sizes in partial:
      used = len(set(groups))
      for group in range(min(used + 1, num_groups)):
        if sizes[group] < size:
          longer.append(((*groups, group), (*sizes[:group], sizes[group] + 1, *sizes[group + 1 :])))
    partial = longer
  return np.asarray([groups for groups, _ in partial])


def grouping_losses(
  features: ArrayLike,
  kernel: ArrayLike,
  bias: ArrayLike,
  label: ArrayLike,
  groups: ArrayLike,
  *,
  num_groups: int,
  power: float,
) -> Array:
  r"""Computes the group softmax loss of one example under many groupings, from the ingredient logits.

  .. math:: \ell_a = \frac1a \sum_i \Bigl[\log \sum_c e^{a \bar z_c^i} - a \bar z_y^i\Bigr], \qquad
    \bar z_c^i = \sum_{j \in \mathcal G^i} \Bigl(x_j W_{jc} + \frac{b_c}{D}\Bigr)

  Args:
    features: `x`, `[D]`, floating.
    kernel: `W`, `[D, classes]`, floating.
    bias: `b`, `[classes]`, floating.
    label: `y`.
    groups: `[groupings, D]`, integers in `[0, G)`; any partition, possibly with empty groups.
    num_groups: `G`; static.
    power: `a`: `G` for type I, 1 for type II.

  Returns:
    `[groupings]`, in nats, in at least float32.

  Raises:
    TypeError: if an array is not floating.
    ValueError: if the shapes do not fit or `power` is not above 0.

  Example:
    >>> losses = grouping_losses(
    ...   jnp.ones(4), jnp.zeros((4, 10)), jnp.zeros(10), 3, equal_partitions(4, 2), num_groups=2, power=1
    ... )
    >>> losses  # 2 log 10
    Array([4.6051702, 4.6051702, 4.6051702], dtype=float32)

  References:
    Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021, supplement, Eq. A.2 and A.15.
  """
  features = check_wide(features, "features")
  kernel = check_wide(kernel, "kernel")
  if features.ndim != 1 or kernel.ndim != 2 or kernel.shape[0] != features.shape[0]:
    raise ValueError(f"kernel must be [features, classes], got {kernel.shape} for {features.shape}")
  bias = check_wide(bias, "bias", shape=kernel.shape[1:])
  check_range(power, "power", low=0, open_low=True)
  ingredients = features[:, None] * kernel + bias[None] / len(features)
  groups = jnp.asarray(groups)
  if groups.ndim != 2 or groups.shape[1] != len(features):
    raise ValueError(f"groups must be [groupings, {len(features)}], got {groups.shape}")
  member = jax.nn.one_hot(groups, num_groups, axis=1, dtype=ingredients.dtype)
  logits = power * jnp.einsum("pgd,dc->pgc", member, ingredients)
  return (jax.nn.logsumexp(logits, axis=-1) - logits[..., label]).sum(axis=-1) / power


def group_relaxation(scores: ArrayLike, groups: ArrayLike, *, num_groups: int) -> Array:
  r"""Computes the objective that sorting and cutting maximises: type II with a mean for a log-sum-exp.

  .. math::
    \sum_i \log\bigl(1 + e^{-\bar\lambda^i}\bigr), \qquad
    \bar\lambda^i = \sum_{j \in \mathcal G^i} \lambda_j

  This is a lower bound of the type II loss if the scores include the bias's part, and equal to it for two
  classes. For type I, take `G` times the scores and divide the result by `G`. After subtracting `log(C - 1)`
  from each group's sum it is still a lower bound (Jensen), and a much closer one for many classes.

  Args:
    scores: `lambda`, `[D]`, floating.
    groups: `[groupings, D]`, integers in `[0, G)`.
    num_groups: `G`; static.

  Returns:
    `[groupings]`, in nats, in at least float32.

  Raises:
    TypeError: if `scores` are not floating.

  Example:
    >>> group_relaxation(jnp.zeros(4), equal_partitions(4, 2), num_groups=2)  # 2 log 2
    Array([1.3862944, 1.3862944, 1.3862944], dtype=float32)

  References:
    Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021, supplement, Eq. A.18 to A.20.
  """
  scores = check_wide(scores, "scores")
  groups = jnp.asarray(groups)
  member = jax.nn.one_hot(groups, num_groups, axis=1, dtype=scores.dtype)
  return jax.nn.softplus(-(member @ scores)).sum(axis=-1)


def search_grouping(
  key: Key,
  features: ArrayLike,
  kernel: ArrayLike,
  bias: ArrayLike,
  label: ArrayLike,
  groups: ArrayLike,
  *,
  num_groups: int,
  power: float,
  num_steps: int = 2000,
) -> tuple[Array, Array]:
  """Searches a grouping with a large loss by random exchanges: a lower bound of the largest loss.

  Each exchange swaps two features. If there are too many partitions to enumerate, the result shows how far a
  rule is from the most adversarial one.

  Args:
    key: draws the pairs to try.
    features, kernel, bias, label, num_groups, power: as in `grouping_losses`.
    groups: `[D]`, the start; the sizes do not change.
    num_steps: number of exchanges to try; an exchange that lowers the loss is undone.

  Returns:
    The loss, a scalar, and the groups, `[D]`.

  Raises:
    TypeError: if an array is not floating or `key` not a typed key.
    ValueError: if the shapes do not fit or `power` is not above 0.

  Example:
    >>> x, kernel = jnp.arange(1.0, 5.0), jnp.array([[1.0, -1.0], [-1.0, 1.0]] * 2)
    >>> loss, groups = search_grouping(
    ...   jax.random.key(0), x, kernel, jnp.zeros(2), 0, [0, 0, 1, 1], num_groups=2, power=1.0, num_steps=50
    ... )
    >>> groups.tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    True

  References:
    Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021, supplement, Eq. A.27.
  """
  check_count(num_steps, "num_steps")
  groups = jnp.asarray(groups)

  def loss_of(groups: Array) -> Array:
    options = {"num_groups": num_groups, "power": power}
    return grouping_losses(features, kernel, bias, label, groups[None], **options)[0]

  dtype = jax.eval_shape(loss_of, groups).dtype
  x, w, b = (jnp.asarray(a, dtype) for a in (features, kernel, bias))
  ingredients = x[:, None] * w + b[None] / len(x)
  sums = jax.ops.segment_sum(ingredients, groups, num_groups)
  excess = lambda z: (jax.nn.logsumexp(power * z, axis=-1) - power * z[..., label]) / power

  def exchange(state, pair):
    groups, sums = state
    # Only the two groups' sums change, by the difference of the two features.
    difference = ingredients[pair[0]] - ingredients[pair[1]]
    of = groups[pair]
    changed = sums[of] + jnp.stack([-difference, difference])
    gain = jnp.where(of[0] == of[1], 0, (excess(changed) - excess(sums[of])).sum())
    kept = gain > 0
    groups = jnp.where(kept, groups.at[pair].set(of[::-1]), groups)
    sums = jnp.where(kept, sums.at[of].set(changed), sums)
    return (groups, sums), None

  pairs = jax.random.randint(check_key(key), (num_steps, 2), 0, len(x))
  (groups, _), _ = jax.lax.scan(exchange, (groups, sums), pairs)
  return loss_of(groups), groups


def update_rank(sizes: Sequence[int], num_classes: int) -> int:
  r"""Computes the largest rank of the features' gradients over any batch, if examples share their groups.

  .. math:: \sum_i \min(C - 1, |\mathcal G^i|)

  This is one less per group than the paper's `min(CG, D)`, because softmax residuals add up to zero. If
  groups differ between examples, the only limit is the number of features.

  Args:
    sizes: sizes of the groups.
    num_classes: `C`.

  Example:
    >>> update_rank((64,), 10), update_rank((16,) * 4, 10), update_rank((8,) * 8, 10)
    (9, 36, 64)

  References:
    Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021, supplement, Eq. B.1 and B.2.
  """
  return sum(min(num_classes - 1, size) for size in sizes)


def effective_rank(matrix: ArrayLike) -> Array:
  r"""Computes the exponential of the entropy of the normalised singular values.

  .. math:: \exp\Bigl(-\sum_k p_k \log p_k\Bigr), \qquad p_k = \sigma_k / \sum_l \sigma_l

  The value is between 1 and the rank; it is the rank if all non-zero singular values are equal.

  Args:
    matrix: `[rows, columns]`, floating, not all 0.

  Returns:
    A scalar, in at least float32.

  Raises:
    TypeError: if `matrix` is not floating.

  Example:
    >>> effective_rank(jnp.diag(jnp.array([2.0, 2.0, 0.0]))).round(4)
    Array(2., dtype=float32)

  References:
    Roy and Vetterli, `The effective rank: a measure of effective dimensionality`, 2007.
  """
  values = jnp.linalg.svd(check_wide(matrix, "matrix"), compute_uv=False)
  share = values / values.sum()
  return jnp.exp(-jax.scipy.special.xlogy(share, share).sum())
