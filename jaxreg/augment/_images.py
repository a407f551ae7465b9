"""The check that every augmentation of images begins with."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from jaxreg.typing import Array, check_batch


def images(batch: Mapping[str, Any]) -> Array:
  """`batch["inputs"]`, if they are images.

  Raises:
    TypeError: if the batch is no mapping.
    ValueError: if there are none, or not `[batch, height, width, channels]`.
  """
  check_batch(batch, "inputs")
  x = jnp.asarray(batch["inputs"])
  if x.ndim != 4:
    raise ValueError(f"inputs must be images [batch, height, width, channels], got {x.shape}")
  return x
