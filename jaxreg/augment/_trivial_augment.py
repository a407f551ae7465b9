"""TrivialAugment: one operation for each image, with a magnitude of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxreg._checks import check_key
from jaxreg.augment._images import images
from jaxreg.augment._operations import OPERATIONS
from jaxreg.augment._rand_augment import rand_augment
from jaxreg.typing import Key


def trivial_augment(
  key: Key,
  batch: Mapping[str, Any],
  *,
  operations: Sequence[str] = OPERATIONS,
  fill: float = 0.0,
  value_range: tuple[float, float] | None = None,
  channel_axis: int = -1,
) -> dict[str, Any]:
  """Applies one operation of `rand_augment` to each image, with a uniform magnitude; nothing needs tuning.

  Magnitudes have the ranges of `rand_augment`, the source's space "RA". Its space "Wide" has larger ones.

  Args:
    key: one draw of `[batch]` for the magnitudes, and the draws of `rand_augment`.
    batch, operations, fill, value_range, channel_axis: as in `rand_augment`.

  Example:
    >>> batch = {"inputs": jnp.array([[0.0, 0.25, 1.0]]).reshape(1, 1, 3, 1)}
    >>> trivial_augment(jax.random.key(0), batch, operations=["identity"])["inputs"].ravel()
    Array([0.  , 0.25, 1.  ], dtype=float32)

  References:
    Müller and Hutter, `TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation`, 2021.
  """
  for_magnitude, for_rest = jax.random.split(check_key(key))
  magnitude = jax.random.uniform(for_magnitude, (1, len(images(batch, channel_axis))), maxval=10.0)
  options: Any = {"fill": fill, "value_range": value_range, "channel_axis": channel_axis}
  return rand_augment(for_rest, batch, num_ops=1, magnitude=magnitude, operations=operations, **options)
