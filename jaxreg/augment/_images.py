"""The check that every augmentation of images begins with."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from jaxreg.typing import Array


def images(batch: Mapping[str, Any]) -> Array:
  """`batch["inputs"]`, if they are images.

  Raises:
    ValueError: if there are none, or not `[batch, height, width, channels]`.
  """
  if "inputs" not in batch:
    raise ValueError(f"batch must have 'inputs', got {sorted(batch)}")
  x = jnp.asarray(batch["inputs"])
  if x.ndim != 4:
    raise ValueError(f"inputs must be images [batch, height, width, channels], got {x.shape}")
  return x
