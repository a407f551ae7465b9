"""Several augmentations in sequence, as one."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxreg._checks import check_key
from jaxreg.typing import Key

Augmentation = Callable[[Key, Mapping[str, Any]], Mapping[str, Any]]


def compose(*augmentations: Augmentation) -> Callable[[Key, Mapping[str, Any]], dict[str, Any]]:
  """Combines augmentations into one that applies them in order, each with its own key.

  The key of number `i`, from 0, is `jax.random.fold_in(key, i)`: so the draws of one augmentation do not
  depend on those after it. Mixing makes labels soft and other augmentations do not change labels, so mixing
  may stand anywhere.

  Args:
    *augmentations: functions `(key, batch) -> batch`; bind options with `functools.partial`.

  Returns:
    A function `(key, batch) -> batch`; without augmentations it returns the batch.

  Example:
    >>> from jaxreg.augment import cutout, flip
    >>> augment = compose(flip, lambda key, batch: cutout(key, batch, size=1))
    >>> jax.jit(augment)(jax.random.key(0), {"inputs": jnp.ones((1, 4, 4, 1))})["inputs"].sum()
    Array(15., dtype=float32)
  """

  def composed(key: Key, batch: Mapping[str, Any]) -> dict[str, Any]:
    check_key(key)
    for number, augmentation in enumerate(augmentations):
      batch = augmentation(jax.random.fold_in(key, number), batch)
    return dict(batch)

  return composed
