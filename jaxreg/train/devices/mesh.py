"""Arranges the devices in a mesh of two axes."""

import jax
from jax.sharding import AxisType

from jaxreg.train.errors import RunError


def make_mesh(model: int = 1) -> jax.sharding.Mesh:
  """All devices in two axes: `data`, which splits batches, and `model`, of `model` devices.

  Raises:
    RunError: if `model` does not divide the number of devices.
  """
  devices = jax.device_count()
  if devices % model:
    raise RunError(f"mesh.model: must divide the number of devices, {devices}, got {model}")
  # Auto axes: with the default Explicit ones, gathers and dropout on the batch axis raise.
  return jax.make_mesh((devices // model, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
