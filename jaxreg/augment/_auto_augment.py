"""AutoAugment: one of a policy's pairs of operations for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg._checks import check_key, check_range
from jaxreg._errors import ArgumentError
from jaxreg.augment._images import images, narrowed, with_images
from jaxreg.augment._moved import moved
from jaxreg.augment._operations import ALL, changed, check_operations, check_pixels, composed
from jaxreg.augment._policies import POLICIES, SubPolicy
from jaxreg.typing import Key


def auto_augment(
  key: Key,
  batch: Mapping[str, Any],
  *,
  policy: str | Sequence[SubPolicy] = "cifar10",
  fill: float = 0.0,
  value_range: tuple[float, float] | None = None,
  channel_axis: int = -1,
) -> dict[str, Any]:
  """Applies to each image one sub-policy, drawn uniformly: operations with their own chances and magnitudes.

  The policies `cifar10`, `imagenet` and `svhn` are the 25 sub-policies of two operations that the source
  found on each of these sets. Magnitudes 0 to 9 are evenly spaced; at 9, operations have the ranges that
  `rand_augment` has at 10. `posterize` and `solarize` change more at larger magnitudes, and the direction of
  the others is drawn, as in torchvision. `invert` mirrors all values.

  As in `rand_augment`, the geometric operations of an image come after its photometric operations, by one
  bilinear sampling.

  Args:
    key: three draws: sub-policies `[batch]`, chances and signs `[operations, batch]`.
    batch: `inputs` `[batch, height, width, channels]`, uint8 or floating; masks, boxes and points move
      along.
    policy: `cifar10`, `imagenet`, `svhn`, or your own sub-policies: tuples `(operation, probability,
      magnitude)`, in each the same number. `rand_augment` lists the operations; `invert` is one more.
    fill, value_range, channel_axis: as in `rand_augment`.

  Example:
    >>> batch = {"inputs": jnp.array([[0.0, 0.25, 1.0]]).reshape(1, 1, 3, 1)}
    >>> inverted = auto_augment(jax.random.key(0), batch, policy=[[("invert", 1.0, 0)]])
    >>> inverted["inputs"].ravel()
    Array([1.  , 0.75, 0.  ], dtype=float32)

  References:
    Cubuk et al., `AutoAugment: Learning Augmentation Strategies from Data`, 2019, appendix.
  """
  x = images(batch, channel_axis)
  low_high = check_pixels(x, value_range)
  rows = _checked(policy)
  names = sorted({name for row in rows for name, _, _ in row})
  dtype = jnp.promote_types(x.dtype, jnp.float32)
  # `[sub-policies, operations]`
  number = jnp.asarray([[ALL.index(name) for name, _, _ in row] for row in rows])
  chance = jnp.asarray([[probability for _, probability, _ in row] for row in rows], dtype)
  size = jnp.asarray([[magnitude / 9 for _, _, magnitude in row] for row in rows], dtype)

  for_row, for_chance, for_sign = jax.random.split(check_key(key), 3)
  mine = jax.random.randint(for_row, x.shape[:1], 0, len(rows))
  shape = (number.shape[1], x.shape[0])
  takes = jax.random.uniform(for_chance, shape, dtype) < chance[mine].T
  chosen = jnp.where(takes, number[mine].T, ALL.index("identity"))
  level = jax.random.rademacher(for_sign, shape, dtype) * size[mine].T
  out = changed(x, chosen, level, names, fill=fill, value_range=low_high)
  batch = moved(batch, x.shape[1:3], *composed(chosen, level, x.shape[1:3]))
  return with_images(batch, narrowed(out, x.dtype), channel_axis)


def _checked(policy: str | Sequence[SubPolicy]) -> list[SubPolicy]:
  """The sub-policies."""
  if isinstance(policy, str):
    if policy not in POLICIES:
      raise ArgumentError("policy", f"must be one of {', '.join(POLICIES)}, or sub-policies, got {policy!r}")
    return list(POLICIES[policy])
  rows = [tuple(row) for row in policy]
  if not rows or len({len(row) for row in rows}) > 1:
    raise ArgumentError("policy", "must have sub-policies with the same number of operations")
  check_operations([name for row in rows for name, _, _ in row], ALL)
  for row in rows:
    for _, probability, magnitude in row:
      check_range(probability, "policy: a probability", low=0, high=1)
      check_range(magnitude, "policy: a magnitude", low=0, high=9)
  return rows
