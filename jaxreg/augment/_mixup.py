"""Mixup: convex combinations of examples and of their labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_key, check_option, key_first
from jaxreg.augment._mixing import beta, mixed, shuffled, soft_labels
from jaxreg.typing import Key


@key_first
def mixup(
  key: Key,
  batch: Mapping[str, Any],
  *,
  alpha: ArrayLike = 0.2,
  num_classes: int | None = None,
  per_example: bool = True,
) -> dict[str, Any]:
  r"""Mixes each example and its label with another example of the batch.

  .. math:: \tilde x = \lambda x_i + (1 - \lambda) x_j, \quad \tilde y = \lambda y_i + (1 - \lambda) y_j,
    \qquad \lambda \sim \mathrm{Beta}(\alpha, \alpha)

  The labels become soft; `losses.softmax_cross_entropy`, `losses.focal` and others take soft labels. No label
  smoothing is added. Every example of the batch takes part, even with weight 0.

  Args:
    key: one draw of `[2, batch]` (or `[2, 1]`) for the shares, and a permutation of the batch.
    batch: `inputs` `[batch, ...]`, uint8 or floating; `labels` `[batch]`, integer; or floating: probabilities
      `[batch, classes]`, or numbers `[batch, ...]`; other entries pass through. An integer label out of
      range, such as -1 for none, turns the mixed labels into NaN, or is refused if it is known.
    alpha: above 0; towards 0 the examples stay unmixed.
    num_classes: needed for integer labels; static.
    per_example: whether each example draws its own share, or the batch draws one, as in the paper.

  Returns:
    The batch with mixed inputs of the same dtype and floating labels.

  Example:
    >>> batch = {"inputs": jnp.zeros((2, 4)), "labels": jnp.array([0, 1])}
    >>> mix = lambda key, batch: mixup(key, batch, num_classes=10)
    >>> jax.eval_shape(mix, jax.random.key(0), batch)["labels"].shape
    (2, 10)

  References:
    Zhang et al., `mixup: Beyond Empirical Risk Minimization`, 2018, section 2.
  """
  labels = soft_labels(batch, num_classes)
  x = jnp.asarray(batch["inputs"])
  if not (jnp.issubdtype(x.dtype, jnp.floating) or x.dtype == jnp.uint8):
    raise TypeError(f"inputs must be uint8 or floating, got {x.dtype}")
  check_option(alpha, "alpha", (), low=0, open_low=True)
  for_share, for_order = jax.random.split(check_key(key))
  share = beta(for_share, alpha, x.shape[0] if per_example else 1)
  other = jax.random.permutation(for_order, x.shape[0])
  mix = lambda x: mixed(x, shuffled(x, other), share)
  return {**batch, "inputs": mix(x), "labels": mix(labels)}
